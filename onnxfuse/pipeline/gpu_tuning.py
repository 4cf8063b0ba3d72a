"""`tune --target cuda`: measures the tiles of products on the GPU of this machine, and writes a lock file.

As DeepCuts does: parameters are enumerated for the GPU, those that do not fit are left out, those predicted to be much
slower than the best are not measured (`cost/gpu_products.py`), and what is clearly faster by itself is taken.
"""

from __future__ import annotations

import time
from typing import Any

from onnxfuse.errors import DeviceError
from onnxfuse.measure.gpu import GpuTimer
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.candidate_tuning import LESS, Contraction, contractions
from onnxfuse.pipeline.locked import text_of_lock
from onnxfuse.pipeline.run import run
from onnxfuse.pipeline.state import Context, have
from onnxfuse.report.lock import FasterSchedule, Lock, deciding


def measured(context: Context, calls: Calls, until: float) -> tuple[str, list[tuple[str, float, float]], list[str]]:
    """The text of the lock file; of each tile its name, predicted and measured seconds; and what went wrong.

    Raises DeviceError where this machine has no GPU.
    """
    b = run(context, calls, "schedule", lambda step, b: None)
    times: list[tuple[str, float, float]] = []
    problems: list[str] = []
    faster: list[FasterSchedule] = []
    with GpuTimer(context.targets[0]) as timer:  # type: ignore[arg-type]  # of the backend
        for each in contractions(context, b, {}):
            found = _times(each, timer, until, problems)
            predicted = each.samples[0].seconds[0]
            times += [(f"{each.part.op}: {name}", predicted, seconds) for name, seconds in found.items()]
            faster += _fastest(each, found)
    source: Any = have(b.loaded).source
    options = deciding(context.options)
    lock = Lock(source.sha256, options, context.target_names, None, (), None, (), tuple(faster))
    return text_of_lock(context, lock), times, problems


def _times(c: Contraction, timer: GpuTimer, until: float, problems: list[str]) -> dict[str, float]:
    """Seconds of the tiles of a product, as far as there is time; the usual one is the first."""
    found: dict[str, float] = {}
    for name, sample in zip(c.candidates, c.samples, strict=True):
        if time.monotonic() > until:
            break
        try:
            found[name] = timer.seconds(sample.kernel)
        except DeviceError as problem:
            problems.append(f"{c.part.op}: {name}: {problem}")
    return found


def _fastest(c: Contraction, times: dict[str, float]) -> list[FasterSchedule]:
    """The fastest tile, if it is clearly faster than the usual one."""
    usual, best = c.candidates[0], min(times, key=lambda name: times[name], default="")
    if usual not in times or best == usual or times[best] > LESS * times[usual]:
        return []
    before, after = (float(f"{times[name] * 1e6:.5g}") for name in (usual, best))
    return [FasterSchedule(c.part.op, c.places, usual, best, before, after, taken=True)]
