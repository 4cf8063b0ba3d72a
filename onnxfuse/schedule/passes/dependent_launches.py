"""Launches of which blocks may begin while the kernel before still runs, where the architecture has such."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import fields, replace
from math import prod

from onnxfuse.ir.compose import elements_read
from onnxfuse.ir.index import Index, Loaded, atoms, axes_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Kernel, Phase, statements
from onnxfuse.ir.launch import CopyAsync
from onnxfuse.target import Gpu
from onnxfuse.target.gpu import DEPENDENT_SINCE


def dependent_launches(kernel: Kernel, target: Gpu) -> Kernel:
    """The kernel with all launches dependent: each waits, so that whoever waits for it has waited for all before.

    Whether a run makes use of it is decided by the launcher, by the size of tensors. PTX has none, since nobody sees
    whether the driver's compiler moves loads before the wait.
    """
    if target.capability < DEPENDENT_SINCE or target.portable:
        return kernel
    launches = [None if p.launch is None else replace(p.launch, dependent=True) for p in kernel.phases]
    return replace(kernel, phases=tuple(replace(p, launch=x) for p, x in zip(kernel.phases, launches, strict=True)))


MOST_AHEAD, MOST_BYTES = 4, 8 << 20  # inputs of a launch, and bytes of each, that are asked for before it waits


def constants_ahead(kernel: Kernel, constants: Container[str]) -> Kernel:
    """The kernel with constants asked for before its dependent launches wait: the largest that are read as a whole."""
    counts = {p.name: product(list(p.storage)).constant for p in kernel.inputs if p.value in constants}
    known = {p.name: (count, count * p.dtype.bytes) for p in kernel.inputs if (count := counts.get(p.name)) is not None}
    small = {name: sizes for name, sizes in known.items() if sizes[1] <= MOST_BYTES}
    return replace(kernel, phases=tuple(_ahead(p, small) for p in kernel.phases)) if small else kernel


def _ahead(phase: Phase, sizes: Mapping[str, tuple[int, int]]) -> Phase:
    """`sizes`: elements and bytes of constants."""
    if phase.launch is None or not phase.launch.dependent:
        return phase
    read = {name for name, count in _read(phase) if name in sizes and (count is None or 2 * count > sizes[name][0])}
    largest = sorted(read, key=lambda name: (-sizes[name][1], name))[:MOST_AHEAD]
    return replace(phase, launch=replace(phase.launch, ahead=tuple(largest)))


def _read(phase: Phase) -> Iterator[tuple[str, int | None]]:
    """Buffers that are read where indices say, not where other elements do; and at most how many elements of each."""
    for s in statements(phase.body):
        if isinstance(s, CopyAsync):
            count = _places(s.at)
            yield s.source, None if count is None else count * s.count
        for f in fields(s):
            for load in elements_read(getattr(s, f.name)) if f.name != "body" else ():
                if not any(isinstance(a, Loaded) for e in load.index for a in atoms(e)):
                    yield load.source, _places(*load.index)


def _places(*index: Index) -> int | None:
    """At most how many values an index has; None where that is not known."""
    extents = {axis: axis.extent.constant for e in index for axis in axes_of(e)}
    known = [e for e in extents.values() if e is not None]
    return prod(known) if len(known) == len(extents) else None
