"""The speedup of a build over the original, and the kernels that are slower: a short measurement in a child process."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from onnxfuse.measure import ratios
from onnxfuse.measure.ratios import Ratio
from onnxfuse.runtime.attempts import persistent_child
from onnxfuse.runtime.memory import LoadCost
from onnxfuse.runtime.provider import CPU, Provider

_CHILD = "onnxfuse.measure.gain_child"
_START = 0.1  # seconds to fork a process
_DEVICE_START = 0.8  # and for it to open a device with the libraries of its provider
LOST = 0.05  # kernels are dropped when they are slower than the nodes they replace by this share of their time
FEWEST = 6  # interleaved runs of each model that a result needs
FLOOR = 0.01  # smallest slowdown of the model that counts: two sessions of one model may differ by less
_PREPACKING = 2.0  # how much longer a session that prepacks weights takes to open: 0.48 and 1.0 s with 440 MB of them
CROWDED = 4.0  # how much longer a run may take on a loaded machine: factors of 2.7 to 4 were measured


@dataclass(frozen=True, slots=True)
class AtSize:
    """Least times of a run at one set of input shapes, in milliseconds."""

    shapes: Mapping[str, tuple[int, ...]]
    before_ms: float
    after_ms: float


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """A trial: the build with some kernels replaced by their function bodies, measured against the build itself.

    `ratio` is the time with these kernels over the time without them; `share` is their part of the build's time.
    """

    kernels: tuple[str, ...]
    ratio: Ratio
    share: float
    with_ms: float
    without_ms: float

    @property
    def loses(self) -> bool:
        """Whether the kernels are significantly slower than the nodes they replace."""
        return _slower(self.ratio, limit_of(self.share, LOST), self.with_ms / self.without_ms)

    @property
    def wins(self) -> bool:
        """Whether the build is significantly slower without them."""
        return ratios.verdict(self.ratio.inverse, 0.0) == ratios.SLOWER


@dataclass(frozen=True, slots=True)
class GainResult:
    """The time of the original over that of the build; the geometric mean over all measured sizes."""

    ratio: Ratio
    spread: float  # difference between two halves of the original's own turns, as a share
    threads: int
    sizes: tuple[AtSize, ...]
    tried: tuple[KernelTrial, ...] = ()
    slow: tuple[str, ...] = ()  # kernels slower than the nodes they replace by the node profile, the worst first
    nodes: Mapping[str, float] = field(default_factory=dict)  # ms of each node of the library, at the first sizes

    @property
    def loses(self) -> bool:
        """Whether the build is significantly slower than the original."""
        least = math.prod(each.after_ms / each.before_ms for each in self.sizes)
        return _slower(self.ratio.inverse, 1.0 / (1.0 - LOST) - 1.0, least)


def _slower(ratio: Ratio, limit: float, least: float) -> bool:
    """Whether a ratio is certainly above the limit. On a busy machine the ratio of the least times has to be above 1
    too: threads that wait for each other lose more to other work, which says nothing about an idle machine."""
    return ratios.verdict(ratio, limit) == ratios.SLOWER and (not ratio.busy or least > 1.0)


def limit_of(share: float, part: float) -> float:
    """The slowdown of a whole model at which kernels that take a `share` of its time are slower, by a `part` of their
    own time, than the nodes they replace; at least `FLOOR`.

    >>> round(limit_of(1.0, 0.05), 4), round(limit_of(0.5, 0.05), 4), limit_of(0.1, 0.05)
    (0.0526, 0.0256, 0.01)
    """
    return max(FLOOR, 1.0 / (1.0 - min(1.0, share * part)) - 1.0) if share * part < 1.0 else float("inf")


def seconds_needed(
    original: LoadCost, made: LoadCost, sizes: int = 1, *, crowded: float = 1.0, provider: Provider = CPU
) -> float:
    """The minimal seconds of `measure_gain`, from the seconds for loading and running both models during verification.

    `crowded` is the factor by which other work slowed those runs. On a device the original takes what the build does:
    what was measured of it is of the CPU.

    >>> original, made = LoadCost("original", 0.8, 0, 0.1), LoadCost("with library", 0.1, 0, 0.05)
    >>> round(seconds_needed(original, made), 2), round(seconds_needed(original, made, crowded=2.0), 2)
    (3.0, 2.45)
    """
    if provider.bound:
        return _DEVICE_START + 2 * made.seconds + sizes * (2 + 2 * FEWEST) * made.run_seconds / crowded
    runs = 2 * original.run_seconds + FEWEST * (original.run_seconds + made.run_seconds)
    return _START + _PREPACKING * (original.seconds + made.seconds) + sizes * runs / crowded


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
    provider: Provider = CPU,
    nodes: bool = True,
) -> GainResult:
    """Run both models in turns, at each of these sizes, for `seconds` in all, including the start of the process.

    What it takes to find inputs is added, up to half of `time_limit`: a network of few valid lengths runs for less.

    Both run in `provider`. Where that is a device's, another process times `nodes` first, while each launch is waited
    for, which models in turns must not be; without, no kernel is suspected.

    `kernels` maps each node of the build that runs in the library to the names of the original nodes and values that it
    replaces. Kernels that seem slower than those are also measured as function bodies, in turns with the build.

    Raises DeviceError when a model does not run or is too slow to be measured in time, and BudgetError.
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
        "until": time.monotonic() + max(0.5, seconds - _START),
        "last": None if time_limit is None else time.monotonic() + time_limit / 2,
        "provider": asdict(provider),
    }
    ask = partial(persistent_child, _CHILD, stage="gain", time_limit=time_limit, memory_limit=memory_limit)
    timed: list[Any] | None = None
    if provider.bound:
        apart = {**request, "do": "nodes", "provider": asdict(provider.ungraphed)}
        timed = ask(apart)["nodes"] if nodes else [[], []]
    return gained_of(ask({**request, "do": "turns", "nodes": timed}))


def gained_of(d: Mapping[str, Any]) -> GainResult:
    """The value from its JSON form."""
    sizes = tuple(
        AtSize({k: tuple(v) for k, v in s["shapes"].items()}, s["before_ms"], s["after_ms"]) for s in d["sizes"]
    )
    tried = tuple(KernelTrial(**t | {"kernels": tuple(t["kernels"]), "ratio": Ratio(**t["ratio"])}) for t in d["tried"])
    return GainResult(Ratio(**d["ratio"]), d["spread"], d["threads"], sizes, tried, tuple(d["slow"]), d["nodes"])
