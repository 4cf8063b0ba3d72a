"""Launches of which blocks may begin while the kernel before still runs, where the architecture has such."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.kernel import Kernel
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
