"""The verb `diff`: compares the graphs of two models, node by node and weight by weight, without running them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.config import Options
from onnxfuse.errors import UsageError
from onnxfuse.ir.graph import Constant, Graph, Node
from onnxfuse.load import load
from onnxfuse.load.source import source_of
from onnxfuse.pipeline.outputs import STREAM
from onnxfuse.report.drawing import Drawn, picture

from . import show
from .results import document
from .show import table

_SHOWN = 40
_ORIGIN = "onnxfuse.origin"


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference; `before` is None for what is only in B, `after` for what is only in A."""

    what: str  # opset, input, output, weight, node
    name: str
    before: str | None
    after: str | None
    fused: str = ""  # the kernel of B that a node of A is in

    @property
    def line(self) -> str:
        """The line that is printed."""
        if self.before is None:
            return f"{self.what:<8}+ {self.name}  {self.after}"
        if self.after is None:
            return f"{self.what:<8}- {self.name}  {self.before}" + (f"  (in {self.fused})" if self.fused else "")
        return f"{self.what:<8}~ {self.name}  {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of `diff`; `summary` is empty if there is no difference."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]
    summary: str


def diff(a: str, b: str) -> Compared:
    """The differences of two models. Raises UsageError and ModelError for files that cannot be read."""
    if a == b == STREAM:
        raise UsageError("diff: standard input is one model only", hint="give a file for the other one")
    first, second = (load(show.given() if each == STREAM else Path(each), Options()) for each in (a, b))
    found = tuple(_differences(first, second))
    counts = Counter(d.what for d in found)
    summary = ", ".join(f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items())
    models = [
        {"path": path, "sha256": source_of(graph).sha256, "nodes": len(graph.nodes)}
        for path, graph in ((a, first), (b, second))
    ]
    plain = [
        {"what": d.what, "name": d.name, "before": d.before, "after": d.after, "fused": d.fused or None} for d in found
    ]
    drawing = _drawing(first, second)
    made = document("diff", models=models, equal=not found, differences=plain, drawing=drawing)
    return Compared(made, tuple(_lines(found, first, second)), summary)


def _lines(found: tuple[Difference, ...], first: Graph, second: Graph) -> Iterator[str]:
    if not found:
        yield "the graphs are equal"
        return
    for what in dict.fromkeys(d.what for d in found):
        those = [d for d in found if d.what == what]
        yield from (d.line for d in those[:_SHOWN])
        if len(those) > _SHOWN:
            yield f"{what:<8}and {len(those) - _SHOWN} more (--json has all)"
    before, after = (Counter(n.key for n in graph.nodes) for graph in (first, second))
    rows = [(op, str(before[op]), str(after[op])) for op in sorted(before | after) if before[op] != after[op]]
    if rows:
        yield ""
        yield from table([("operator", "A", "B"), *rows], right=(1, 2))


def _differences(a: Graph, b: Graph) -> Iterator[Difference]:
    yield from _between("opset", *({k or "ai.onnx": str(v) for k, v in source_of(g).opsets.items()} for g in (a, b)))
    yield from _between("input", *({name: repr(g.types[name]) for name in g.inputs} for g in (a, b)))
    yield from _between("output", *({name: repr(g.types[name]) for name in g.outputs} for g in (a, b)))
    yield from _nodes(a, b)
    yield from _weights(a.constants, b.constants)


def _between(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield Difference(what, name, before.get(name), after.get(name))


def _weights(before: Mapping[str, Constant], after: Mapping[str, Constant]) -> Iterator[Difference]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        kind, other = (None if c is None else f"{c.dtype}{list(c.shape)}" for c in (old, new))
        if kind != other:
            yield Difference("weight", name, kind, other)
        elif old is not None and new is not None and not _same(old, new):
            yield Difference("weight", name, kind, "other values")


def _same(a: Constant, b: Constant) -> bool:
    """Whether two weights of the same type are equal bit by bit."""
    x, y = (np.ascontiguousarray(c.load()).reshape(-1).view(np.uint8) for c in (a, b))
    return bool(np.array_equal(x, y))


def _nodes(a: Graph, b: Graph) -> Iterator[Difference]:
    before, after = (dict(_named(graph)) for graph in (a, b))
    inside = _into(b)
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old is not None and new is not None:
            for part, of in _PARTS:
                if of(old) != of(new):
                    yield Difference("node", f"{old.name}: {part}", of(old), of(new))
        elif old is not None:
            yield Difference("node", old.name, old.key, None, inside.get(old.name, ""))
        elif new is not None:
            yield Difference("node", new.name, None, new.key)


def _drawing(a: Graph, b: Graph) -> dict[str, Any]:
    """Both graphs for a page, with the state of each node: same, other, gone or new."""
    nodes = [dict(_named(graph)) for graph in (a, b)]
    into = _into(b)
    sides: dict[str, Any] = {}
    states: dict[str, list[str]] = {}
    for at, (side, graph, alone) in enumerate((("before", a, "gone"), ("after", b, "new"))):
        mine, theirs = nodes[at], nodes[1 - at]
        belongs = into if at == 0 else {name: name for _, name in _fused(b)}
        drawn = {key: Drawn(n.name, n.op, belongs.get(n.name)) for key, n in mine.items()}
        wired = [(drawn[key], n.reads, n.outputs) for key, n in mine.items()]
        sides[side] = asdict(picture(wired, tuple(graph.inputs), tuple(graph.outputs)))
        known = [_state(node, theirs.get(key), alone) for key, node in mine.items()]
        states[side] = ["same"] * len(graph.inputs) + known + ["same"] * len(graph.outputs)
    return {**sides, "states": states}


def _state(node: Node, other: Node | None, alone: str) -> str:
    if other is None:
        return alone
    return "same" if all(of(node) == of(other) for _, of in _PARTS) else "other"


def _named(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Nodes by their names in the file; those without one by their outputs."""
    for node in graph.nodes:
        yield source_of(graph).nodes[node.name].name or f"-> {', '.join(node.outputs)}", node


def _fused(graph: Graph) -> Iterator[tuple[str, str]]:
    """The original nodes that are in kernels, each with its fused node."""
    for name, raw in source_of(graph).nodes.items():
        for entry in raw.metadata_props:
            if entry.key == _ORIGIN:
                yield from ((origin, name) for origin in json.loads(entry.value))


def _into(graph: Graph) -> dict[str, str]:
    """By original node the kernel that computes it; the first of several."""
    found: dict[str, str] = {}
    for origin, name in _fused(graph):
        found.setdefault(origin, name)
    return found


def _list(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"


def _attributes(node: Node) -> str:
    if node.raw is not None:
        return "".join(sorted(str(attribute) for attribute in node.raw.attribute))
    found = sorted(node.attrs.items())
    return ", ".join(f"{k}={v.load().tolist() if isinstance(v, Constant) else v!r}" for k, v in found) or "none"


_PARTS: tuple[tuple[str, Callable[[Node], str]], ...] = (
    ("operator", lambda node: node.key),
    ("inputs", lambda node: _list(node.inputs)),
    ("outputs", lambda node: _list(node.outputs)),
    ("attributes", _attributes),
)
