"""Times samples: models of many copies of one kernel or node, run in turns in one child process.

A sample that cannot be run gets a message instead; the others are not affected.
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
    """A sample: a model of `copies` copies of a kernel or node; `weights` are the approximate bytes of its session."""

    model: str
    copies: int
    weights: int


@dataclass(frozen=True, slots=True)
class SampleTime:
    """The least seconds of one copy over `runs` runs, and `spread`, (median - least) / least; or the `problem`."""

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
) -> list[SampleTime]:
    """Time each task for about `seconds`, a few of them in turns. Raises DeviceError and BudgetError."""
    request: dict[str, Any] = {
        "tasks": [asdict(task) for task in tasks],
        "libraries": [str(each.absolute()) for each in libraries],
        "threads": threads,
        "seconds": seconds,
    }
    found = persistent_child(_CHILD, request, stage="tune", time_limit=time_limit)
    return [SampleTime(**each) for each in found]
