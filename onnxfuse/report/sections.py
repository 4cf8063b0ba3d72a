"""What a page says of a result: one function per verb from its JSON document to facts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from onnxfuse.errors import UsageError
from onnxfuse.report.document import SCHEMA_VERSION
from onnxfuse.report.page import Page, Table

Document = Mapping[str, Any]
Facts = list[tuple[str, str]]

_NODES_SHOWN = 8
_OPS_SHOWN = 100


def page_of(document: Any) -> Page:
    """The page of a result. Raises UsageError for a document that is no result of this version."""
    if not isinstance(document, Mapping) or document.get("schema_version") != SCHEMA_VERSION:
        raise UsageError("report: this is no result of onnxfuse", hint="make one with --json or --json-file")
    try:
        return _PAGES.get(str(document.get("command")), _any)(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        named = type(problem).__name__
        raise UsageError(f"report: the result is not complete ({named}: {problem})", hint="make it again") from None


def _page(d: Document, title: str, facts: Facts, *tables: Table, notes: Iterable[str] = (), **more: Any) -> Page:
    host, versions = d["host"], d["versions"]
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    about = [
        ("machine", f"{host['cpu']}, {host['cores']} cores, {host['system']}"),
        ("made with", f"onnxfuse {d['onnxfuse_version']}, Python {host['python']}, {made}"),
    ]
    return Page(title, (*facts, *about), tuple(t for t in tables if t.rows), tuple(notes), **more)


# optimize and explain -------------------------------------------------------------------------------------------------


def _optimize(d: Document) -> Page:
    model = d["model"]
    left = f"{d['kernels']} kernels ({d['distinct_kernels']} distinct), {d['nodes_left']} left to ONNX Runtime"
    facts = [
        ("model", f"{model['path'] or 'standard input'}, opset {model['opset']}, {_bytes(model['bytes'])}"),
        ("sha256", model["sha256"]),
        ("nodes", f"{d['nodes_before']} became {d['nodes_after']}: {left}"),
        ("phases", f"{d['phases']}, {_bytes(d['phase_bytes'])} between them"),
        *_verdict(d["verify"]),
        *_gain(d["gain"]),
        *_loading(d.get("loading", {})),
        ("built for", f"{', '.join(d.get('targets') or [d['target']])}; {d['compiler'] or 'no compiler was needed'}"),
        ("seconds", ", ".join(f"{step} {seconds:.2f}" for step, seconds in d["seconds"].items())),
        ("memory", _bytes(d["peak_memory_bytes"])),
    ]
    facts += [(f"wrote the {what}", path) for what, path in d["output"].items() if path]
    title = f"{d['command']} {model['path'] or 'standard input'}"
    drawn = {name: d[name] for name in ("drawing", "groups", "refusals")} if d.get("drawing") else None
    tables = (_refusals(d), _kernels(d), _rewrites(d))
    return _page(d, title, facts, *tables, notes=d["notes"], headline=_headline(d), drawn=drawn)


def _headline(d: Document) -> tuple[tuple[str, str], ...]:
    """What is looked for first."""
    found = [("times as fast", f"{d['gain']['speedup']:.2f}x")] if d["gain"] is not None else []
    found += [("nodes", f"{d['nodes_before']} to {d['nodes_after']}"), ("kernels", str(d["kernels"]))]
    return (*found, ("nodes left to ONNX Runtime", str(d["nodes_left"])))


def _verdict(verdict: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if verdict is None:
        return
    if verdict["max_error"] is None or verdict["ok"] is None:
        yield "verified", verdict["message"] or "nothing to compare"
    else:
        word = "ok" if verdict["ok"] else "FAILED"
        limit = "-" if verdict["limit"] is None else f"{verdict['limit']:.1e}"
        yield "verified", f"{word}: largest relative error {verdict['max_error']:.1e}, limit {limit}"


def _loading(ways: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for way, each in ways.items():
        text = f"files of {_bytes(each['bytes'])}"
        if each["seconds"] is not None:
            text += f", {each['seconds']:.3g} s until it can run, {_bytes(each['peak_bytes'])} of memory"
        yield f"load {way.replace('_', ' ')}", text


def _gain(gain: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if gain is not None:
        times = f"{_ms(gain['before_ms'])} ms before, {_ms(gain['after_ms'])} ms after"
        yield "gain", f"{times}: {gain['speedup']:.2f}x{_interval(gain)}, spread {gain['spread'] * 100:.1f} %"


def _interval(found: Mapping[str, Any]) -> str:
    """A 95 % interval of a ratio; results of earlier versions have none."""
    low, high = found.get("low"), found.get("high")
    return "" if low is None else f" ({low:.2f}x to {'any' if high is None else f'{high:.2f}x'})"


def _kernels(d: Document) -> Table:
    rows = tuple(
        (
            g["kernel"], g["mapping_type"] or "-", str(g["phases"]), _count(g["flops"]), _bytes(g["bytes"]),
            _predicted(g, "predicted_ms"), _predicted(g, "runtime_ms"), g.get("bound") or "-", _names(g["nodes"]),
        )
        for g in d["groups"]
    )  # fmt: skip
    head = ("kernel", "mapping type", "phases", "flops", "bytes", "predicted ms", "runtime ms", "bound", "nodes")
    return Table("Kernels", head, rows, (2, 3, 4, 5, 6))


def _predicted(group: Mapping[str, Any], key: str) -> str:
    """A predicted time of a kernel or of what it stands for; results of earlier versions have none."""
    ms = group.get(key)
    return "-" if ms is None else f"{ms:.3g}"


def _refusals(d: Document) -> Table:
    """Refusals, those of one reason in one row, the most frequent first."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for r in d["refusals"]:
        found.setdefault((r["code"], r["reason"], r["unlock"]), []).extend(r["nodes"])
    listed = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = tuple((str(len(nodes)), code, reason, unlock, _names(nodes)) for (code, reason, unlock), nodes in listed)
    head = ("nodes", "code", "reason", "what would unlock them", "which")
    return Table("Left to ONNX Runtime, and why", head, rows, (0,))


def _rewrites(d: Document) -> Table:
    rows = tuple((r["rule"], str(r["count"])) for r in d["rewrites"])
    return Table("Rewrites", ("rule", "times"), rows, (1,))


# profile and verify ---------------------------------------------------------------------------------------------------


def _profile(d: Document) -> Page:
    rows = []
    for m in d["models"]:
        each = m["latency_ms"]
        times = (each["min"], each["median"], each["p90"], each["p99"], m["load_ms"])
        rows.append((m["path"], *map(_ms, times), str(m["runs"])))
    head = ("model", "min", "median", "p90", "p99", "load", "runs")
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape)) or 'scalar'}" for name, shape in d["inputs"].items())
    facts = [("inputs", shapes), ("threads", str(d["threads"]))]
    if d["speedup"] is not None:
        spread = "" if d["spread"] is None else f", spread {d['spread'] * 100:.1f} %"
        facts.append(("speedup", f"{d['speedup']:.2f}x{_interval(d.get('interval') or {})}{spread}"))
        facts += [("statistic", d["statistic"])] if d.get("statistic") else []
    facts += [("verdict", d["verdict"])] if d.get("verdict") else []
    tables = [Table("Latency in milliseconds", head, tuple(rows), tuple(range(1, 7)))]
    for m in d["models"]:
        tables += [_kernel_times(m), _op_times(m)]
    return _page(d, f"profile {' '.join(m['path'] for m in d['models'])}", facts, *tables)


def _kernel_times(model: Mapping[str, Any]) -> Table:
    found = model.get("kernels", ())
    rows = tuple((_ms(k["time_ms"]), str(k["nodes"]), k["kernel"], f"{k['share'] * 100:.1f} %") for k in found)
    shares = tuple(k["share"] for k in found)
    return Table(f"Kernels of {model['path']}", ("ms", "nodes", "kernel", "share"), rows, (0, 1), shares)


def _op_times(model: Mapping[str, Any]) -> Table:
    ops = sorted(model["ops"], key=lambda op: -op["time_ms"])[:_OPS_SHOWN]
    rows = tuple(
        (_ms(o["time_ms"]), o["op_type"], o["name"], _names(o["origin"]), f"{o['share'] * 100:.1f} %") for o in ops
    )
    head = ("ms", "operator", "node", "stands for", "share")
    return Table(f"Nodes of {model['path']}", head, rows, (0,), tuple(o["share"] for o in ops))


def _verify(d: Document) -> Page:
    first, second = (m["path"] for m in d["models"])
    runs = tuple((r["name"], r["output"] or "-", _small(r["error"]), _small(r["limit"]), _said(r)) for r in d["runs"])
    groups = tuple((g["name"], _small(g["error"]), _small(g["limit"]), _said(g)) for g in d["groups"])
    return _page(
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


# Everything else ------------------------------------------------------------------------------------------------------

_ENVELOPE = ("schema_version", "command", "onnxfuse_version", "host", "versions")


def _any(d: Document) -> Page:
    facts = list(_flat("", {name: value for name, value in d.items() if name not in _ENVELOPE}))
    return _page(d, str(d["command"]), facts)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The leaves of a value, each under its path."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
        for at, each in enumerate(value):
            yield from _flat(f"{name}.{at}", each)
    else:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


_PAGES: dict[str, Callable[[Document], Page]] = {
    "optimize": _optimize,
    "explain": _optimize,
    "profile": _profile,
    "verify": _verify,
}


def _names(names: list[str]) -> str:
    more = len(names) - _NODES_SHOWN
    return ", ".join(names[:_NODES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:.2e}"


def _count(value: float | None) -> str:
    """A count in three figures.

    >>> _count(12), _count(1234567), _count(None)
    ('12', '1.23 M', '-')
    """
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else f"{_count(value)}{'B' if value >= 1e3 else ' B'}"
