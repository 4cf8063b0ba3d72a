"""Networks before and after fusion: builds by the command line, latency in turns, load time, lower bounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.floor import by_kernel, floors
from benchmarks.machine import Limits
from models.networks import Network, network
from onnxfuse.measure.profile import ModelProfile, Profile, profile_models
from onnxfuse.runtime import process

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models" / "build"

_FAMILIES = ("bert", "gpt2", "mobilebert", "vit", "swin", "convnext", "resnet", "mobilenet", "segformer")
_DEMOS = ("bert", "resnet", "mobilenet")
_FULL = (
    "bert-base", "gpt2", "mobilebert", "vit-b-16", "swin-t", "convnext-t", "resnet-50", "mobilenet-v2", "segformer-b0",
)  # fmt: skip
_FORMS = ("", ".decomposed")
NETWORKS: dict[str, tuple[str, ...]] = {
    "tiny": (*(f"tiny-{name}{form}" for name in _FAMILIES for form in _FORMS), "tiny-bert.dynamic"),
    "demo": tuple(f"demo-{name}{form}" for name in _DEMOS for form in _FORMS),
    "nine": _FULL,
    "full": (*(f"{name}{form}" for name in _FULL for form in _FORMS), "bert-base.dynamic"),
}
DYNAMIC = ".dynamic"
ENGINES = ("runtime", "fused", "bodies", "unfused")  # in the order in which they are measured; see `latencies`
SPREAD = 0.03  # largest spread of an engine's repetitions
UNFUSED = ("--strategy", "none", "--min-group", "1")  # generated kernels, one operator each


@dataclass(frozen=True, slots=True)
class Effort:
    """The length of measurements. `seconds` are of runs of one engine; `loads` is how often each model is loaded.

    A measurement with a spread above SPREAD is repeated, at most `rounds` times in all.
    """

    threads: tuple[int, ...] = (2,)
    seconds: float = 5.0
    loads: int = 3
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Built:
    """A run of `onnxfuse optimize`: wall time of the command, memory of all its processes, and its result."""

    model: Path
    seconds: float
    peak_bytes: int
    result: Mapping[str, Any]

    @property
    def library(self) -> str:
        """The library of its kernels."""
        return str(self.result["output"]["library"])


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a network, what they are of, and the milliseconds of its nodes by number of threads."""

    row: dict[str, Any]
    built: Built
    node_ms: Mapping[int, Mapping[str, float]]


def model_of(name: str) -> Path:
    """The file of a network, built if it does not exist or its builder has changed."""
    done = process.run((sys.executable, "-m", "models", name, "--out", str(MODELS)), stage="bench", cwd=ROOT)
    if done.code:
        raise RuntimeError(f"{name}: {(done.err.strip() or done.out.strip()).splitlines()[-1]}")
    return MODELS / f"{name}.onnx"


def optimize(model: Path, out: Path, cache: Path, *flags: str) -> Built:
    """Build a model by the command line, keeping kernels that are slower, since they are to be measured.

    Raises RuntimeError where it fails or fuses nothing.
    """
    facts = out.with_suffix(".result.json")
    command = (
        sys.executable,
        "-m",
        "onnxfuse_cli",
        "optimize",
        str(model),
        str(out),
        "--overwrite",
        "--no-gain",
        *flags,
    )
    done = process.run((*command, "--cache-dir", str(cache), "--json-file", str(facts)), stage="bench")
    if done.code:
        raise RuntimeError(f"{model.name}: optimize ended with {done.code}: {done.err.strip().splitlines()[-1]}")
    result = json.loads(facts.read_text(encoding="utf-8"))
    if result["output"]["library"] is None:
        raise RuntimeError(f"{model.name}: nothing was fused")
    return Built(out, done.seconds, done.peak_bytes, result)


def inputs_of(name: str, folder: Path) -> Path:
    """A file with one set of inputs. A network with symbolic sizes gets those of its static version."""
    row: Network = network(name.removesuffix(DYNAMIC))
    path = folder / "inputs.npz"
    np.savez(path, allow_pickle=False, **row.sample())
    return path


def measure(name: str, folder: Path, effort: Effort, say: Callable[[str], None]) -> Measured:
    """All figures of a network except lower bounds. Builds are kept in `folder`, which must be empty."""
    model = model_of(name)
    inputs = inputs_of(name, folder)
    say(f"{name}: optimize, with an empty cache and again")
    cold = optimize(model, folder / "fused.onnx", folder / "cache")
    again = optimize(model, folder / "fused.onnx", folder / "cache")
    say(f"{name}: kernels of one operator each")
    unfused = optimize(model, folder / "unfused.onnx", folder / "cache", *UNFUSED)
    say(f"{name}: latency and load time of {len(ENGINES)} engines")
    row = {
        "network": name,
        "model_bytes": _bytes(model),
        "structure": structure(cold.result),
        "unfused": structure(unfused.result),
        "latency": [latencies(model, cold, unfused, inputs, count, effort) for count in effort.threads],
        "load_ms": load_times(model, cold, effort, inputs),
        "optimize": _cost(cold, again, _bytes(model)),
    }
    return Measured(row, cold, {count: node_times(cold, inputs, count) for count in effort.threads})


def _cost(cold: Built, again: Built, size: int) -> dict[str, Any]:
    """Seconds and memory of a build with an empty cache and of the next one; `size` is that of the model's files."""
    peak = max(cold.peak_bytes, again.peak_bytes)
    return {
        "cold_s": cold.seconds,
        "cached_s": again.seconds,
        "peak_bytes": peak,
        "memory_to_file": peak / size,
        "steps_s": dict(cold.result["seconds"]),
        "steps_cached_s": dict(again.result["seconds"]),
    }


def _bytes(model: Path) -> int:
    """Size of a model with its external data."""
    return sum(path.stat().st_size for path in (model, model.with_name(model.name + ".data")) if path.exists())


def structure(result: Mapping[str, Any]) -> dict[str, Any]:
    """Counts and the verdict of a build."""
    counts = ("nodes_before", "kernels", "distinct_kernels", "nodes_left", "phases", "phase_bytes")
    checked = result["verify"] or {}
    return {name: result[name] for name in counts} | {k: checked.get(k) for k in ("ok", "max_error", "limit")}


def latencies(model: Path, fused: Built, unfused: Built, inputs: Path, threads: int, effort: Effort) -> dict[str, Any]:
    """Milliseconds of ONNX Runtime on the original, of the result with and without its library, and of unfused kernels.

    `spread` is that of repetitions of the original; `speedup` are ratios of minima to the original's.
    """
    models = [model, fused.model, fused.model, unfused.model]
    libraries = [None, fused.library, None, unfused.library]
    profile, spreads = steady(models, libraries, inputs, threads, effort)
    times = dict(zip(ENGINES, (asdict(m.latency_ms) | {"runs": m.runs} for m in profile.models), strict=True))
    speedup = {name: times["runtime"]["min"] / ms["min"] for name, ms in times.items()}
    medians = {name: times["runtime"]["median"] / ms["median"] for name, ms in times.items()}
    facts = {"threads": threads, "ms": times, "speedup": speedup, "of_medians": medians}
    return facts | {"spread": profile.spread, "spreads": spreads}


def steady(
    models: Sequence[Path], libraries: Sequence[str | None], inputs: Path, threads: int, effort: Effort
) -> tuple[Profile, list[float]]:
    """The measurement with the least spread of the first model, out of as many as needed, and all spreads.

    The choice does not depend on the other models.
    """
    found: list[tuple[float, Profile]] = []
    while not found or (found[-1][0] > SPREAD and len(found) < effort.rounds):
        profile = profile_models(models, libraries=libraries, threads=threads, duration=effort.seconds, inputs=inputs)
        found.append((profile.spread or 0.0, profile))
    return min(found, key=lambda each: each[0])[1], [spread for spread, _ in found]


def load_times(model: Path, fused: Built, effort: Effort, inputs: Path) -> dict[str, float]:
    """Least milliseconds to open a session on a file in the page cache, by engine; a new process each time."""
    found: list[tuple[ModelProfile, ...]] = []
    for _ in range(effort.loads):
        profile = profile_models(
            [model, fused.model, fused.model],
            libraries=[None, fused.library, None],
            threads=effort.threads[0],
            repeats=1,
            warmup=1,
            inputs=inputs,
            a_a=False,
        )
        found.append(profile.models)
    return {name: min(row[i].load_ms for row in found) for i, name in enumerate(ENGINES[:3])}


def node_times(built: Built, inputs: Path, threads: int) -> dict[str, float]:
    """Milliseconds of each node of a build, as the runtime's profiler sees them."""
    profile = profile_models(
        [built.model], libraries=[built.library], threads=threads, repeats=1, inputs=inputs, a_a=False, per_op=True
    )
    return {op.name: op.time_ms for op in profile.models[0].ops}


def with_floors(measured: Measured, limits: Mapping[int, Limits]) -> dict[str, Any]:
    """The figures of a network with its floor at each number of threads, and the time of each kernel beside its own."""
    latency = [each | {"floor": _floor(measured, each, limits[each["threads"]])} for each in measured.row["latency"]]
    return {**measured.row, "latency": latency}


def beside(measured: Measured, name: str, figures: Any) -> Measured:
    """The same with more figures in its row."""
    return replace(measured, row={**measured.row, name: figures})


def _floor(measured: Measured, latency: Mapping[str, Any], limits: Limits) -> dict[str, Any] | None:
    """None where extents are symbols."""
    found = floors(measured.built.result["groups"], measured.built.model, limits)
    if found is None:
        return None
    times = measured.node_ms[limits.threads]
    names = {floor.name for floor in found}
    least = sum(floor.ms for floor in found)
    return {
        "ms": least,
        "compute_ms": sum(floor.compute_ms for floor in found),
        "memory_ms": sum(floor.memory_ms for floor in found),
        "gflop": sum(floor.flops for floor in found) / 1e9,
        "time_over_floor": latency["ms"]["fused"]["min"] / least,
        "left_ms": sum(ms for name, ms in times.items() if name not in names),
        "kernels": by_kernel(found, times),
    }


def symbolic(static: Path, dynamic: Path, effort: Effort) -> list[dict[str, Any]]:
    """The build with symbols beside the one without, on the same inputs; both are folders that `measure` filled."""
    models = [folder / "fused.onnx" for folder in (static, dynamic)]
    libraries = [str(folder / "libfused.so") for folder in (static, dynamic)]
    rows = []
    for threads in effort.threads:
        profile, _ = steady(models, libraries, static / "inputs.npz", threads, effort)
        first, second = (m.latency_ms for m in profile.models)
        rows.append({
            "threads": threads, "static": asdict(first), "dynamic": asdict(second), "spread": profile.spread,
            "dynamic_over_static": second.min / first.min, "of_medians": second.median / first.median,
        })  # fmt: skip
    return rows


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Networks that are there both without and with symbols."""
    return [
        (name.removesuffix(DYNAMIC), name)
        for name in names
        if name.endswith(DYNAMIC) and name.removesuffix(DYNAMIC) in names
    ]
