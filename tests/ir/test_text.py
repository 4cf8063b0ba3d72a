"""The text form of graphs, groups and plans, in full."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.dtype import F32, I64
from onnxfuse.ir.graph import Constant, Decision, Graph, Node, TensorType
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ir.layout import PLAIN, channels_last
from onnxfuse.ir.text import text
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define, view_of

N = Index.of(Symbol("N"))


def small() -> Graph:
    nodes = (
        Node("Shape", ("x",), ("s",), {}, "shape"),
        Node("MatMul", ("x", "w"), ("y",), {}, "product", origin=("a", "b")),
        Node("LeakyRelu", ("y",), ("z",), {"alpha": float(np.float32(0.1))}, "relu", origin=("relu",)),
        Node("Thing", ("z", ""), ("t", "u"), {"mode": "fast", "sizes": (1, 2), "raw": b"x"}, "thing", "com.example"),
        Node("ConstantOfShape", ("s",), ("c",), {"value": Constant.of(np.zeros(1, np.int64), I64)}, "fill"),
    )
    types: dict[str, TensorType | None] = {
        "x": TensorType(F32, (N, Index.of(4))),
        "w": TensorType(F32, (Index.of(4), Index.of(8))),
        "s": TensorType(I64, (Index.of(2),)),
        "y": TensorType(F32, (N, Index.of(8))),
        "z": TensorType(F32, (N, Index.of(8))),
        "t": None,
        "u": None,
        "c": TensorType(I64, (N, Index.of(4))),
    }
    weights = {name: Constant.of(np.ones((4, 8), np.float32), F32) for name in ("unused", "w")}
    return Graph(nodes, ("x",), ("t", "c"), types, weights, {"s": (N, Index.of(4))}, 17)


GRAPH = """\
graph of 5 nodes, opset 17
  input x: float32[N, 4]
  constant w: float32[4, 8]
  s: int64[2] is (N, 4) = Shape(x)  # shape
  y: float32[N, 8] = MatMul(x, w)  # product from a, b
  z: float32[N, 8] = LeakyRelu(y) alpha=0.100000001  # relu
  t: ?, u: ? = com.example::Thing(z, ) mode=fast raw=x sizes=(1, 2)  # thing
  c: int64[N, 4] = ConstantOfShape(s) value=int64[1]  # fill
  output t: ?
  output c: int64[N, 4]"""

PLAN = """\
plan of 1 group, 2 of 5 nodes in them
group product of 2 nodes
  input x: float32[N, 4]
  constant w: float32[4, 8]
  y: float32[N, 8] = MatMul(x, w)  # product from a, b
  z: float32[N, 8] = LeakyRelu(y) alpha=0.100000001  # relu
  output z: float32[N, 8]
layout z: Permute(perm=(0, 2, 3, 1))
E-OPAQUE thing: com.example::Thing belongs to another domain (--custom-ops-library)"""


def test_a_graph() -> None:
    assert text(small()) == GRAPH


def test_a_plan_and_a_group() -> None:
    graph = small()
    group = Group("product", graph.nodes[1:3], ("x", "w"), ("z",))
    reason = "com.example::Thing belongs to another domain"
    refused = Decision("E-OPAQUE", ("thing",), reason, "--custom-ops-library")
    assert text(Plan(graph, (group,), {"z": channels_last(4)}, (refused,))) == PLAN
    assert text(group).splitlines()[:3] == ["group product of 2 nodes", "  input x", "  input w"]
    assert text(PLAIN) == "plain"


def test_definitions_print_themselves() -> None:
    graph = small()
    made = define(ROWS, view_of(graph, graph.nodes[2]))
    assert (
        text(made) == "z[z:0, z:1] = select(less(y[z:0, z:1], 0.0), mul(0.10000000149011612, y[z:0, z:1]), y[z:0, z:1])"
    )


def test_equal_graphs_have_equal_text() -> None:
    one, other = small(), small()
    assert one is not other and text(one) == text(other)
