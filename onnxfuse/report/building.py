"""The page of a build, for `optimize` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from onnxfuse.errors import counted
from onnxfuse.report.page import Page, Table
from onnxfuse.report.words import Document, count, interval, ms, names, page, refusals, size


def optimize(d: Document) -> Page:
    """The page of `optimize` and `explain`."""
    model = d["model"]
    kernels = counted(d["kernels"], "kernel")
    left = f"{kernels} ({d['distinct_kernels']} distinct), {d['nodes_left']} left to ONNX Runtime"
    facts = [
        ("model", f"{model['path'] or 'standard input'}, opset {model['opset']}, {size(model['bytes'])}"),
        ("sha256", model["sha256"]),
        ("nodes", f"{d['nodes_before']} became {d['nodes_after']}: {left}"),
        ("phases", f"{d['phases']}, {size(d['phase_bytes'])} between them"),
        *_verdict(d["verify"]),
        *_gain(d["gain"]),
        *_loading(d.get("loading", {})),
        ("built for", f"{', '.join(d.get('targets') or [d['target']])}; {d['compiler'] or 'no compiler was needed'}"),
        ("seconds", ", ".join(f"{step} {seconds:.2f}" for step, seconds in d["seconds"].items())),
        ("memory", size(d["peak_memory_bytes"])),
    ]
    facts += [(f"wrote the {what}", path) for what, path in d["output"].items() if path]
    title = f"{d['command']} {PurePath(model['path']).name if model['path'] else 'standard input'}"
    drawing = d.get("drawing")
    shown = {name: d.get(name, []) for name in ("drawing", "groups", "refusals", "candidates")}
    drawn = {"kind": "build", **shown} if drawing else None
    layers = {node["name"]: node["layer"] for node in drawing["before"]["nodes"]} if drawing else {}
    tables = (*refusals(d["refusals"], layers), _kernels(d), _rewrites(d))
    return page(d, title, facts, *tables, notes=d["notes"], headline=_headline(d), drawn=drawn)


def _headline(d: Document) -> tuple[tuple[str, str], ...]:
    """The figures at the top of the page."""
    priced = [g for g in d["groups"] if None not in (g.get("predicted_ms"), g.get("runtime_ms"))]
    ours, theirs = (_sum(priced, key) for key in ("predicted_ms", "runtime_ms"))
    found = [("times as fast", f"{d['gain']['speedup']:.2f}x")] if d["gain"] is not None else []
    if not found and ours and theirs:
        those = "the kernels" if len(priced) == len(d["groups"]) else f"{len(priced)} of {len(d['groups'])} kernels"
        found = [(f"times as fast, predicted for {those}", f"{theirs / ours:.2f}x")]
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
        text = f"files of {size(each['bytes'])}"
        if each["seconds"] is not None:
            text += f", {each['seconds']:.3g} s until it can run, {size(each['peak_bytes'])} of memory"
        yield f"load {way.replace('_', ' ')}", text


def _gain(gain: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if gain is not None:
        times = f"{ms(gain['before_ms'])} ms before, {ms(gain['after_ms'])} ms after"
        yield "gain", f"{times}: {gain['speedup']:.2f}x{interval(gain)}, spread {gain['spread'] * 100:.1f} %"


def _kernels(d: Document) -> Table:
    """A row for each distinct kernel, by descending time; flops and bytes are of one call, times of all calls."""
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for g in d["groups"]:
        calls.setdefault(g["kernel"], []).append(g)
    whole = sum(filter(None, (_sum(those, "predicted_ms") for those in calls.values()))) or 1.0
    ordered = sorted(calls.items(), key=lambda item: -(_sum(item[1], "predicted_ms") or 0.0))
    rows, shares = [], []
    for kernel, those in ordered:
        first, ours, theirs = those[0], _sum(those, "predicted_ms"), _sum(those, "runtime_ms")
        factor = f"{theirs / ours:.3g}x" if ours and theirs else "-"
        share = (ours or 0.0) / whole
        rows.append((
            kernel, str(len(those)), first["mapping_type"] or "-", str(first["phases"]), count(first["flops"]),
            size(first["bytes"]), _figure(_sum(those, "time_ms")), _figure(ours), _figure(theirs), factor,
            first.get("bound") or "-",
            names(first["nodes"]), f"{share * 100:.1f} %" if ours else "-",
        ))  # fmt: skip
        shares.append(share)
    head = ("kernel", "calls", "mapping type", "phases", "flops", "bytes", "measured ms", "predicted ms", "runtime ms",
            "gain", "bound", "the first stands for", "share")  # fmt: skip
    finds = tuple(tuple(g["name"] for g in those) for _, those in ordered)
    return Table("Kernels", head, tuple(rows), (1, 3, 4, 5, 6, 7, 8, 9), tuple(shares), finds)


def _sum(groups: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """The sum of milliseconds; None if one is missing, as in results of earlier versions."""
    values = [g.get(key) for g in groups]
    return None if None in values else sum(each or 0.0 for each in values)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _rewrites(d: Document) -> Table:
    rows = tuple((r["rule"], str(r["count"])) for r in d["rewrites"])
    return Table("Rewrites", ("rule", "times"), rows, (1,))
