"""What functions of a kernel are given: buffers, symbols, and tensor maps of matrices that are copied in boxes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.dtype import BF16, F16, DType
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Kernel, all_statements
from onnxfuse.ir.launch import CopyBox
from onnxfuse.render.c_family import identifier, stored

ELEMENTS = {F16: 6, BF16: 9}  # CUtensorMapDataType


def parameters(kernel: Kernel) -> list[tuple[str, str]]:
    """Types and names of the parameters of every phase: inputs, outputs, scratch, symbols and tensor maps."""
    found = [(f"const {stored(p.dtype)}*", p.name) for p in kernel.inputs]
    found += [(f"{stored(p.dtype)}*", p.name) for p in kernel.outputs]
    found += [(f"{stored(b.dtype)}*", identifier(b.name)) for b in kernel.scratch]
    maps = [("const __grid_constant__ Map", f"map{n}") for n in range(len(tensor_maps(kernel)))]
    symbols = [("i64", b.symbol.name) for b in kernel.binds]
    return [*((f"{t} __restrict__", name) for t, name in found), *symbols, *maps]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What the copy engine has to know of a matrix at the begin of a buffer, and of the boxes of so many rows of it."""

    source: str
    dtype: DType
    all_rows: Index
    all_columns: int
    pitch: int
    rows: int


def tensor_maps(kernel: Kernel) -> tuple[TensorMap, ...]:
    """The maps that a kernel's phases are given, behind all other parameters."""
    types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)} | {b.name: b.dtype for b in kernel.scratch}
    return tuple(dict.fromkeys(map_of(s, types) for s in all_statements(kernel) if isinstance(s, CopyBox)))


def map_of(s: CopyBox, types: Mapping[str, DType]) -> TensorMap:
    """The map that a box is copied by."""
    return TensorMap(s.source, types[s.source], s.all_rows, s.all_columns, s.pitch, s.rows)
