"""The verb `tune`: measures kernels, nodes and plans, and remembers the times for later builds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from onnxfuse.config import Options
from onnxfuse.errors import between, counted
from onnxfuse.pipeline.state import Tell
from onnxfuse.pipeline.tune import Tuned
from onnxfuse.pipeline.tune import tune as run
from onnxfuse.report.lock import Alternative, FasterSchedule
from onnxfuse.runtime.provider import provider_of

from .results import Answer, document

_WORST = 5  # most samples that are listed, those with the worst predictions


def tune(model: str, options: Options, tell: Tell, **values: Any) -> Answer:
    """Measure a model; the measurements as a document and as lines."""
    provider_of(options.target, "tune")  # raises DeviceError where this machine has no such device
    found = run(model, options=options, tell=tell, **values)
    return Answer(document("tune", **asdict(found)), tuple(_lines(found)))


def _lines(found: Tuned) -> Iterator[str]:
    nodes = sum(s.left for s in found.samples)
    kernels = counted(len(found.samples) - nodes, "kernel")
    left = counted(nodes, "node")
    yield f"measured  {kernels}, {left} of ONNX Runtime, {counted(found.rounds, 'plan')}"
    if found.samples:
        off = sorted(max(s.predicted_us, 1e-3) / s.measured_us for s in found.samples)
        yield f"          predicted to take {statistics.median(off):.2f} of it (median; {off[0]:.2f} to {off[-1]:.2f})"
        worst = sorted(found.samples, key=lambda s: -abs(s.measured_us - s.predicted_us))[:_WORST]
        for s in worst:
            yield f"          {s.predicted_us:.3g} us predicted, {s.measured_us:.3g} us measured: {s.what[:80]}"
    yield f"plan      {'changed' if found.changed else 'unchanged'} by measured times"
    for alternative in found.alternatives:
        yield from _alternative(alternative)
    if not found.alternatives and found.changed:
        yield "          there was no time to compare it in the whole model (--budget)"
    elif not any(r.taken for r in found.alternatives):
        yield "          no plan is significantly faster than the default one"
    for schedule in found.faster_schedules:
        yield from _schedule(schedule)
    yield from (f"note      not measured: {problem[:100]}" for problem in found.problems[:_WORST])
    yield f"wrote     {found.lock}  {found.database}"


def _schedule(w: FasterSchedule) -> Iterator[str]:
    """The lines of a schedule candidate that was faster than the one predicted best."""
    verdict = "taken" if w.taken else "not taken, since the whole model is not significantly faster"
    yield f"schedule  {verdict}: {w.before_us:.4g} -> {w.after_us:.4g} us, at {counted(w.places, 'place')}: {w.kernel}"
    yield f"          {w.schedule}"
    yield f"          instead of {w.instead_of}"


def _alternative(r: Alternative) -> Iterator[str]:
    """The lines of an alternative plan that was measured in the whole model."""
    verdict = "taken" if r.taken else "left"
    times = f"{r.before_ms:.4g} -> {r.after_ms:.4g} ms ({r.ratio:.3f}x, 95 %: {between(r.low, r.high, '{:.3f}x')})"
    yield f"race      {verdict}: {times}, {r.predicted_ms:.3g} ms predicted, at {counted(r.places, 'place')}"
    yield f"          {' | '.join(r.groups)}"
    yield f"          instead of {' | '.join(r.instead_of)}"
