"""What a build gains over the original, and which of its kernels lose: one short measurement in one other process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfuse.measure import ratios
from onnxfuse.measure.ratios import Ratio
from onnxfuse.runtime.attempts import persistent_child
from onnxfuse.runtime.memory import Load

_CHILD = "onnxfuse.measure.gain_child"
_START = 0.5  # seconds that a process takes to be there
LOST = 0.05  # the share of their time that kernels must cost too much before they are given up
FEWEST = 6  # runs of each model in turns, below which nothing is known
FLOOR = 0.01  # and of the model's: below, two sessions of one model may differ
CROWDED = 4.0  # times as long as alone a run may take beside other work: 2.7 to 4 were seen on a loaded machine


@dataclass(frozen=True, slots=True)
class AtSize:
    """Least times of a run at one set of sizes, in milliseconds."""

    shapes: Mapping[str, tuple[int, ...]]
    before_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True)
class Tried:
    """Kernels that were run as function bodies beside the build as it is.

    `ratio` is of the build as it is to the one without them, `share` the part of its time that the kernels take.
    """

    kernels: tuple[str, ...]
    ratio: Ratio
    share: float
    with_ms: float
    without_ms: float

    @property
    def loses(self) -> bool:
        """Whether the kernels surely take longer than what they stand for."""
        return ratios.verdict(self.ratio, limit_of(self.share, LOST)) == ratios.SLOWER

    @property
    def wins(self) -> bool:
        """Whether the build is surely slower without them."""
        return ratios.verdict(self.ratio.inverse, 0.0) == ratios.SLOWER


@dataclass(frozen=True, slots=True)
class Gained:
    """The time of the original to that of the build, over all sizes that were measured (geometric mean)."""

    ratio: Ratio
    spread: float  # how far the original is from itself, in other turns
    threads: int
    sizes: tuple[AtSize, ...]
    tried: tuple[Tried, ...] = ()
    slow: tuple[str, ...] = ()  # kernels that take longer than the nodes they stand for, node by node, the worst first

    @property
    def loses(self) -> bool:
        """Whether the build surely is slower than the original."""
        return ratios.verdict(self.ratio.inverse, 1.0 / (1.0 - LOST) - 1.0) == ratios.SLOWER


def limit_of(share: float, part: float) -> float:
    """How much slower a model must be with kernels than without, where they take a `share` of its time, so that they
    themselves take longer than what they stand for by a `part` of their time; never less than `FLOOR`.

    >>> round(limit_of(1.0, 0.05), 4), round(limit_of(0.5, 0.05), 4), limit_of(0.1, 0.05)
    (0.0526, 0.0256, 0.01)
    """
    return max(FLOOR, 1.0 / (1.0 - min(1.0, share * part)) - 1.0) if share * part < 1.0 else float("inf")


def seconds_needed(original: Load, made: Load, sizes: int = 1, *, crowded: float = 1.0) -> float:
    """The least that `measure_gain` takes, by what loading and a run of both took when they were compared.

    `crowded` is how many times as long as alone those runs were.

    >>> original, made = Load("original", 0.8, 0, 0.1), Load("with library", 0.1, 0, 0.05)
    >>> round(seconds_needed(original, made), 2), round(seconds_needed(original, made, crowded=2.0), 2)
    (2.5, 1.95)
    """
    runs = 2 * original.run_seconds + FEWEST * (original.run_seconds + made.run_seconds)
    return _START + original.seconds + made.seconds + sizes * runs / crowded


def measure_gain(
    original: Path,
    made: Path,
    *,
    library: Path,
    kernels: Mapping[str, Sequence[str]],
    custom_libraries: Sequence[str | Path] = (),
    sizes: Sequence[Mapping[str, int]] = ({},),
    inputs: str | None = None,
    seed: int = 0,
    threads: int = 0,
    seconds: float = 3.0,
    time_limit: float | None = None,
    memory_limit: int | None = None,
) -> Gained:
    """Run both models in turns, at each of these sizes, for so many seconds in all, the start of a process included.

    `kernels` are the nodes of the build that run in the library, and of each the names of original nodes and values
    that it stands for. Kernels that seem to take longer than those are run as function bodies in turns with the build.

    Raises DeviceError when a model does not run, or takes so long that nothing would be known, and BudgetError.
    """
    request = {
        "original": str(original.absolute()),
        "made": str(made.absolute()),
        "libraries": [str(library.absolute())],
        "custom": [str(Path(each).absolute()) for each in custom_libraries],
        "kernels": {name: list(known) for name, known in kernels.items()},
        "sizes": [dict(each) for each in sizes],
        "inputs": None if inputs is None else str(Path(inputs).absolute()),
        "seed": seed,
        "threads": threads or len(os.sched_getaffinity(0)),
        "seconds": max(0.5, seconds - _START),
    }
    found = persistent_child(_CHILD, request, stage="gain", time_limit=time_limit, memory_limit=memory_limit)
    return gained_of(found)


def gained_of(d: Mapping[str, Any]) -> Gained:
    """The value of which `d` holds the fields, as JSON has them."""
    sizes = tuple(
        AtSize({k: tuple(v) for k, v in s["shapes"].items()}, s["before_ms"], s["after_ms"]) for s in d["sizes"]
    )
    tried = tuple(Tried(**t | {"kernels": tuple(t["kernels"]), "ratio": Ratio(**t["ratio"])}) for t in d["tried"])
    return Gained(Ratio(**d["ratio"]), d["spread"], d["threads"], sizes, tried, tuple(d["slow"]))
