"""Latency of models side by side: one process per engine, run in turns, with the spread of an engine against itself."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse import process, turns
from onnxfuse.folders import work_folder

_CHILD = "onnxfuse.profile_child"


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one run."""

    min: float
    median: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class OpTime:
    """Median time of one node as the runtime's profiler saw it; `origin` are the original nodes that it stands for."""

    name: str
    op_type: str
    origin: tuple[str, ...]
    time_ms: float
    share: float  # of the sum over all nodes
    kernel: bool = False  # whether it ran in a library of ours


@dataclass(frozen=True, slots=True)
class KernelTime:
    """All nodes that share one kernel of a library."""

    kernel: str
    nodes: int
    time_ms: float  # of all of them
    share: float  # of the sum over all nodes of the model
    origin: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One node of one run, as it went by: microseconds from the start of that run."""

    name: str
    op_type: str
    origin: tuple[str, ...]
    start_us: float
    duration_us: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """What was measured of one model."""

    path: str
    library: str | None
    latency_ms: Latency
    load_ms: float
    runs: int
    ops: tuple[OpTime, ...] = ()
    events: tuple[Event, ...] = ()  # of one run, for a trace
    note: str = ""  # why its kernels did not run, where they did not

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
            )
            for name, ops in found.items()
        ]  # fmt: skip
        return tuple(sorted(made, key=lambda k: (-k.time_ms, k.kernel)))


@dataclass(frozen=True, slots=True)
class Profile:
    """All that was measured; ratios are of minima, the steadiest figure."""

    models: tuple[ModelProfile, ...]
    speedup: float | None  # the first model's minimum over the last one's; None for one model
    spread: float | None  # how far the first model against itself is from a ratio of 1; None when not asked for
    threads: int
    inputs: dict[str, tuple[int, ...]]  # shapes
    host: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document; the events of a trace are not in it."""
        fields = asdict(self)
        for each, model in zip(fields["models"], self.models, strict=True):
            del each["events"]
            each["kernels"] = [asdict(kernel) for kernel in model.kernels]
        return fields


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
) -> Profile:
    """Measure the models in turns (A B A B ...), each for `duration` seconds or, if given, for `repeats` runs.

    `libraries` are those of the models, in their order, and `disabled` the kernels of each that are run as function
    bodies; `custom_libraries` are for all. `threads` 0 is one per core.
    All run on the same inputs, which the first model must be able to take; symbols that `dims` leaves open are 1 (the
    first), 128, and 224 for images. `a_a` measures the first model twice, which gives the spread.

    Raises DeviceError when a model does not run, UsageError and ModelError for files that cannot be read.
    """
    used = threads or len(os.sched_getaffinity(0))
    owned = [*libraries, *[None] * (len(paths) - len(libraries))]
    pairs = [(_whole(path), None if own is None else _whole(own)) for path, own in zip(paths, owned, strict=True)]
    custom = [_whole(each) for each in custom_libraries]
    loads = [{"model": path, "libraries": [*([own] if own else []), *custom]} for path, own in pairs]
    with work_folder() as folder:
        values = str(Path(folder, "inputs.npz"))
        wish: dict[str, Any] = {
            "inputs": None if inputs is None else _whole(inputs),
            "seed": seed,
            "dims": dict(dims or {}),
        }
        wish["models"] = [path for path, _ in pairs]
        shapes = _ask({"do": "inputs", **loads[0], **wish, "out": values}, time_limit)
        run = {"do": "engine", "threads": used, "inputs": values}
        engines = [turns.Engine(_CHILD, {**run, **each}) for each in (*loads, *loads[:1] * a_a)]
        raced = turns.race(
            engines, Path(folder), warmup=warmup, duration=duration, repeats=repeats, time_limit=time_limit
        )
        seen = [_ops(each, used, values, warmup, time_limit) if per_op else ((), ()) for each in loads]
    models = tuple(
        ModelProfile(
            path, library, latency(each.times), each.facts["load_ms"], len(each.times), *nodes, each.facts["note"]
        )
        for (path, library), each, nodes in zip(pairs, raced, seen, strict=False)
    )
    return Profile(
        models=models,
        speedup=models[0].latency_ms.min / models[-1].latency_ms.min if len(models) > 1 else None,
        spread=abs(min(raced[0].times) / min(raced[-1].times) - 1.0) if a_a else None,
        threads=used,
        inputs={name: tuple(shape) for name, shape in shapes.items()},
        host=_host() | {"onnxruntime": raced[0].facts["runtime"]},
    )


def _whole(path: str | Path) -> str:
    return str(Path(path).absolute())


def _ask(request: dict[str, Any], time_limit: float | None) -> Any:
    return process.python_child(_CHILD, request, stage="profile", time_limit=time_limit)


def _ops(
    load: Mapping[str, Any], threads: int, values: str, warmup: int, time_limit: float | None
) -> tuple[tuple[OpTime, ...], tuple[Event, ...]]:
    request = {"do": "ops", **load, "threads": threads, "inputs": values, "warmup": warmup, "repeats": 10}
    found = _ask(request, time_limit)
    ops = tuple(OpTime(**each | {"origin": tuple(each["origin"])}) for each in found["ops"])
    return ops, tuple(Event(**each | {"origin": tuple(each["origin"])}) for each in found["events"])


def latency(times: Sequence[float]) -> Latency:
    """The figures of these runs."""
    ordered = sorted(times)
    p90, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.9, 0.99))
    return Latency(ordered[0], statistics.median(ordered), p90, p99)


def _host() -> dict[str, Any]:
    """What a reader needs to know of the machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return {
        "cpu": next(names, platform.processor()),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
