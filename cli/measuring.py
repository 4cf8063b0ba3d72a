"""The verbs that run models: `profile` and `verify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.backends import TARGETS
from onnxfuse.build.cache import file_digest
from onnxfuse.errors import UsageError
from onnxfuse.load.dims import MOST, is_extent
from onnxfuse.measure import ratios
from onnxfuse.measure.profile import ModelProfile, Profile, profile_models
from onnxfuse.measure.ratios import INCONCLUSIVE, SLOWER, Ratio
from onnxfuse.pipeline.meter import size_of
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.report.document import parsed
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.session import library_of, metadata
from onnxfuse.target import unable
from onnxfuse.verify import GroupResult, verify_groups, verify_models
from onnxfuse.verify.verdicts import Verdict

from . import show
from .results import document
from .show import Screen, milliseconds, table
from .tracing import trace_of

__all__ = ["INCONCLUSIVE", "SLOWER", "Measured", "Verified", "dims_of", "profile", "verify"]
_OPS_SHOWN = 25


@dataclass(frozen=True, slots=True)
class Measured:
    """What `profile` found; `verdict` is on a limit that was given, in words too; `trace` is one run of each model."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]
    verdict: str | None
    said: str
    trace: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found; `ok` is None when the models could not be compared."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]
    ok: bool | None
    message: str


def dims_of(texts: Sequence[str]) -> dict[str, int]:
    """Values of symbolic dimensions from `batch=8`. Raises UsageError."""
    found: dict[str, int] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not is_extent(value):
            hint = f"for example --dim batch=8; N is {MOST} at most"
            raise UsageError(f"usage: --dim {text} is not NAME=N", hint=hint)
        found[name] = int(value)
    return found


def profile(screen: Screen, models: Sequence[str], **values: Any) -> Measured:
    """Latencies of one or two models, measured in turns."""
    if len(models) > 2:
        raise UsageError(f"profile: {len(models)} models are too many", hint="name one or two")
    limit, baseline = values["fail_if_slower"], _baseline(values["baseline"])
    if limit is not None and baseline is None and len(models) == 1:
        raise UsageError("profile: --fail-if-slower has nothing to compare with", hint="name MODEL2 or --baseline")
    with work_folder() as folder:
        return _profiled(screen, models, _files("profile", models, folder), baseline, values)


def _profiled(
    screen: Screen, models: Sequence[str], paths: Sequence[Path], baseline: Ratio | None, values: Mapping[str, Any]
) -> Measured:
    libraries: list[Path | None] = [None] * len(paths)
    if not values["without_library"]:
        named = [None] * (len(paths) - 1) + [values["library"]]
        libraries = [library_of(path, name) for path, name in zip(paths, named, strict=True)]
    screen.detail(f"profile   {' '.join(models)} ...")
    found = profile_models(
        paths,
        libraries=libraries,
        custom_libraries=values["custom_ops_library"],
        threads=values["threads"],
        warmup=values["warmup"],
        duration=values["duration"],
        inputs=values["inputs"],
        seed=values["seed"],
        dims=dims_of(values["dim"]),
        per_op=values["level"] != "model" or values["trace"],
        time_limit=values["time_budget"],
        limit=values["fail_if_slower"],
        baseline=baseline,
    )
    limit = values["fail_if_slower"]
    word = ratios.verdict(found.slower, limit) if found.slower is not None and limit is not None else None
    ratio = found.slower if baseline is not None else None
    lines = _profile_lines(found, models, ratio, values["level"])
    said = ""
    if found.slower is not None and word is not None:
        said = f"{word}: {_time(found.slower)} of the time, {1.0 + limit:.3g} is allowed"
        lines.append(f"verdict   {said}")
    made = _profile_document(found, models, paths, ratio, word)
    return Measured(made, tuple(lines), word, said, trace_of(found, models))


def _time(found: Ratio) -> str:
    """A ratio of times with its interval."""
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _files(verb: str, names: Sequence[str], folder: Path) -> list[Path]:
    """The models as files; `-` is standard input, kept in `folder`. Raises UsageError for one that is not there."""
    if list(names).count(STREAM) > 1:
        raise UsageError(f"{verb}: standard input holds one model only", hint="name the other one")
    paths = [Path(folder, "stdin.onnx") if name == STREAM else Path(name) for name in names]
    for name, path in zip(names, paths, strict=True):
        if name == STREAM:
            path.write_bytes(show.given())
        elif not path.is_file():
            raise UsageError(f"{verb}: there is no file {name}", hint="check the spelling")
    return paths


def _baseline(path: str | None) -> Ratio | None:
    """How long the last model of an earlier result took; where only its least time is known, exactly that."""
    if path is None:
        return None
    try:
        model = parsed(Path(path).read_text(encoding="utf-8"))["models"][-1]
        level = model.get("level_ms") or dict.fromkeys(("value", "low", "high"), model["latency_ms"]["min"])
        value, low, high = (float(level[key]) for key in ("value", "low", "high"))
        if not 0.0 < low <= value <= high:
            raise ValueError
        return Ratio(value, low, high, 0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UsageError(f"profile: {path} is no result of profile --json", hint="make one with --json-file") from None


def _profile_document(
    found: Profile, names: Sequence[str], paths: Sequence[Path], ratio: Ratio | None, word: str | None
) -> dict[str, Any]:
    fields = found.to_json()
    for model, name, path in zip(fields["models"], names, paths, strict=True):
        model |= {"path": name, "sha256": file_digest(path)}
    del fields["host"]  # the document has one of its own
    return document("profile", **fields, baseline_ratio=ratio.value if ratio is not None else None, verdict=word)


def _profile_lines(found: Profile, names: Sequence[str], ratio: Ratio | None, level: str) -> list[str]:
    rows: list[tuple[str, ...]] = [("model", "min", "median", "p90", "p99", "load", "runs")]
    for name, model in zip(names, found.models, strict=True):
        each = model.latency_ms
        times = (each.min, each.median, each.p90, each.p99, model.load_ms)
        rows.append((name, *map(milliseconds, times), str(model.runs)))
    lines = list(table(rows, right=(1, 2, 3, 4, 5, 6)))
    spread = f"; the first against itself {found.spread * 100:.1f} %" if found.spread is not None else ""
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in found.inputs.items())
    lines.append(f"milliseconds; {found.threads} threads; {shapes}")
    lines += [f"note      {name}: {m.note}" for name, m in zip(names, found.models, strict=True) if m.note]
    if found.ratio is not None:
        between = f"95 %: {found.ratio.low:.2f}x to {found.ratio.high:.2f}x"
        lines.append(f"speedup   {found.ratio.value:.2f}x ({between}{spread})")
        lines.append(f"          {ratios.STATISTIC}")
    if ratio is not None:
        lines.append(f"baseline  {_time(ratio)} of its time, as far as nothing else changed on the machine")
    if found.busy:
        lines.append("note      the machine is busy with other work: what is measured is less sure")
    for name, model in zip(names, found.models, strict=True):
        if level != "model":
            lines += ["", name, *(_op_lines(model) if level == "op" else _kernel_lines(model))]
    return lines


def _kernel_lines(model: ModelProfile) -> list[str]:
    """The kernels of the library, and what all other nodes took together."""
    others = [op for op in model.ops if not op.kernel]
    rows = [("ms", "share", "nodes", "kernel", "stands for")]
    for each in model.kernels[:_OPS_SHOWN]:
        rows.append((*_cost(each.time_ms, each.share), str(each.nodes), each.kernel, _origin(each.origin)))
    if hidden := model.kernels[_OPS_SHOWN:]:
        time, share, nodes = (sum(each) for each in zip(*((k.time_ms, k.share, k.nodes) for k in hidden), strict=True))
        rows.append((*_cost(time, share), str(nodes), f"{len(hidden)} more kernels", ""))
    if others:
        cost = _cost(sum(op.time_ms for op in others), sum(op.share for op in others))
        rows.append((*cost, str(len(others)), "ONNX Runtime's own", ""))
    return list(table(rows, right=(0, 1, 2)))


def _cost(time_ms: float, share: float) -> tuple[str, str]:
    return milliseconds(time_ms), f"{share * 100:.1f} %"


def _origin(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _op_lines(model: ModelProfile) -> list[str]:
    rows = [("ms", "share", "operator", "node", "stands for")]
    for op in sorted(model.ops, key=lambda op: -op.time_ms)[:_OPS_SHOWN]:
        rows.append((*_cost(op.time_ms, op.share), op.op_type, op.name, _origin(op.origin)))
    hidden = len(model.ops) - _OPS_SHOWN
    return [*table(rows, right=(0, 1)), *([f"and {hidden} more"] if hidden > 0 else [])]


def verify(screen: Screen, a: str, b: str, **values: Any) -> Verified:
    """The verdict on two models."""
    with work_folder() as folder:
        return _verified((a, b), _files("verify", (a, b), folder), values)


def _verified(names: Sequence[str], paths: Sequence[Path], values: Mapping[str, Any]) -> Verified:
    library = library_of(paths[1], values["library"])
    named = metadata(paths[1]).get("onnxfuse.targets", "").split() if library is not None else []
    isas = [name.split("+")[0] for name in named if not unable([name], TARGETS)]
    library = library if isas or not named else None
    settings = {
        "isas": isas,
        "inputs": values["inputs"],
        "seed": values["seed"],
        "dims": dims_of(values["dim"]),
        "custom_libraries": values["custom_ops_library"],
        "time_limit": values["time_budget"],
        "memory_limit": size_of(values["memory_budget"]) if values["memory_budget"] else None,
    }
    verdict = verify_models(paths[0], paths[1], library=library, rtol=values["rtol"], atol=values["atol"], **settings)
    groups: tuple[GroupResult, ...] = ()
    if (values["groups"] or verdict.told) and library is not None:
        groups = verify_groups(paths[1], library, **settings)
    wrong = [g for g in groups if g.ok is False]
    ok, message = verdict.ok, verdict.message
    if ok and named and not isas:
        ok, message = None, unable(named, TARGETS)
    if ok is not False and wrong:
        ok, message = False, f"{len(wrong)} fused nodes differ from their bodies: {wrong[0].name}: {wrong[0].message}"
    inputs = [{"path": name, "sha256": file_digest(path)} for name, path in zip(names, paths, strict=True)]
    fields = verdict.to_json() | {"ok": ok, "message": message, "groups": [asdict(g) for g in groups]}
    made = document("verify", models=inputs, targets=isas, **fields)
    left = [f"not verified: {unable(named, TARGETS)}"] if isas and unable(named, TARGETS) else []
    return Verified(made, (*_verdict_lines(verdict, groups), *left), ok, message)


def _verdict_lines(verdict: Verdict, groups: Sequence[GroupResult]) -> list[str]:
    lines = list(_run_lines(verdict))
    if verdict.tolerance is not None:
        lines.append(f"tolerance {verdict.tolerance:.2e} would pass (--rtol)")
    if verdict.unsteady:
        lines.append(f"not compared, as A does not reproduce them itself: {', '.join(verdict.unsteady)}")
    if verdict.told:
        lines.append("A makes integer codes: runs with kernels are told, and each kernel is judged alone")
    if groups:
        rows = [("fused node", "error", "limit", "")]
        for g in groups:
            said = "ok" if g.ok else ("FAILED " if g.ok is False else "not compared: ") + g.message
            rows.append((g.name, _figure(g.error), _figure(g.limit), said))
        lines += ["", *table(rows, right=(1, 2))]
    return lines


def _run_lines(verdict: Verdict) -> Iterator[str]:
    rows = [("run", "output", "error", "limit", "")]
    for run in verdict.runs:
        said = "ok" if run.ok else f"FAILED {run.message}"
        rows.append((run.name, run.output or "-", _figure(run.error), _figure(run.limit), said))
    return table(rows, right=(2, 3)) if verdict.runs else iter(())


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"
