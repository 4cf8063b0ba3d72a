"""Tables of which rows are looked up and which products have packed: such a table is stored once, as products read it.

An embedding that also computes the logits would be twice in the file. A row of panels lies in pieces as far apart as a
panel is wide; a run reads few rows of a table that the product multiplies as a whole.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from onnxfuse.emit.weights import without_subnormals
from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.graph import Constant
from onnxfuse.ir.indexing import looked_up
from onnxfuse.ir.kernel import Kernel, Param
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.lower import Lowered

LARGE = 1 << 20  # bytes from which on a table is worth another way to look its rows up

Pair = tuple[Lowered, Kernel]


def stored_once(
    pairs: Sequence[Pair], constants: Mapping[str, Constant], elsewhere: Container[str]
) -> dict[str, Layout]:
    """The layouts in which tables are to be looked up, by value, so that the kernels of these groups read each once.

    Not of those that are read `elsewhere` too, and not of those of which packing changes elements.
    """
    packed: dict[tuple[Constant, DType], Layout] = {}
    for p in (p for _, kernel in pairs for p in kernel.inputs if p.value in constants and p.layout.steps):
        constant, layout = constants[p.value].stored(p.layout)
        packed.setdefault((constant, p.dtype), layout)
    plain: dict[str, list[bool]] = {}
    for lowered, kernel in pairs:
        for p in _plain(kernel, constants):
            plain.setdefault(p.value, []).append(_looks_up(lowered, p.value))
    found = {value: packed.get((constants[value], constants[value].dtype)) for value in plain}
    alone = {v: layout for v, layout in found.items() if layout is not None and all(plain[v]) and v not in elsewhere}
    return {v: layout for v, layout in alone.items() if _is_kept(constants[v])}


def _is_kept(table: Constant) -> bool:
    """Whether a packed table has all of its elements: what is looked up may be divided by, or its logarithm be taken.

    A product hardly notices subnormals, which become zeros in its weights.
    """
    if table.dtype != F32:
        return True
    elements = table.load()
    return without_subnormals(elements) is elements


def _plain(kernel: Kernel, constants: Mapping[str, Constant]) -> Iterator[Param]:
    """The large constants that a kernel reads as they are in the model."""
    for p in kernel.inputs:
        if p.value in constants and constants[p.value].bytes >= LARGE and p.layout == PLAIN:
            yield p


def _looks_up(lowered: Lowered, value: str) -> bool:
    """Whether a group reads a value at looked-up positions only."""
    reads = [read for d in lowered.definitions for read in loads(d.value) if read.source == value]
    return all(any(map(looked_up, read.index)) for read in reads)
