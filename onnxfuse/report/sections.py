"""Pages of results: a function for each verb from its JSON document to facts and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnxfuse.errors import UsageError, counted
from onnxfuse.report.building import optimize
from onnxfuse.report.document import SCHEMA_VERSION
from onnxfuse.report.measuring import profile, verify
from onnxfuse.report.page import Page, Table
from onnxfuse.report.words import Document, page

_DIFFERENCES_SHOWN = 200


def page_of(document: Any) -> Page:
    """The page of a result. Raises UsageError for a document that is not a result of this version."""
    found = document.get("schema_version") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or not isinstance(found, int):
        raise UsageError("report: this is not a result of onnxfuse", hint="make one with --json or --json-file")
    if found != SCHEMA_VERSION:
        problem = f"report: the result has schema version {found}; this onnxfuse reads version {SCHEMA_VERSION}"
        raise UsageError(problem, hint="make it again")
    try:
        return _PAGES.get(str(document.get("command")), _any)(document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
        named = type(problem).__name__
        raise UsageError(f"report: the result is not complete ({named}: {problem})", hint="make it again") from None


def _diff(d: Document) -> Page:
    first, second = d["models"]
    facts = [
        (name, f"{m['path']}, {counted(m['nodes'], 'node')}, sha256 {m['sha256']}")
        for name, m in (("A", first), ("B", second))
    ]
    found = d["differences"]
    facts.append(("differences", str(len(found)) if found else "none: the graphs are equal"))
    rows = tuple(
        (x["what"], x["name"], x["before"] or "-", x["after"] or "-", x["fused"] or "")
        for x in found[:_DIFFERENCES_SHOWN]
    )
    more = len(found) - len(rows)
    notes = (f"{more} more differences are in the JSON document",) if more > 0 else ()
    drawn = None
    if d.get("drawing"):
        drawn = {
            "kind": "diff",
            "names": [f"A: {first['path']}", f"B: {second['path']}"],
            "drawing": d["drawing"],
            "differences": found,
        }
    table = Table("Differences", ("what", "name", "in A", "in B", "became a part of"), rows)
    counts = {sign: sum(1 for x in found if x["what"] == "node" and kind(x)) for sign, kind in _KINDS.items()}
    headline = tuple((name, str(number)) for name, number in counts.items())
    return page(d, f"diff {first['path']} {second['path']}", facts, table, notes=notes, headline=headline, drawn=drawn)


_KINDS: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "nodes only in A": lambda x: x["after"] is None and not x["fused"],
    "nodes fused into kernels": lambda x: bool(x["fused"]),
    "nodes only in B": lambda x: x["before"] is None,
    "changed nodes": lambda x: x["before"] is not None and x["after"] is not None,
}


_ENVELOPE = ("schema_version", "command", "onnxfuse_version", "host", "versions")


def _any(d: Document) -> Page:
    facts = list(_flat("", {name: value for name, value in d.items() if name not in _ENVELOPE}))
    return page(d, str(d["command"]), facts)


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The leaves of a nested value, each with its path."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), each)
    elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
        for at, each in enumerate(value):
            yield from _flat(f"{name}.{at}", each)
    else:
        yield name, ", ".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


_PAGES: dict[str, Callable[[Document], Page]] = {
    "optimize": optimize,
    "explain": optimize,
    "profile": profile,
    "verify": verify,
    "diff": _diff,
}
