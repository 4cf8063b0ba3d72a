"""The last pass: what a machine needs to know about a kernel and is not asked by any search is written into it.

The renderer only spells what it finds.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.indexing import WIDEST
from onnxfuse.ir.kernel import Kernel, Loop, Phase, ReduceLoop, Stmt, When
from onnxfuse.target import Cpu

STACK_BYTES = 64 << 10  # local buffers up to this size are arrays of the task's own stack
ELEMENT = 8  # bytes of the widest element


def legalize(kernel: Kernel, target: Cpu) -> Kernel:
    """The kernel with the memory of local buffers chosen, and vector loops that begin at whole vectors marked."""
    phases = tuple(replace(p, slots=_in_slots(p), body=_marked(p.body)) for p in kernel.phases)
    return replace(kernel, phases=phases)


def _in_slots(phase: Phase) -> bool:
    """Whether a phase's local buffers are too large, or of unknown size, for the stack."""
    if phase.launch is not None:
        return False
    sizes = [b.size.constant for b in phase.locals]
    return any(s is None for s in sizes) or sum((s or 0) * ELEMENT for s in sizes) > STACK_BYTES


def _marked(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements whose vector loops say whether their vectors begin at multiples of any number of lanes."""
    made: list[Stmt] = []
    for s in body:
        if isinstance(s, (Loop, ReduceLoop, When)):
            s = replace(s, body=_marked(s.body))
        if isinstance(s, Loop) and s.kind == "vector":
            s = replace(s, aligned=all(c % WIDEST == 0 for _, c in s.begin.terms))
        made.append(s)
    return tuple(made)
