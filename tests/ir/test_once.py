"""What rows make of the nodes of a graph is made once, and never for another graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.ir.dtype import F64
from onnxfuse.ir.graph import SPARE, Graph, Node
from onnxfuse.ops import spec
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import View, defined
from tests.rules.build import Build


def exponential() -> Graph:
    b = Build()
    x = b.input("x", 4, 8)
    return b.graph(b.node("Exp", x, out="y"))


def test_a_node_is_defined_once_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked, define = exponential(), list[View](), spec.define
    monkeypatch.setattr(spec, "define", lambda rows, view: (asked.append(view), define(rows, view))[1])
    (node,) = graph.nodes
    assert defined(ROWS, graph, node) is defined(ROWS, graph, node)
    assert len(asked) == 1
    other = replace(graph, types={v: t and replace(t, dtype=F64) for v, t in graph.types.items()})
    (before,), (after,) = defined(ROWS, graph, node), defined(ROWS, other, node)
    assert (str(before.value.dtype), str(after.value.dtype)) == ("float32", "float64")
    assert len(asked) == 2


def test_equal_nodes_are_told_apart_and_few_are_kept() -> None:
    graph = exponential()
    (node,) = graph.nodes
    assert graph.once(node, ROWS, lambda: 1) == 1
    assert graph.once(replace(node), ROWS, lambda: 2) == 2
    assert graph.once(node, "other rows", lambda: 3) == 3
    for number in range(3 * SPARE):
        assert graph.once(Node("Exp", ("x",), (f"y{number}",)), ROWS, lambda n=number: n) == number
    assert len(graph.kept) <= SPARE + len(graph.nodes)
