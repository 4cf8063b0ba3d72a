"""The pages of `profile` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxfuse.errors import counted
from onnxfuse.report import remarks
from onnxfuse.report.page import Page, Table
from onnxfuse.report.words import Document, count, interval, ms, names, page, refusals, size, small

_OPS_SHOWN = 100


def profile(d: Document) -> Page:
    """The page of `profile`."""
    rows = []
    for m in d["models"]:
        each = m["latency_ms"]
        times = (each["min"], each["median"], each["p90"], each["p99"], m["load_ms"])
        rows.append((m["path"], *map(ms, times), str(m["runs"])))
    head = ("model", "min", "median", "p90", "p99", "load", "runs")
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in d["inputs"].items())
    facts = [("inputs", shapes), ("threads", str(d["threads"]))]
    if d["speedup"] is not None:
        spread = "" if d["spread"] is None else f", spread {d['spread'] * 100:.1f} %"
        facts.append(("speedup", f"{d['speedup']:.2f}x{interval(d.get('interval') or {})}{spread}"))
        facts += [("statistic", d["statistic"])] if d.get("statistic") else []
    facts += [("verdict", d["verdict"])] if d.get("verdict") else []
    facts += _peaks(d)
    tables = [Table("Latency in milliseconds", head, tuple(rows), tuple(range(1, 7))), _sizes(d), _memory(d)]
    layers = {name: r["layer"] for r in d.get("refusals", ()) for name in r["nodes"]}
    tables += refusals(d.get("refusals", ()), layers)
    for m in d["models"]:
        tables += [_kernel_times(m), _op_times(m)]
    title = f"profile {' '.join(m['path'] for m in d['models'])}"
    timed: list[Document] = [each for m in d["models"] for each in (*m["ops"], *m.get("kernels", ()))]
    notes = [*remarks.above(timed), *(said for m in d["models"] for said in remarks.longer(m))]
    return page(d, title, facts, *tables, notes=notes, headline=_headline(d), drawn=_drawn(d))


def _headline(d: Document) -> tuple[tuple[str, str], ...]:
    """The figures at the top of the page."""
    found = [("times as fast", f"{d['speedup']:.2f}x")] if d["speedup"] is not None else []
    names_of = ["before", "after"] if len(d["models"]) > 1 else ["a run"]
    for name, m in zip(names_of, d["models"], strict=True):
        found.append((f"{name}, ms", ms(m["latency_ms"]["min"])))
    for name, m in zip(names_of, d["models"], strict=True):
        found += [(f"memory {name}", size(m["peak_bytes"]))] if m.get("peak_bytes") else []
    return tuple(found)


def _drawn(d: Document) -> dict[str, Any] | None:
    """The data of the plots, if nodes were profiled."""
    if not d.get("drawing") or not any(m["ops"] for m in d["models"]):
        return None
    kept = ("name", "op_type", "flops", "bytes", "gflops", "time_ms")
    models = [{"path": m["path"], "ops": [{key: op[key] for key in kept} for op in m["ops"]]} for m in d["models"]]
    about = {"kind": "profile", "names": [m["path"] for m in d["models"]], "peaks": d["peaks"], "layers": d["layers"]}
    return {**about, "models": models, "steps": d["drawing"]["steps"]}


def _peaks(d: Document) -> list[tuple[str, str]]:
    found = d.get("peaks")
    if not found:
        return []
    how = "measured on this machine" if found["measured"] else "of this machine class, not measured"
    best = f"{found['gflops']:.3g} GFLOP/s, {found['memory_gbps']:.3g} GB/s from memory"
    return [("at best", f"{best}, {counted(found['threads'], 'thread')}, {how}")]


def _sizes(d: Document) -> Table:
    """A row for each set of sizes, if there are several."""
    found = d.get("sizes", ())
    rows = tuple(
        (
            ", ".join(f"{name} {value}" for name, value in each["dims"].items()),
            *(ms(m["min_ms"]) for m in each["models"]),
            "-" if each["speedup"] is None else f"{each['speedup']:.2f}x{interval(each['interval'] or {})}",
        )
        for each in found
    )
    head = ("sizes", *(f"{m['path']} ms" for m in d["models"]), "speedup")
    return Table("Sizes", head, rows if len(rows) > 1 else (), tuple(range(1, len(head))))


def _memory(d: Document) -> Table:
    keys = ("weight_bytes", "value_peak_bytes", "arena_bytes")
    rows = tuple(
        (m["path"], size(m["peak_bytes"]), *(size(m["memory"][key]) for key in keys))
        for m in d["models"]
        if m.get("memory")
    )
    head = ("model", "process", "weights", "values at once, computed", "the runtime's arena")
    return Table("Memory", head, rows, (1, 2, 3, 4))


def _kernel_times(model: Mapping[str, Any]) -> Table:
    found = model.get("kernels", ())
    rows = tuple(
        (ms(k["time_ms"]), str(k["nodes"]), *_rates(k), k["kernel"], f"{k['share'] * 100:.1f} %") for k in found
    )
    head = ("ms", "nodes", "GFLOP/s", "GB/s", "of best", "kernel", "share")
    return Table(f"Kernels of {model['path']}", head, rows, (0, 1, 2, 3, 4), tuple(k["share"] for k in found))


def _rates(each: Mapping[str, Any]) -> tuple[str, str, str]:
    """GFLOP/s and GB/s of a kernel or node, and its share of the machine's peak; earlier results have none."""
    return count(each.get("gflops")), count(each.get("gbps")), remarks.share(each)


def _op_times(model: Mapping[str, Any]) -> Table:
    ops = sorted(model["ops"], key=lambda op: -op["time_ms"])[:_OPS_SHOWN]
    rows = tuple(
        (ms(o["time_ms"]), *_rates(o), o["op_type"], o["name"], names(o["origin"]), f"{o['share'] * 100:.1f} %")
        for o in ops
    )
    head = ("ms", "GFLOP/s", "GB/s", "of best", "operator", "node", "stands for", "share")
    return Table(f"Nodes of {model['path']}", head, rows, (0, 1, 2, 3), tuple(o["share"] for o in ops))


def verify(d: Document) -> Page:
    """The page of `verify`."""
    first, second = (m["path"] for m in d["models"])
    runs = tuple((r["name"], r["output"] or "-", small(r["error"]), small(r["limit"]), _said(r)) for r in d["runs"])
    groups = tuple((g["name"], small(g["error"]), small(g["limit"]), _said(g)) for g in d["groups"])
    return page(
        d,
        f"verify {first} {second}",
        [("verdict", d["message"] or ("equal within the limits" if d["ok"] else "not compared"))],
        Table("Runs", ("run", "output", "error", "limit", ""), runs, (2, 3)),
        Table("Fused nodes against their bodies", ("node", "error", "limit", ""), groups, (1, 2)),
        ok=d["ok"],
    )


def _said(run: Mapping[str, Any]) -> str:
    word = "ok" if run["ok"] else "FAILED" if run["ok"] is False else "not compared"
    return f"{word} {run['message']}".strip()
