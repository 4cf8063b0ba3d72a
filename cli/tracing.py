"""One run of each profiled model in the trace format that Perfetto and chrome://tracing read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnxfuse.measure.profile import ModelProfile, Profile


def trace_of(found: Profile, names: Sequence[str]) -> dict[str, Any]:
    """The trace: a process for each model, a slice for each of its nodes, with its original nodes."""
    events = [
        event
        for number, (name, model) in enumerate(zip(names, found.models, strict=True), 1)
        for event in _slices(number, name, model)
    ]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _slices(number: int, name: str, model: ModelProfile) -> Iterator[dict[str, Any]]:
    place = {"pid": number, "tid": 1}
    yield {"ph": "M", "name": "process_name", "args": {"name": name}, **place}
    yield {"ph": "M", "name": "process_sort_index", "args": {"sort_index": number}, **place}
    for each in model.events:
        args = {"operator": each.op_type, "stands for": list(each.origin)}
        times = {"ts": each.start_us, "dur": each.duration_us}
        yield {"ph": "X", "name": each.name or each.op_type, "cat": each.op_type, "args": args, **times, **place}
