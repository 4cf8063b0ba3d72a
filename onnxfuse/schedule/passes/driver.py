"""Runs passes over a kernel in the order of a table; a fault is one of the first pass that shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxfuse.errors import OnnxFuseError
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify

T_contra = TypeVar("T_contra", contravariant=True)
NESTS = "nests"  # the step before the first pass: definitions have become loop nests
Step = tuple[str, Kernel]  # its name, and the kernel that it left
Check = Callable[[Sequence[Step]], None]
"""Is told all steps in their order, those without a change left out."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[T_contra]):
    """A step from a kernel to one that computes the same, for a target."""

    name: str
    run: Callable[[Kernel, T_contra], Kernel]


def verified(steps: Sequence[Step]) -> None:
    """Raise AssertionError if `ir.verify` finds a fault in the last kernel; it names the first step that has one."""
    if verify(steps[-1][1]):
        name, wrong = next((name, found) for name, kernel in steps if (found := verify(kernel)))
        raise AssertionError(f"schedule: {name}: {wrong[0]}")


def unchecked(steps: Sequence[Step]) -> None:
    """Check nothing."""


def through(passes: Sequence[Pass[T_contra]], kernel: Kernel, target: T_contra, check: Check = unchecked) -> Kernel:
    """The kernel after all passes; `check` is told of them at the end, or where one raises for what it was given."""
    steps = [(NESTS, kernel)]
    try:
        for step in passes:
            made = step.run(kernel, target)
            if check is not unchecked and made != kernel:
                steps.append((step.name, made))
            kernel = made
    except Exception as problem:
        if not isinstance(problem, OnnxFuseError):  # a budget that is used up
            check(steps)
        raise
    check(steps)
    return kernel
