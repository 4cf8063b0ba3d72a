"""Launches of which blocks may begin while the kernel before still runs, where the architecture has such."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import fields, replace

from onnxfuse.ir.compose import elements_read
from onnxfuse.ir.index import Loaded, atoms
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Kernel, Param, Phase, statements
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
    found = {p.name: size for p in kernel.inputs if p.value in constants and (size := _bytes(p)) <= MOST_BYTES}
    return replace(kernel, phases=tuple(_ahead(p, found) for p in kernel.phases)) if found else kernel


def _bytes(p: Param) -> int:
    """Bytes of an input; too many where that is not known."""
    count = product(list(p.storage)).constant
    return MOST_BYTES + 1 if count is None else count * p.dtype.bytes


def _ahead(phase: Phase, sizes: dict[str, int]) -> Phase:
    if phase.launch is None or not phase.launch.dependent:
        return phase
    read = {*_read(phase)} & {*sizes}
    largest = sorted(read, key=lambda name: (-sizes[name], name))[:MOST_AHEAD]
    return replace(phase, launch=replace(phase.launch, ahead=tuple(largest)))


def _read(phase: Phase) -> Iterator[str]:
    """Buffers that are read where indices say, not where other elements do."""
    for s in statements(phase.body):
        if isinstance(s, CopyAsync):
            yield s.source
        for f in fields(s):
            for load in elements_read(getattr(s, f.name)) if f.name != "body" else ():
                if not any(isinstance(a, Loaded) for e in load.index for a in atoms(e)):
                    yield load.source
