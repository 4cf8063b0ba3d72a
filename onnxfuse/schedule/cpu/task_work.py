"""The work of phases, which decides how many tasks they have, is at least what their statements are predicted to take.

A phase is made with a rough estimate of its computation (`cost/serial.py`); reads and writes beyond L1, lanes that stay
empty and calls of functions show only in its statements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse.cost import cost_of, number
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Computed, Kernel, Phase
from onnxfuse.schedule.cpu.candidates import IMAGE_SIDE, CostRanking
from onnxfuse.target import Cpu

CLEARLY = 1.5  # factor from which a prediction replaces an estimate


def weighed(kernel: Kernel, target: Cpu) -> Kernel:
    """The legalized kernel, its phases with the time that one core is predicted to take at usual sizes."""
    symbols = tuple(b.symbol for b in kernel.binds)
    usual = dict.fromkeys((s.name for s in symbols), IMAGE_SIDE)
    computed = tuple((b.symbol, b.value) for b in kernel.binds if isinstance(b, Computed))
    sizes = CostRanking(kernel, symbols, target, (), 0.0, computed=computed).nonempty_sizes(usual)
    cost = cost_of(kernel, replace(target, cores=1), symbols=sizes)
    if cost is None:
        return kernel
    phases = (_phase(p, counted.seconds, sizes) for p, counted in zip(kernel.phases, cost.phases, strict=True))
    return replace(kernel, phases=tuple(phases))


def _phase(phase: Phase, seconds: float, sizes: Mapping[str, int]) -> Phase:
    """The phase with the predicted time instead of the estimate, where it is clearly more."""
    estimated, predicted = number(phase.work, sizes), int(seconds * 1e12)
    if predicted < CLEARLY * max(estimated, 1):
        return phase
    work = phase.work * round(predicted / estimated) if phase.work.constant is None and estimated > 0 else predicted
    return replace(phase, work=Index.of(work))
