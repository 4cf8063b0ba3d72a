"""Runs passes over a kernel in the order of a table, with a check after each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify

T_contra = TypeVar("T_contra", contravariant=True)
NESTS = "nests"  # the step before the first pass: definitions have become loop nests
Check = Callable[[str, Kernel], None]
"""Is told the name of each step and the kernel that it left."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[T_contra]):
    """A step from a kernel to one that computes the same, for a target."""

    name: str
    run: Callable[[Kernel, T_contra], Kernel]


def verified(step: str, kernel: Kernel) -> None:
    """Raise AssertionError, which names the step, if `ir.verify` finds a fault in the kernel that it left."""
    wrong = verify(kernel)
    assert not wrong, f"schedule: {step}: {wrong[0]}"


def unchecked(step: str, kernel: Kernel) -> None:
    """Check nothing."""


def through(passes: Sequence[Pass[T_contra]], kernel: Kernel, target: T_contra, check: Check = unchecked) -> Kernel:
    """The kernel after all passes; `check` sees it before the first pass and after each that changed it."""
    check(NESTS, kernel)
    for step in passes:
        made = step.run(kernel, target)
        if made != kernel:
            check(step.name, made)
        kernel = made
    return kernel
