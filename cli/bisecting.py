"""The verb `bisect`: finds the piece of a model that is wrong or slow, and writes the smallest models that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfuse.build.cache import file_digest
from onnxfuse.config import Options
from onnxfuse.emit.staged import Staged, refuse_existing, refuse_inputs
from onnxfuse.errors import counted
from onnxfuse.measure.profile import ModelProfile, profile_models
from onnxfuse.pipeline import optimize
from onnxfuse.runtime.attempts import persistent_child
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.provider import need_runtime

from .models import dims_of, files, library_for, refuse_dims, refuse_unequal_inputs
from .progress import Progress
from .results import document, read_here
from .show import milliseconds, table

_CHILD = "onnxfuse.verify.pieces_child"
_ROWS = 10
SLOWER = 0.05  # a piece is at fault if it is slower than its original nodes by this share of its time,
NOTABLE = 0.01  # and by this share of the time of the whole model


@dataclass(frozen=True, slots=True)
class BisectResult:
    """The result of `bisect`; `summary` is empty if nothing is at fault."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]
    summary: str


def bisect(at: Progress, a: str, b: str, *, metric: str, output: str, overwrite: bool, **values: Any) -> BisectResult:
    """Find the pieces of B that differ from A, or are slower, the worst first; write the worst as two models."""
    need_runtime("bisect")
    out = {key: Path(f"{output}{end}") for key, end in (("a", ".a.onnx"), ("b", ".b.onnx"), ("inputs", ".inputs.npz"))}
    refuse_existing(out.values(), overwrite=overwrite)
    refuse_inputs(out.values(), read_here())
    with work_folder() as folder:
        paths = files("bisect", (a, b), folder)
        refuse_unequal_inputs("bisect", paths, (a, b))
        refuse_dims("bisect", paths[0], a, dims_of(values["dim"]), values["inputs"])
        library = library_for("bisect", paths[1], b, values["library"])
        common = {
            "a": str(paths[0].absolute()),
            "b": str(paths[1].absolute()),
            "custom": [str(Path(each).absolute()) for each in values["custom_ops_library"]],
            "inputs": values["inputs"] and str(Path(values["inputs"]).absolute()),
            "seed": values["seed"],
            "dims": dims_of(values["dim"]),
        }
        at.begin("compare pieces" if metric == "error" else "measure")
        rows = (_wrong if metric == "error" else _slow)(common, library, values)
        guilty = [row for row in rows if row["at_fault"]]
        written: list[str] = []
        if guilty:
            at.begin("write the smallest models")
            _written(common, guilty[0]["nodes"], out, folder, overwrite=overwrite, limit=values["time_budget"])
            written = [str(path) for path in out.values()]
            guilty[0]["rules"] = _rules(paths[0], guilty[0]["origin"])
    models = [{"path": name, "sha256": file_digest(path)} for name, path in zip((a, b), paths, strict=True)]
    made = document("bisect", metric=metric, models=models, found=rows[:_ROWS], pieces=len(rows), written=written)
    return BisectResult(
        made, tuple(_lines(rows, guilty, metric, out, values["library"] or library)), _summary(guilty, metric)
    )


def _wrong(common: Mapping[str, Any], library: Path | None, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All pieces with their errors, the worst first."""
    request = {**common, "do": "errors", "libraries": [str(library.absolute())] if library else []}
    limit = values["time_budget"]
    found = persistent_child(_CHILD, {**request, "rtol": values["rtol"]}, stage="bisect", time_limit=limit)
    rows = []
    for each in found:
        fault = ("rewrite" if each["body_wrong"] else "kernel") if each["wrong"] else None
        kept = ("nodes", "operators", "origin", "error", "limit")
        rows.append({key: each[key] for key in kept} | {"at_fault": fault, "rules": []})
    return sorted(rows, key=lambda r: (r["at_fault"] is None, -_excess(r)))


def _excess(row: Mapping[str, Any]) -> float:
    error = float("inf") if row["error"] is None else float(row["error"])
    return error / row["limit"] if row["limit"] else error


def _slow(common: Mapping[str, Any], library: Path | None, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All nodes of B with their time and that of their original nodes in A, by descending loss."""
    found = profile_models(
        [common["a"], common["b"]],
        libraries=[None, library],
        custom_libraries=common["custom"],
        inputs=common["inputs"],
        seed=common["seed"],
        dims=common["dims"],
        threads=values["threads"],
        duration=values["duration"],
        per_op=True,
        time_limit=values["time_budget"],
    )
    first, second = found.models
    before = _times_of_origins(first)
    total = sum(op.time_ms for op in second.ops) or 1.0
    rows = []
    for op in second.ops:
        theirs = sum(before.get(name, 0.0) for name in op.origin)
        lost = op.time_ms - theirs
        fault = "kernel" if op.kernel else "node"
        guilty = lost > SLOWER * op.time_ms and lost > NOTABLE * total
        rows.append(
            {
                "nodes": [op.name],
                "operators": [op.op_type],
                "origin": list(op.origin),
                "before_ms": theirs,
                "after_ms": op.time_ms,
                "at_fault": fault if guilty else None,
                "rules": [],
            }
        )
    return sorted(rows, key=lambda r: (r["at_fault"] is None, r["before_ms"] - r["after_ms"]))


def _times_of_origins(model: ModelProfile) -> dict[str, float]:
    """Milliseconds of each original node; time of a node that the runtime fused of several is divided equally."""
    found: dict[str, float] = {}
    for op in model.ops:
        for name in op.origin:
            found[name] = found.get(name, 0.0) + op.time_ms / len(op.origin)
    return found


def _written(
    common: Mapping[str, Any],
    nodes: Sequence[str],
    out: Mapping[str, Path],
    folder: Path,
    *,
    overwrite: bool,
    limit: float | None,
) -> None:
    with Staged(overwrite=overwrite) as staged:
        places = {key: str(staged.stage(path).absolute()) for key, path in out.items()}
        request = {**common, "do": "write", "nodes": list(nodes), "out": places}
        persistent_child(_CHILD, request, stage="bisect", time_limit=limit)
        staged.commit()


def _rules(model: Path, origin: Sequence[str]) -> list[str]:
    """The rewrite rules that fire at these nodes of a model."""
    drawing = optimize(model, options=Options(stop_after="plan")).drawing
    fired = drawing.fired if drawing is not None else ()
    return list(dict.fromkeys(f.rule for f in fired if set(f.nodes) & set(origin)))


def _lines(
    rows: Sequence[Mapping[str, Any]],
    guilty: Sequence[Mapping[str, Any]],
    metric: str,
    out: Mapping[str, Path],
    library: str | Path | None,
) -> list[str]:
    if not guilty:
        what = "wrong" if metric == "error" else "slower than its original nodes"
        return [f"none of {counted(len(rows), 'piece')} is {what}"]
    worst = guilty[0]
    lines = [f"{len(guilty)} of {counted(len(rows), 'piece')}, the worst first", *_table(guilty[:_ROWS], metric), ""]
    lines.append(f"at fault  {_said(worst, metric)}")
    if worst["rules"]:
        lines.append(f"rewrites  {', '.join(worst['rules'])} fired there   (onnxfuse optimize --disable RULE)")
    lines.append(f"wrote     {'  '.join(map(str, out.values()))}")
    more = f" --library {library}" if library else ""
    verb = "verify" if metric == "error" else "profile"
    lines.append(f"next      onnxfuse {verb} {out['a']} {out['b']} --inputs {out['inputs']}{more}")
    return lines


def _table(guilty: Sequence[Mapping[str, Any]], metric: str) -> list[str]:
    if metric == "error":
        rows = [("error", "limit", "node", "stands for")]
        for g in guilty:
            error = "does not run" if g["error"] is None else f"{g['error']:.2e}"
            rows.append((error, f"{g['limit']:.2e}", " + ".join(g["nodes"]), ", ".join(g["origin"][:4])))
    else:
        rows = [("before ms", "after ms", "node", "stands for")]
        for g in guilty:
            times = (milliseconds(g["before_ms"]), milliseconds(g["after_ms"]))
            rows.append((*times, " + ".join(g["nodes"]), ", ".join(g["origin"][:4])))
    return list(table(rows, right=(0, 1)))


def _said(row: Mapping[str, Any], metric: str) -> str:
    name = " + ".join(row["nodes"])
    if metric == "latency":
        times = f"{milliseconds(row['after_ms'])} ms, and {milliseconds(row['before_ms'])} ms for its original nodes"
        return f"{row['operators'][-1]} of node {name}: {times}"
    if row["at_fault"] == "kernel":
        return f"the kernel {row['operators'][-1]} of node {name}; its function body agrees with the original"
    return f"node {name}: its function body differs too, so a rewrite is wrong"


def _summary(guilty: Sequence[Mapping[str, Any]], metric: str) -> str:
    return "" if not guilty else _said(guilty[0], metric)
