"""Latency of models: one process per engine, measured in turns, and the spread of the first engine against itself."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.measure import interleaving, ratios
from onnxfuse.measure.lifetimes import TimelineStep
from onnxfuse.measure.operations import Bodies, narrow, node_work, typed
from onnxfuse.measure.ratios import Ratio
from onnxfuse.runtime import feed_limits
from onnxfuse.runtime.attempts import persistent_child
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.provider import CPU, Provider, need_runtime

_CHILD = "onnxfuse.measure.profile_child"
LOOKS = 3  # interim analyses of an undecided comparison, each after twice as many turns as the one before


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of the milliseconds of a run."""

    min: float
    median: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """Median time of a node according to the runtime's profiler; `origin` are the original nodes that it replaces."""

    name: str
    op_type: str
    origin: tuple[str, ...]
    time_ms: float
    share: float  # of the sum over all nodes
    kernel: bool = False  # whether it is a kernel of an onnxfuse library
    bytes: int | None = None  # read and written; None where the runtime does not report it
    flops: int | None = None  # of the original nodes that it replaces; None if unknown
    narrow: bool = False  # whether it reads 8-bit integers or bfloat16, whose products have a higher peak than float32


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All nodes that call one kernel of a library."""

    kernel: str
    nodes: int
    time_ms: float  # of all of them
    share: float  # of the sum over all nodes of the model
    origin: tuple[str, ...]
    bytes: int | None = None
    flops: int | None = None
    narrow: bool = False  # as in OpTime


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a running model. `value_peak_bytes` is computed: the most bytes of values alive at once, each from
    its producer to its last reader; `steps` are the nodes of a run with the bytes alive then.
    """

    weight_bytes: int
    value_peak_bytes: int
    arena_bytes: int | None  # of the runtime's arena; None where the runtime does not report it
    steps: tuple[TimelineStep, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One node of one run: microseconds from the start of that run."""

    name: str
    op_type: str
    origin: tuple[str, ...]
    start_us: float
    duration_us: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The measurements of one model."""

    path: str
    library: str | None
    latency_ms: Latency
    load_ms: float
    runs: int
    turns: tuple[float, ...] = ()  # the least milliseconds of each turn
    ops: tuple[OpTime, ...] = ()
    events: tuple[Event, ...] = ()  # of one run, for a trace
    note: str = ""  # why its kernels did not run; empty if they did
    level: Ratio | None = None  # milliseconds of an undisturbed run
    peak_bytes: int = 0  # of its process after loading and one run, without clean pages of mapped files
    memory: MemoryUse | None = None  # None without `per_op`, or if the model is too large

    @property
    def kernels(self) -> tuple[KernelTime, ...]:
        """The kernels of the library that ran, slowest first."""
        found: dict[str, list[OpTime]] = {}
        for op in self.ops:
            if op.kernel:
                found.setdefault(op.op_type, []).append(op)
        made = [
            KernelTime(
                name, len(ops), sum(o.time_ms for o in ops), sum(o.share for o in ops),
                tuple(node for o in ops for node in o.origin),
                _total(o.bytes for o in ops), _total(o.flops for o in ops), any(o.narrow for o in ops),
            )
            for name, ops in found.items()
        ]  # fmt: skip
        return tuple(sorted(made, key=lambda k: (-k.time_ms, k.kernel)))


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum; None if any of them is unknown."""
    found = list(counts)
    return None if None in found else sum(each or 0 for each in found)


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of `profile_models`; see `ratios` for the statistics."""

    models: tuple[ModelProfile, ...]
    ratio: Ratio | None  # time of the first model over that of the last one; None for one model
    spread: float | None  # how far the ratio of the first model to itself is from 1; None without `a_a`
    threads: int
    inputs: dict[str, tuple[int, ...]]  # shapes
    host: dict[str, Any]
    slower: Ratio | None = None  # time of the last model over that of the first one, or over the baseline

    @property
    def speedup(self) -> float | None:
        """Time of the first model over that of the last one; None for one model."""
        return None if self.ratio is None else self.ratio.value

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document, without single turns and trace events."""
        fields = asdict(self)
        for each, model in zip(fields["models"], self.models, strict=True):
            del each["events"], each["turns"], each["level"]
            if each["memory"] is not None:
                del each["memory"]["steps"]
            each["level_ms"] = model.level and {"value": model.level.value, **_interval(model.level)}
            each["kernels"] = [asdict(kernel) for kernel in model.kernels]
        del fields["ratio"], fields["slower"]
        fields["speedup"] = self.speedup
        fields["interval"] = None if self.ratio is None else _interval(self.ratio)
        fields["statistic"] = ratios.STATISTIC
        fields["busy"] = self.busy
        return fields

    @property
    def busy(self) -> bool:
        """Whether the machine did other work during the measurement."""
        return any(model.level is not None and model.level.busy for model in self.models)


def _interval(found: Ratio) -> dict[str, float]:
    return {"low": found.low, "high": found.high}


def profile_models(
    paths: Sequence[str | Path],
    *,
    libraries: Sequence[str | Path | None] = (),
    custom_libraries: Sequence[str | Path] = (),
    disabled: Sequence[Sequence[str]] = (),
    threads: int = 0,
    warmup: int = 3,
    duration: float = 3.0,
    repeats: int | None = None,
    inputs: str | Path | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    a_a: bool = True,
    per_op: bool = False,
    time_limit: float | None = None,
    limit: float | None = None,
    baseline: Ratio | None = None,
    own: bool = False,
    provider: Provider = CPU,
) -> Profile:
    """Measure the models in turns (B A, A B, ...), each for `duration` seconds or, if given, for `repeats` runs.

    With a `limit` the measurement continues, up to four times as long, until it is decided whether the last model is
    slower than the first (or than the level of a `baseline`) by more than that share.

    `libraries` has the library of each model and `disabled` the kernels of each that run as function bodies;
    `custom_libraries` are for all models. `threads` 0 is one per core.
    `own`: with one thread, count the processor time of that thread instead of wall time.
    All models run in `provider` on the same inputs, generated for the first one; symbols that `dims` leaves open are 1
    (the batch: the first one in a first axis), 128, or 224 for images. `a_a` measures the first model twice, which
    gives the spread.

    Raises DeviceError when a model does not run, UsageError and ModelError for files that cannot be read.
    """
    need_runtime("profile")
    used = threads or len(os.sched_getaffinity(0))
    whole = [_absolute(path) for path in paths]
    owned = [None if own is None else _absolute(own) for own in (*libraries, *[None] * (len(paths) - len(libraries)))]
    without = [list(names) for names in (*disabled, *[()] * (len(paths) - len(disabled)))]
    custom = [_absolute(each) for each in custom_libraries]
    loads: list[dict[str, Any]] = [
        {"model": path, "libraries": [*([own] if own else []), *custom], "disabled": names}
        for path, own, names in zip(whole, owned, without, strict=True)
    ]
    question = _Question(len(paths), a_a, limit, baseline)
    with work_folder() as folder:
        values = str(Path(folder, "inputs.npz"))
        wish = {"inputs": None if inputs is None else _absolute(inputs), "seed": seed, "dims": dict(dims or {})}
        first = {"model": whole[0], "libraries": custom if provider.bound else loads[0]["libraries"]}
        shapes = _ask({"do": "inputs", **first, **wish, "models": whole, "out": values}, time_limit)
        run = {"do": "engine", "threads": used, "inputs": values, "own": own and used == 1}
        run |= {"provider": asdict(provider)}
        engines = [interleaving.Engine(_CHILD, {**run, **each}) for each in (*loads, *loads[:1] * a_a)]
        raced = interleaving.race(
            engines, Path(folder), warmup=warmup, duration=duration, repeats=repeats, time_limit=time_limit,
            enough=question.answered, looks=question.looks,
        )  # fmt: skip
        seen = [_node_times(each, used, values, warmup, time_limit) if per_op else _NO_NODE_TIMES for each in loads]
    models = tuple(
        ModelProfile(
            path, own, latency(each.times), each.facts["load_ms"], len(each.times), each.least,
            _ops(path, nodes["ops"], shapes), _events(nodes["events"]), each.facts["note"],
            question.level(each), each.facts["peak_bytes"], _memory(nodes["memory"]),
        )
        for path, own, each, nodes in zip(whole, owned, raced, seen, strict=False)
    )  # fmt: skip
    return Profile(
        models=models,
        ratio=question.ratio(raced),
        spread=question.spread(raced),
        threads=used,
        inputs={name: tuple(shape) for name, shape in shapes.items()},
        host=_host() | {"onnxruntime": raced[0].facts["runtime"]},
        slower=question.slower(raced),
    )


@dataclass(frozen=True, slots=True)
class _Question:
    """The comparison that a measurement is to decide: between `models` models, and the first one again with `a_a`."""

    models: int
    a_a: bool
    limit: float | None
    baseline: Ratio | None

    @property
    def looks(self) -> int:
        """The number of interim analyses, each with twice as many turns."""
        return LOOKS if self.limit is not None else 1

    def answered(self, raced: Sequence[interleaving.RaceResult]) -> bool:
        """Whether the comparison is decided."""
        found = self.slower(raced)
        return self.limit is None or found is None or ratios.verdict(found, self.limit) != ratios.INCONCLUSIVE

    def ratio(self, raced: Sequence[interleaving.RaceResult]) -> Ratio | None:
        """Time of the first model over that of the last one, widened by the spread of the first one."""
        if self.models < 2:
            return None
        found = ratios.ratio(raced[0].least, raced[self.models - 1].least, looks=self.looks)
        return found.widened(1.0 + (self.spread(raced) or 0.0))

    def spread(self, raced: Sequence[interleaving.RaceResult]) -> float | None:
        """How far the ratio of the first model to itself is from 1."""
        if not self.a_a:
            return None
        value = ratios.ratio(raced[0].least, raced[-1].least).value
        return max(value, 1.0 / value) - 1.0

    def level(self, raced: interleaving.RaceResult) -> Ratio:
        """Milliseconds of a run of one model."""
        return ratios.level(raced.least, looks=self.looks)

    def slower(self, raced: Sequence[interleaving.RaceResult]) -> Ratio | None:
        """Time of the last model over that of the baseline, else of the first model."""
        if self.baseline is not None:
            level = self.level(raced[self.models - 1])
            return ratios.quotient(level, self.baseline).widened(1.0 + (self.spread(raced) or 0.0))
        found = self.ratio(raced)
        return None if found is None else found.inverse


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())


def _ask(request: dict[str, Any], time_limit: float | None) -> Any:
    return persistent_child(_CHILD, request, stage="profile", time_limit=time_limit)


_NO_NODE_TIMES: Mapping[str, Any] = {"ops": (), "events": (), "memory": {}}  # without `per_op`


def _node_times(load: Mapping[str, Any], threads: int, values: str, warmup: int, time_limit: float | None) -> Any:
    """Times, trace and memory of the nodes of a model, measured by the child."""
    request = {"do": "ops", **load, "threads": threads, "inputs": values, "warmup": warmup, "repeats": 10}
    return _ask(request, time_limit)


def _ops(path: str, found: Sequence[Mapping[str, Any]], shapes: Mapping[str, Sequence[int]]) -> tuple[OpTime, ...]:
    """The nodes with their flops: for a kernel those of its function body, for others those of their original nodes.

    Where several nodes have the same origin, the flops count for the slowest one.
    """
    if not found:
        return ()
    counts, bodies = node_work(path, shapes), Bodies(feed_limits.skeleton(Path(path)).functions)
    taken = set[tuple[str, ...]]()
    made = []
    for each in sorted(found, key=lambda op: -float(op["time_ms"])):
        fields = {key: value for key, value in each.items() if key != "inputs"}
        origin = tuple(each["origin"])
        known = [counts.get(name) for name in origin]
        work = (
            bodies.work(each["op_type"], typed(each["inputs"])) if each["kernel"] else _total(known) if known else None
        )
        facts = {"origin": origin, "flops": 0 if origin in taken else work, "narrow": narrow(each["inputs"])}
        made.append(OpTime(**fields | facts))
        taken |= set() if each["kernel"] else {origin}
    return tuple(made)


def _memory(found: Mapping[str, Any]) -> MemoryUse | None:
    steps = {"steps": tuple(TimelineStep(**each) for each in found.get("steps", ()))}
    return MemoryUse(**{**found, **steps}) if found else None


def _events(found: Sequence[Mapping[str, Any]]) -> tuple[Event, ...]:
    return tuple(Event(**{**each, "origin": tuple(each["origin"])}) for each in found)


def latency(times: Sequence[float]) -> Latency:
    """Quantiles of the milliseconds of these runs."""
    ordered = sorted(times)
    p90, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.9, 0.99))
    return Latency(ordered[0], statistics.median(ordered), p90, p99)


def _host() -> dict[str, Any]:
    """A description of the machine for reports."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
