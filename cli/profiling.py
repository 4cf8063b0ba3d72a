"""The verb `profile`: latencies of one model, or of two in turns, at one or more sets of sizes, and by node."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfuse.build.cache import Cache, default_cache_dir, file_digest
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.errors import OnnxFuseError, UsageError
from onnxfuse.measure import machine as calibration
from onnxfuse.measure import ratios
from onnxfuse.measure.layers import layers_of, times_by_layer
from onnxfuse.measure.lifetimes import TimelineStep
from onnxfuse.measure.operations import rates
from onnxfuse.measure.profile import ModelProfile, Profile, profile_models
from onnxfuse.measure.ratios import INCONCLUSIVE, SLOWER, Ratio
from onnxfuse.report.document import parsed
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.provider import DEVICES, Provider, provider_of
from onnxfuse.runtime.session import metadata
from onnxfuse.target import targets_of

from .models import chosen_sizes, files, library_for, refuse_dims, refuse_unequal_inputs, sets_of, signals_of
from .profiled import lines_of, size_lines, time_of
from .progress import Progress
from .results import document
from .tracing import trace_of

__all__ = ["INCONCLUSIVE", "SLOWER", "ProfileResult", "profile"]


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """The result of `profile`; `verdict` and `said` are about --fail-if-slower; `trace` is one run of each model."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]
    verdict: str | None
    said: str
    trace: Mapping[str, Any]


def profile(at: Progress, models: Sequence[str], *, paged: bool, **values: Any) -> ProfileResult:
    """Measure one or two models in turns; with `paged` (a page is written), nodes as well."""
    gpu = values["target"] in DEVICES
    provider = provider_of(values["target"], "profile", graph=values["cuda_graph"])
    if gpu and (values["level"] != "model" or values["trace"]):
        raise UsageError("profile: on a GPU only whole models are measured", hint="leave out --level and --trace")
    if len(models) > 2:
        raise UsageError(f"profile: {len(models)} models are too many", hint="name one or two")
    if values["fail_if_slower"] is not None and values["baseline"] is None and len(models) == 1:
        raise UsageError("profile: --fail-if-slower has nothing to compare with", hint="name MODEL2 or --baseline")
    sizes = sets_of(values["dim"])
    with work_folder() as folder:
        paths = files("profile", models, folder)
        baseline = _baseline(values["baseline"], models, paths)
        refuse_unequal_inputs("profile", paths, models)
        refuse_dims("profile", paths[0], models[0], sizes[0], values["inputs"])
        signals = signals_of(paths[0], values["inputs"])
        looks = not gpu and (values["level"] != "model" or values["trace"] or paged)
        peaks = _peaks(at, values["threads"], values["cache_dir"]) if looks else None
        found = []
        for number, dims in enumerate(sizes):
            at.begin("measure")
            if len(sizes) > 1:
                at.part(number + 1, len(sizes))
            given, against = {**signals, **dims}, baseline and baseline[1]
            looked = looks and number == 0
            found.append(_measured(models, paths, given, against, values, provider, looks=looked))
        return _result(models, paths, sizes, found, peaks, baseline, values)


def _measured(
    models: Sequence[str],
    paths: Sequence[Path],
    dims: Mapping[str, int],
    baseline: Ratio | None,
    values: Mapping[str, Any],
    provider: Provider,
    *,
    looks: bool,
) -> Profile:
    libraries: list[Path | None] = [None] * len(paths)
    if not values["without_library"]:
        named = [None] * (len(paths) - 1) + [values["library"]]
        libraries = [library_for("profile", *each) for each in zip(paths, models, named, strict=True)]
    return profile_models(
        paths,
        libraries=libraries,
        custom_libraries=values["custom_ops_library"],
        threads=values["threads"],
        warmup=values["warmup"],
        duration=values["duration"],
        inputs=values["inputs"],
        seed=values["seed"],
        dims=dims,
        per_op=looks,
        time_limit=values["time_budget"],
        limit=values["fail_if_slower"],
        baseline=baseline,
        provider=provider,
    )


def _peaks(at: Progress, threads: int, cache_dir: str | None) -> dict[str, Any]:
    """The machine's peak with a number of threads: measured once by a benchmark kernel and cached; where that
    is impossible, that of its machine class.
    """
    target = targets_of(("native",))[0]
    cache = Cache(Path(cache_dir) if cache_dir else default_cache_dir())
    known = calibration.calibrated(target, cache)
    if known is None:
        at.begin("measure the machine's peaks, once")
        try:
            known = calibration.calibrate(target, find_toolchain(), cache)
        except OnnxFuseError:
            return {**target.peaks, "measured": False, "threads": threads or target.cores}
    used = min(threads, known.cores) or known.cores
    memory = known.bandwidth if used == 1 else max(known.memory_gbps, known.bandwidth)
    return {"gflops": known.gflops * used, "memory_gbps": memory, "measured": True, "threads": used}


def _result(
    models: Sequence[str],
    paths: Sequence[Path],
    sizes: Sequence[Mapping[str, int]],
    profiles: Sequence[Profile],
    peaks: Mapping[str, Any] | None,
    baseline: tuple[str, Ratio] | None,
    values: Mapping[str, Any],
) -> ProfileResult:
    """The result for the first set of sizes, with the times of others; the verdict is the worst of all."""
    found, limit = profiles[0], values["fail_if_slower"]
    words = [
        (ratios.verdict(each.slower, limit), each.slower)
        for each in profiles
        if each.slower is not None and limit is not None
    ]
    order = [SLOWER, INCONCLUSIVE]
    word, slower = min(words, key=lambda w: order.index(w[0]) if w[0] in order else len(order), default=(None, None))
    made = _document(models, paths, sizes, profiles, peaks)
    made |= {"baseline_ratio": found.slower.value if baseline is not None and found.slower else None, "verdict": word}
    open_sizes = chosen_sizes(paths[0], found.inputs, sizes[0], values["inputs"])
    lines = lines_of(made, found, values["level"], open_sizes)
    lines += size_lines(made["sizes"]) if len(sizes) > 1 else []
    if baseline is not None and found.slower is not None:
        said = f"{time_of(found.slower)} of the time of {baseline[0]} in {values['baseline']}"
        lines.append(f"baseline  {said}, provided that the machine is unchanged")
    said = ""
    if slower is not None and word is not None:
        said = f"{word}: {time_of(slower)} of the time, {1.0 + limit:.3g} is allowed"
        lines.append(f"verdict   {said}")
    return ProfileResult(document("profile", **made), tuple(lines), word, said, trace_of(found, models))


def _document(
    names: Sequence[str],
    paths: Sequence[Path],
    sizes: Sequence[Mapping[str, int]],
    profiles: Sequence[Profile],
    peaks: Mapping[str, Any] | None,
) -> dict[str, Any]:
    found = profiles[0]
    fields = found.to_json()
    del fields["host"]  # the document has its own
    for model, name, path in zip(fields["models"], names, paths, strict=True):
        model |= {"path": name, "sha256": file_digest(path)}
        low = _in_16_bits(path)
        for each in (*model["ops"], *model["kernels"]):
            narrow = each["narrow"] or (low and each.get("kernel", True) is not False)
            each |= rates(each["flops"], each["bytes"], each["time_ms"], peaks or {}, narrow=narrow)
    fields["peaks"] = peaks
    fields["sizes"] = [_at_size(names, dims, each) for dims, each in zip(sizes, profiles, strict=True)]
    names_of = layers_of(paths[0]) if peaks is not None else {}
    fields["layers"] = _layers(names_of, found)
    fields["refusals"] = [
        {**each, "layer": next((names_of[n] for n in each["nodes"] if names_of.get(n)), "")}
        for each in (_refusals(paths[-1]) if peaks is not None else [])
    ]
    fields["drawing"] = {"steps": [[[s.start_ms, s.bytes, s.name] for s in _steps(m)] for m in found.models]}
    return fields


def _steps(model: ModelProfile) -> Sequence[TimelineStep]:
    return model.memory.steps if model.memory is not None else ()


def _at_size(names: Sequence[str], dims: Mapping[str, int], found: Profile) -> dict[str, Any]:
    """The times at one set of sizes."""
    latencies = [
        {"path": name, "min_ms": m.latency_ms.min, "median_ms": m.latency_ms.median}
        for name, m in zip(names, found.models, strict=True)
    ]
    between = None if found.ratio is None else {"low": found.ratio.low, "high": found.ratio.high}
    shapes = {name: list(shape) for name, shape in found.inputs.items()}
    ratio = found.speedup if found.speedup is None or math.isfinite(found.speedup) else None
    return {"dims": dict(dims), "inputs": shapes, "models": latencies, "speedup": ratio, "interval": between}


def _layers(names: Mapping[str, str], found: Profile) -> list[dict[str, Any]]:
    """Milliseconds of each layer in each model, in the order of the first.

    If names have no layers, each node of the last model counts as one.
    """
    if not any(model.ops for model in found.models):
        return []
    names = names or {origin: op.name for op in reversed(found.models[-1].ops) for origin in (*op.origin, op.name)}
    times = [times_by_layer(model.ops, names) for model in found.models]
    listed = [layer for layer in dict.fromkeys(names.values()) if any(layer in each for each in times)]
    rest = [""] if names and any("" in each for each in times) and "" not in listed else []
    return [{"layer": layer, "time_ms": [each.get(layer, 0.0) for each in times]} for layer in (*listed, *rest)]


def _refusals(path: Path) -> list[Any]:
    """Why nodes of an output model stay with the runtime, from its manifest; none without a manifest."""
    with suppress(TypeError):
        return list(_manifest(path).get("refusals", []))
    return []


def _in_16_bits(path: Path) -> bool:
    """Whether the kernels of an output model compute float32 products in 16 bits (--precision), by its manifest."""
    build = _manifest(path).get("build", {})
    return isinstance(build, dict) and build.get("precision", "fp32") != "fp32"


def _manifest(path: Path) -> dict[str, Any]:
    """The manifest of an output model; empty if there is none that can be read."""
    with suppress(OSError, ValueError):
        named = metadata(path).get("onnxfuse.manifest", "")
        found = json.loads((path.parent / Path(named).name).read_text(encoding="utf-8")) if named else {}
        return found if isinstance(found, dict) else {}
    return {}


def _baseline(name: str | None, models: Sequence[str], paths: Sequence[Path]) -> tuple[str, Ratio] | None:
    """The time of the last model in an earlier result, or its minimum if nothing else is known, and its name there.

    It is the model with the same bytes, else the one of the same name, else the only one. Raises UsageError.
    """
    if name is None:
        return None
    try:
        found = parsed(Path(name).read_text(encoding="utf-8"))["models"]
        timed = [(str(model["path"]), str(model.get("sha256")), _level(model)) for model in found]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(f"profile: {name} is not a result of profile --json", hint="--json-file writes one") from None
    digest = file_digest(paths[-1])
    same = [each for each in timed if each[1] == digest] or [each for each in timed if each[0] == models[-1]]
    chosen = same or timed
    if len(chosen) > 1 and not same:
        known = ", ".join(path for path, _, _ in timed)
        raise UsageError(
            f"profile: {models[-1]} is none of the models of {name}: {known}", hint="name one of them last"
        )
    return chosen[-1][0], chosen[-1][2]


def _level(model: Mapping[str, Any]) -> Ratio:
    """The time of a model of a document. Raises ValueError and others for what is none."""
    level = model.get("level_ms") or dict.fromkeys(("value", "low", "high"), model["latency_ms"]["min"])
    high = math.inf if level["high"] is None else float(level["high"])  # measured on a busy machine: no upper bound
    value, low = (float(level[key]) for key in ("value", "low"))
    if not (0.0 <= low <= value <= high and value > 0.0):
        raise ValueError
    return Ratio(value, low, high, 0)
