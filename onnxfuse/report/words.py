"""Formatting of figures and lists on pages, and the facts at the end of each page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnxfuse.errors import between, counted
from onnxfuse.report.page import Page, Table
from onnxfuse.report.result import nothing_lost

Document = Mapping[str, Any]
Facts = list[tuple[str, str]]

NODES_SHOWN = 3
_LAYERS_SHOWN = 3
_FOUND = 50  # nodes that a click on a row shows


def page(d: Document, title: str, facts: Facts, *tables: Table, notes: Iterable[str] = (), **more: Any) -> Page:
    """A page with its last facts: machine and versions."""
    host, versions = d["host"], d["versions"]
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    about = [
        ("machine", f"{host['cpu']}, {counted(host['cores'], 'core')}, {host['system']}"),
        ("made with", f"onnxfuse {d['onnxfuse_version']}, Python {host['python']}, {made}"),
    ]
    return Page(title, (*facts, *about), tuple(t for t in tables if t.rows), tuple(notes), **more)


def interval(found: Mapping[str, Any]) -> str:
    """A 95 % interval of a ratio; results of earlier versions have none."""
    low = found.get("low")
    return "" if low is None else f" ({between(low, found.get('high'))})"


def refusals(found: Sequence[Mapping[str, Any]], layers: Mapping[str, str]) -> tuple[Table, Table]:
    """The tables of refusals: of those that leave nodes out, and of others."""
    kept, left = ([r for r in found if nothing_lost(r["unlock"]) == answer] for answer in (True, False))
    return (
        _refusals("What was not fused, and why", left, layers),
        _refusals("Kept apart, in kernels of their own, or without cost", kept, layers),
    )


def _refusals(title: str, found: Sequence[Mapping[str, Any]], layers: Mapping[str, str]) -> Table:
    """A table of refusals, the most frequent first; those that differ only in numbers share a row."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for r in found:
        groups.setdefault((r["code"], _any_number(r["reason"]), _any_number(r["unlock"])), []).append(r)
    rows = []
    for (code, reason, unlock), those in groups.items():
        nodes = [name for r in those for name in r["nodes"]]
        of = dict.fromkeys(layers[name] for name in nodes if layers.get(name))
        one = len({(r["reason"], r["unlock"]) for r in those}) == 1
        said = (those[0]["reason"], those[0]["unlock"]) if one else (reason, unlock)
        cells = (str(len(nodes)), code, *said, names(list(of), _LAYERS_SHOWN), names(nodes))
        rows.append((len(nodes), cells, tuple(nodes[:_FOUND])))
    rows.sort(key=lambda row: -row[0])
    listed = [row for _, row, _ in rows]
    head = ["nodes", "code", "reason", "what would change that", "layers", "which"]
    empty = {
        at
        for at, name in enumerate(head)
        if name in ("what would change that", "layers") and not any(r[at] for r in listed)
    }
    keep = [at for at in range(len(head)) if at not in empty]
    shown = tuple(tuple(row[at] for at in keep) for row in listed)
    finds = tuple(found for _, _, found in rows)
    return Table(title, tuple(head[at] for at in keep), shown, (0,), finds=finds, finds_in="before")


def _any_number(text: str) -> str:
    return re.sub(r"\d+", "*", text)


def names(found: Sequence[str], most: int = NODES_SHOWN) -> str:
    """The first names of a list, and the number of others."""
    more = len(found) - most
    return ", ".join(found[:most]) + (f" and {more} more" if more > 0 else "")


def ms(value: float) -> str:
    """Milliseconds with at least three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def small(value: float | None) -> str:
    """An error with three significant digits."""
    return "-" if value is None else f"{value:.2e}"


def count(value: float | None) -> str:
    """A count with three significant digits.

    >>> count(12), count(1234567), count(None)
    ('12', '1.23 M', '-')
    """
    if value is None:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def size(value: float | None) -> str:
    """A size in bytes with three significant digits."""
    return "-" if value is None else f"{count(value)}{'B' if value >= 1e3 else ' B'}"
