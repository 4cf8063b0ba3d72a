"""The child process of a gain measurement: runs original and build in one process, in turns.

One process starts faster than three. Threads of the sessions do not spin between runs, so that sessions do not disturb
each other. The runtime's profiler knows when a node has launched its kernels, not when these have ended: nodes of a GPU
are timed in a process in which each launch is waited for.
"""

from __future__ import annotations

import json
import math
import os
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

from onnxfuse.errors import DeviceError
from onnxfuse.measure import interleaving, ratios
from onnxfuse.measure.gain import FEWEST, LOST, AtSize, GainResult, KernelTrial
from onnxfuse.measure.profile_child import KERNEL_TIME, typical_inputs
from onnxfuse.runtime import engine, entries, feed_limits, process
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.graphs import all_nodes
from onnxfuse.runtime.provider import Provider

LONG = interleaving.LONG_MS * 1e-3
PROFILED = 3  # runs of each model at each size with the profiler
PRECISE = 0.005  # half-width of a confidence interval at which measuring stops
MOST = 400  # rounds of turns
ROUNDS_OF_A_TRIAL = 8  # a trial begins only if there is time for so many
MOST_TRIED = 6
NOTABLE = 0.005  # apparent losses below this share of a model's time are ignored

BLOCKING = "CUDA_LAUNCH_BLOCKING"  # the driver's variable by which each launch is waited for

Call = Callable[[], object]
Nodes = list[tuple[str, float]]  # of one run, in the order in which they ran: names and microseconds


@dataclass(slots=True)
class Opened:
    """A session, the ids of its worker threads, the seconds it took to open, and the calls to be timed."""

    session: ort.InferenceSession
    workers: tuple[int, ...]
    seconds: float
    provider: Provider
    _calls: list[Call] = field(default_factory=list)

    def calls(self, feeds: Sequence[engine.Feeds]) -> list[Call]:
        """The call to be timed, for each size: made once, as each may be captured as a graph."""
        if not self._calls:
            self._calls = [engine.prepared(self.session, each, self.provider, at) for at, each in enumerate(feeds)]
        return self._calls

    def uncaptured(self, feeds: Sequence[engine.Feeds]) -> list[Call]:
        """The same node by node."""
        return [engine.prepared(self.session, each, self.provider.uncaptured) for each in feeds]


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Answer a request of `gain.py`."""
    if request["do"] == "nodes":
        os.environ[BLOCKING] = "1"  # read when the device is opened
    with work_folder() as folder:
        profiled = request.get("nodes") is None
        before = _opened(request, "original", folder if profiled else "")
        begin = time.monotonic()
        feeds = [_typical(before, request, dims) for dims in request["sizes"]]
        until = min(request["until"] + (time.monotonic() - begin), request["last"] or math.inf)
        runs = _in_time(before.uncaptured(feeds), until)
        after = _opened(request, "made", folder if profiled else "")
        nodes = request["nodes"] if not profiled else [_profiled(each, feeds, runs) for each in (after, before)]
    return {"nodes": nodes} if request["do"] == "nodes" else _raced(request, before, after, feeds, nodes, until)


def _raced(
    request: Mapping[str, Any],
    before: Opened,
    after: Opened,
    feeds: Sequence[engine.Feeds],
    nodes: Sequence[list[Nodes]],
    until: float,
) -> dict[str, Any]:
    """The gain, and kernels that seem slow by the times of nodes, in turns until the time is up."""
    ops, (own, others) = _kernel_ops(request["made"]), nodes
    compared = without_waits(own, others, ops) if before.provider.bound else (own, others)
    suspects, shares = seem_slow(*compared, request["kernels"], ops)
    half = (time.monotonic() + until) / 2 if suspects else until
    times = _timed_in_turns([before, after], feeds, half)
    tried = _timed_without(request, after, feeds, suspects, shares, until)
    seen = _by_owner(own[: len(own) // len(feeds)], {name: name for name in ops})
    found = _gained(times, feeds, tried, suspects, request["threads"])
    return asdict(replace(found, nodes={name: us * 1e-3 for name, us in seen.items() if name}))


def _typical(opened: Opened, request: Mapping[str, Any], dims: Mapping[str, int]) -> engine.Feeds:
    """Inputs of one of the sizes."""
    wish = {key: request[key] for key in ("inputs", "seed")}
    return typical_inputs(opened.session, request["original"], **wish, dims=dims, provider=opened.provider.uncaptured)


def _opened(request: Mapping[str, Any], which: str, folder: str | Path = "", disabled: Sequence[str] = ()) -> Opened:
    """A session of one of the two models; with a `folder`, the runtime's profiler writes there."""
    place = Provider(**request["provider"])
    libraries = [*(request["libraries"] if which == "made" else ()), *request["custom"]]
    options = engine.options(libraries=libraries, threads=request["threads"], disabled=disabled)
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if folder:
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, which)
    begin = time.monotonic()
    session, workers = interleaving.workers_of(lambda: engine.open_session(request[which], options, place))
    return Opened(session, workers, time.monotonic() - begin, place)


def _in_time(calls: Sequence[Call], until: float) -> int:
    """How many profiled runs of each model fit. Raises DeviceError where not even the fewest interleaved runs fit.

    The shorter of two runs is the estimate: the first one also allocates memory.
    """
    seconds, left = math.inf, 0.0
    for _ in range(2):
        seconds = min(seconds, sum(map(_once, calls)) * 1e-3)
        left = until - time.monotonic()
        for profiled in (PROFILED, 1, 0) if seconds < LONG * len(calls) else (1, 0):
            if 2 * seconds * (profiled + FEWEST) < left:
                return profiled
    said = f"gain: a run of both models takes {seconds:.2g} s, and {max(left, 0.0):.2g} s are left for the measurement"
    raise DeviceError(said, hint="--gain takes the time")


# node by node ---------------------------------------------------------------------------------------------------------


def _profiled(opened: Opened, feeds: Sequence[engine.Feeds], runs: int) -> list[Nodes]:
    """The nodes of `runs` runs (0 allowed) at each size; this ends the profiler, not the session."""
    for call in opened.uncaptured(feeds):
        for _ in range(runs):
            call()
    events = json.loads(Path(opened.session.end_profiling()).read_text(encoding="utf-8"))
    starts = sorted(each["ts"] for each in events if each.get("name") == "model_run")
    found: list[Nodes] = [[] for _ in starts]
    for each in sorted((e for e in events if e.get("cat") == "Node"), key=lambda e: float(e["ts"])):
        if each["name"].endswith(KERNEL_TIME):
            at = bisect_right(starts, each["ts"]) - 1
            found[at].append((each["name"].removesuffix(KERNEL_TIME), float(each["dur"])))
    return found[-runs * len(feeds) :] if runs else []


def without_waits(
    made: Sequence[Nodes], original: Sequence[Nodes], ops: Mapping[str, str]
) -> tuple[list[Nodes], list[Nodes]]:
    """The times of both without what each launch takes that is waited for: those of the shortest node of the library.

    Otherwise nodes of several launches seem to take as long as one slow kernel in their place. Of a node that launches
    several kernels one wait is taken off, and nothing is left of one that launches none.
    """
    wait = min((us for run in made for name, us in run if name in ops), default=0.0)

    def rest(runs: Sequence[Nodes]) -> list[Nodes]:
        return [[(name, max(us - wait, 0.0)) for name, us in run] for run in runs]

    return rest(made), rest(original)


def seem_slow(
    made: Sequence[Nodes], original: Sequence[Nodes], kernels: Mapping[str, Sequence[str]], ops: Mapping[str, str]
) -> tuple[list[str], dict[str, float]]:
    """Kernels slower than the nodes they replace, the largest loss first, and the share of the time of each kernel.

    `kernels` maps nodes of the build to the names of original nodes and values that they replace, `ops` maps them to
    their kernels. Only clear losses are listed; trials without these kernels decide.
    """
    stands = {name: ops[node] for node, names in kernels.items() if node in ops for name in names}
    mine = _by_owner(made, ops)
    theirs = _by_owner(original, stands)
    total = sum(mine.values()) or 1.0
    lost = {op: mine[op] - theirs.get(op, 0.0) for op in dict.fromkeys(ops.values()) if op in mine}
    slow = [op for op, us in lost.items() if us > NOTABLE * total and us > LOST * mine[op]]
    return sorted(slow, key=lambda op: (-lost[op], op)), {op: us / total for op, us in mine.items()}


def _by_owner(runs: Sequence[Nodes], owners: Mapping[str, str]) -> dict[str, float]:
    """Microseconds of each owner's nodes: the least time of each node over all runs, summed. Others belong to "".

    The runtime names the nodes it creates after a node or value, with a suffix. The layout conversions that it inserts
    have no such name; they count for the node that they prepare or follow.
    """
    least: dict[tuple[str, int], float] = {}
    owned: dict[tuple[str, int], str] = {}
    for run in runs:
        count: defaultdict[str, int] = defaultdict(int)
        names = [_owner(name, owners) for name, _ in run]
        for at, (name, us) in enumerate(run):
            key = (name, count[name])
            count[name] += 1
            least[key] = min(us, least.get(key, math.inf))
            owned[key] = _owner_nearby(names, at, ahead="nput" in name)
    found: defaultdict[str, float] = defaultdict(float)
    for key, us in least.items():
        found[owned[key]] += us
    return dict(found)


def _owner(name: str, owners: Mapping[str, str]) -> str | None:
    """The owner of a node by its name, or by the name it was derived from; None for inserted layout conversions."""
    if name in owners:
        return owners[name]
    for cut in ("_nchwc", "/"):
        head = name.rpartition(cut)[0]
        while head:
            if head in owners:
                return owners[head]
            head = head.rpartition(cut)[0]
    return None if name.startswith(_HELPERS) else ""


_HELPERS = ("Reorder", "Transpose", "gemm_input_reshape", "gemm_output_reshape")


def _owner_nearby(names: Sequence[str | None], at: int, *, ahead: bool) -> str:
    """The owner of a node or, if it has none, of the nearest later (`ahead`) or earlier node that has one."""
    nearby = range(at, len(names)) if ahead else range(at, -1, -1)
    return next((found for i in nearby if (found := names[i]) is not None), "")


def _kernel_ops(model: str) -> dict[str, str]:
    """The operator type of each node that calls a kernel of the library, by node name."""
    proto = feed_limits.skeleton(Path(model))
    return {each.name: each.op_type for each in all_nodes(proto.graph) if each.domain.startswith(entries.DOMAIN)}


# in turns -------------------------------------------------------------------------------------------------------------


def _timed_in_turns(
    sides: Sequence[Opened], feeds: Sequence[engine.Feeds], until: float, rounds: int = MOST
) -> list[list[list[float]]]:
    """Least milliseconds of turns, by model and size, until time runs out or all ratios are precise enough."""
    calls = [each.calls(feeds) for each in sides]
    counts = [interleaving.runs_of_a_turn(max(map(_once, of_size))) for of_size in zip(*calls, strict=True)]
    times: list[list[list[float]]] = [[[] for _ in feeds] for _ in sides]
    with interleaving.CorePlacement() as placement:
        for number in range(rounds):
            if number >= FEWEST and (time.monotonic() > until or (number % 8 == 0 and _precise(times))):
                break
            for size, count in enumerate(counts):
                for side in interleaving.order_of_round(len(sides), number):
                    placement.take(sides[side].workers, number)
                    times[side][size].append(min(interleaving.times(calls[side][size], count)))
    return times


def _once(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def _precise(times: Sequence[Sequence[Sequence[float]]]) -> bool:
    """Whether the confidence intervals of all ratios to the first model are narrow enough."""
    first, *others = (_mean(side) for side in times)
    found = [ratios.ratio(first, other) for other in others]
    return all(math.log(each.high / max(each.low, 1e-9)) < 2 * PRECISE for each in found)


def _mean(side: Sequence[Sequence[float]]) -> list[float]:
    """The geometric mean over the sizes, for each turn."""
    return [math.exp(sum(map(math.log, turn)) / len(turn)) for turn in zip(*side, strict=True)]


def _timed_without(
    request: Mapping[str, Any],
    after: Opened,
    feeds: Sequence[engine.Feeds],
    suspects: Sequence[str],
    shares: Mapping[str, float],
    until: float,
) -> list[KernelTrial]:
    """Trials of the build without the suspects: without all of them and, while time remains, without each one."""
    sets = [tuple(suspects), *((op,) for op in suspects[: MOST_TRIED - 1] if len(suspects) > 1)]
    opened: list[Opened] = []
    for each in sets if suspects else []:
        left = until - time.monotonic() - (opened[-1].seconds if opened else 0.0)
        if opened and left < ROUNDS_OF_A_TRIAL * 2e-3 * (len(opened) + 2) * sum(_once(c) for c in after.calls(feeds)):
            break
        opened.append(_opened(request, "made", disabled=each))
    if not opened:
        return []
    times = [_mean(side) for side in _timed_in_turns([after, *opened], feeds, until)]
    return [
        KernelTrial(
            names, ratios.ratio(times[0], other), sum(shares.get(op, 0.0) for op in names), min(times[0]), min(other)
        )
        for names, other in zip(sets, times[1:], strict=False)
    ]


def _gained(
    times: Sequence[Sequence[Sequence[float]]],
    feeds: Sequence[engine.Feeds],
    tried: Sequence[KernelTrial],
    suspects: Sequence[str],
    threads: int,
) -> GainResult:
    before, after = (_mean(side) for side in times)
    again = ratios.ratio(before[::2], before[1::2]).value
    sizes = tuple(
        AtSize({name: tuple(value.shape) for name, value in each.items()}, min(times[0][at]), min(times[1][at]))
        for at, each in enumerate(feeds)
    )
    found = ratios.ratio(before, after)
    return GainResult(found, max(again, 1.0 / again) - 1.0, threads, sizes, tuple(tried), tuple(suspects))


if __name__ == "__main__":
    process.serve(main)
