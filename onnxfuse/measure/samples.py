"""How long samples take: models of many copies of one kernel or node, run in turns in one other process.

A sample that cannot be run says why instead, and costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.runtime.attempts import persistent_child

_CHILD = "onnxfuse.measure.samples_child"


@dataclass(frozen=True, slots=True)
class Task:
    """A model of so many `copies` of what is to be timed, for which a session holds about so many bytes of weights."""

    model: str
    copies: int
    weights: int


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one copy, the least of so many runs, and how far their median lies above; or why there are none."""

    seconds: float = 0.0
    spread: float = 0.0
    runs: int = 0
    problem: str = ""


def time_samples(
    tasks: Sequence[Task],
    *,
    libraries: Sequence[Path] = (),
    threads: int = 1,
    seconds: float = 0.1,
    time_limit: float | None = None,
) -> list[Timed]:
    """Time each task, for about so many seconds each, a few at once in turns. Raises DeviceError and BudgetError."""
    request: dict[str, Any] = {
        "tasks": [asdict(task) for task in tasks],
        "libraries": [str(each.absolute()) for each in libraries],
        "threads": threads,
        "seconds": seconds,
    }
    found = persistent_child(_CHILD, request, stage="tune", time_limit=time_limit)
    return [Timed(**each) for each in found]
