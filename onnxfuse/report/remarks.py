"""Sentences about a profile that would surprise without them: shares above 100 %, nodes that take longer than a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Fields = Mapping[str, Any]

_ABOVE = 1.005  # a share that is printed as more than 100 %
_LONGER = 1.05  # of the time of a run: what all its nodes may take before a sentence says why
MARKS = {"compute": "!", "memory": "^"}  # of shares above 100 %, by the bound that was passed
_SAID = {
    "compute": "more than the measured peak: other work slowed its measurement down (onnxfuse doctor --calibrate "
    "measures again), or the kernel needs fewer operations than its nodes",
    "memory": "more than memory delivers: values stay in caches, or other work slowed the measurement of the peak down",
}


def share(of: Fields) -> str:
    """The share of what the machine does at best, of a kernel or node; above 100 % with a mark that `above` explains.

    >>> share({"roof_share": 0.5, "roof": "memory"}), share({"roof_share": 1.14, "roof": "memory"})
    ('50 %', '114 %^')
    """
    found = of.get("roof_share")
    return "-" if found is None else f"{found * 100:.0f} %" + (MARKS[of["roof"]] if _is_above(of) else "")


def above(rows: Iterable[Fields]) -> Iterator[str]:
    """A sentence for each mark in these rows."""
    found = {each["roof"] for each in rows if _is_above(each)}
    yield from (f"{mark} {_SAID[bound]}" for bound, mark in MARKS.items() if bound in found)


def _is_above(of: Fields) -> bool:
    return (of.get("roof_share") or 0.0) >= _ABOVE and of.get("roof") in MARKS


def longer(model: Fields) -> Iterator[str]:
    """Why the nodes of a model take longer than the model, where they do."""
    run, nodes = model["latency_ms"]["median"], sum(op["time_ms"] for op in model["ops"])
    if nodes > _LONGER * run:
        yield (
            f"the nodes of {model['path']} take {nodes:.3g} ms, and a run {run:.3g} ms: ONNX Runtime's profiler adds "
            "time to each node, and nodes that run at the same time count twice; compare their shares"
        )
