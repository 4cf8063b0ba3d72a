"""The verb `verify`: the outputs of two models compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.backends import TARGETS
from onnxfuse.build.cache import file_digest
from onnxfuse.errors import counted
from onnxfuse.pipeline.meter import size_of
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.provider import CPU, Provider, need_runtime, provider_of
from onnxfuse.runtime.session import metadata
from onnxfuse.target import runs_on_gpu, unable
from onnxfuse.verify import GroupVerdict, verify_groups, verify_models
from onnxfuse.verify.verdicts import Verdict

from .models import dims_of, files, library_for, refuse_dims
from .progress import Progress
from .results import document
from .show import table

_NAMED = 3  # fused nodes that are named in a row which stands for several


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The result of `verify`; `ok` is None if the models could not be compared."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]
    ok: bool | None
    message: str


def verify(at: Progress, a: str, b: str, **values: Any) -> VerifyResult:
    """The verdict on two models."""
    need_runtime("verify")
    provider = provider_of(values["target"], "verify", graph=values["cuda_graph"], exact=True)
    at.begin("verify")
    with work_folder() as folder:
        return _verified((a, b), files("verify", (a, b), folder), values, provider)


def _verified(
    names: Sequence[str], paths: Sequence[Path], values: Mapping[str, Any], provider: Provider
) -> VerifyResult:
    refuse_dims("verify", paths[0], names[0], dims_of(values["dim"]), values["inputs"])
    library = library_for("verify", paths[1], names[1], values["library"])
    named = metadata(paths[1]).get("onnxfuse.targets", "").split() if library is not None else []
    isas, left_out = _runnable(named, provider)
    library = library if isas or not named else None
    settings = {
        "isas": isas if provider == CPU else [],
        "inputs": values["inputs"],
        "seed": values["seed"],
        "dims": dims_of(values["dim"]),
        "custom_libraries": values["custom_ops_library"],
        "time_limit": values["time_budget"],
        "memory_limit": size_of(values["memory_budget"]) if values["memory_budget"] else None,
        "provider": provider,
    }
    verdict = verify_models(paths[0], paths[1], library=library, rtol=values["rtol"], atol=values["atol"], **settings)
    groups: tuple[GroupVerdict, ...] = ()
    if (values["groups"] or verdict.informational) and library is not None:
        groups = verify_groups(paths[1], library, **settings)
    wrong = [g for g in groups if g.ok is False]
    ok, message = verdict.ok, verdict.message
    if ok and named and not isas:
        ok, message = None, left_out
    if ok is not False and wrong:
        differ = f"{counted(len(wrong), 'fused node')} not equal to the function body"
        ok, message = False, f"{differ}: {wrong[0].name}: {wrong[0].message}"
    inputs = [{"path": name, "sha256": file_digest(path)} for name, path in zip(names, paths, strict=True)]
    fields = verdict.to_json() | {"ok": ok, "message": message, "groups": [asdict(g) for g in groups]}
    made = document("verify", models=inputs, targets=isas, **fields)
    left = [f"not verified: {left_out}"] if isas and left_out else []
    return VerifyResult(made, (*_verdict_lines(verdict, groups), *left), ok, message)


def _runnable(named: Sequence[str], provider: Provider) -> tuple[list[str], str]:
    """The targets of a library whose kernels can run here, and a message about the others.

    A library has several for GPUs, of which it chooses one.
    """
    if provider == CPU:
        return [name.split("+")[0] for name in named if not unable([name], TARGETS)], unable(named, TARGETS)
    found = [name for name in named if runs_on_gpu(name)][:1]
    return found, "" if found else f"this machine's GPU cannot run kernels for {' and '.join(named)}"


def _verdict_lines(verdict: Verdict, groups: Sequence[GroupVerdict]) -> list[str]:
    lines = list(_run_lines(verdict))
    if verdict.tolerance is not None:
        lines.append(f"tolerance {verdict.tolerance:.2e} would pass (--rtol)")
    if verdict.unsteady:
        lines.append(f"not compared, because A does not reproduce them: {', '.join(verdict.unsteady)}")
    if verdict.chosen:
        lines.append("compared with what A chooses (TopK, NonMaxSuppression and others) given to both")
    if verdict.informational:
        lines.append(
            "A is quantized: each kernel may differ by one quantization step; output differences are only reported"
        )
    if groups:
        lines += ["", *table([("fused node", "error", "limit", ""), *_group_rows(groups)], right=(1, 2))]
    return lines


def _group_rows(groups: Sequence[GroupVerdict]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each fused node; those that were not compared for the same reason share one."""
    reasons: dict[str, list[str]] = {}
    for g in groups:
        if g.ok is None:
            reasons.setdefault(g.message, []).append(g.name)
            continue
        yield g.name, _figure(g.error), _figure(g.limit), "ok" if g.ok else f"FAILED {g.message}"
    for message, names in reasons.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield ", ".join(names[:_NAMED]) + more, "-", "-", f"not compared: {message}"


def _run_lines(verdict: Verdict) -> Iterator[str]:
    rows = [("run", "output", "error", "limit", "")]
    for run in verdict.runs:
        said = "ok" if run.ok else f"FAILED {run.message}"
        rows.append((run.name, run.output or "-", _figure(run.error), _figure(run.limit), said))
    return table(rows, right=(2, 3)) if verdict.runs else iter(())


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"
