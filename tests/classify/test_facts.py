"""Facts of nodes and graphs: kinds, contractions, work, traffic, refusals, symbols, and the time they take."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import F32, I64
from onnxfuse.ir.graph import Constant, Graph, Node, TensorType
from onnxfuse.ir.group import Group
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ir.scalar import Load
from onnxfuse.ops.classify import Facts, MapType, NodeFacts, facts, group_facts
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import Definition, View, define

B, S = Symbol("batch"), Symbol("sequence")


class Builder:
    """Makes graphs whose types come from the rows themselves."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType | None] = {}
        self.constants: dict[str, Constant] = {}
        self.known: dict[str, tuple[Index, ...]] = {}
        self.inputs: list[str] = []

    def input(self, name: str, *shape: Any) -> str:
        self.types[name] = TensorType(F32, tuple(map(Index.of, shape)))
        self.inputs.append(name)
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        self.constants[name] = Constant(F32, shape, lambda: np.ones(shape, np.float32))
        self.types[name] = TensorType(F32, tuple(map(Index.of, shape)))
        return name

    def ints(self, *values: int) -> str:
        name = f"i{len(self.constants)}"
        self.constants[name] = Constant.of(np.array(values), I64)
        self.types[name] = TensorType(I64, (Index.of(len(values)),))
        self.known[name] = tuple(map(Index.of, values))
        return name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        at = len(self.nodes)
        made = tuple(f"v{at}_{k}" if k else f"v{at}" for k in range(outputs))
        node = Node(op, inputs, made, attrs, f"n{at}")
        self.nodes.append(node)
        found = define(ROWS, View(node, self.types, self.constants, self.known, self.opset))
        types = {d.name: d.type for d in found if isinstance(d, Definition)} if isinstance(found, tuple) else {}
        self.types.update({o: types.get(o) for o in made})
        return made[0]

    def graph(self, *outputs: str) -> Graph:
        made = Graph(tuple(self.nodes), tuple(self.inputs), outputs, self.types, self.constants, self.known, self.opset)
        made.verify()
        return made


def one(b: Builder, name: str) -> NodeFacts:
    known = facts(b.graph(name), ROWS)
    return known.node[b.nodes[-1].name]


def test_matmul_is_a_contraction() -> None:
    b = Builder()
    found = one(b, b("MatMul", b.input("x", 6, 8, 5), b.weight(5, 7)))
    assert found.kind == "contraction" and found.type is MapType.MANY_TO_MANY
    assert found.flops == 2 * 6 * 8 * 5 * 7
    c = found.contraction
    assert c is not None
    d = found.definitions[0]
    assert isinstance(c.left, Load) and isinstance(c.right, Load)
    assert (c.batch, c.rows, c.columns) == ((), d.axes[:2], d.axes[2:]) and len(c.ranges) == 1
    assert (c.left.source, c.right.source) == ("x", "w0")


@pytest.mark.parametrize(
    ("op", "left", "right", "attrs", "sizes"),
    [
        ("MatMul", (2, 3, 4, 5), (2, 3, 5, 6), {}, ("batch 0 1", "rows 2", "columns 3")),
        ("MatMul", (4, 5), (2, 5, 6), {}, ("batch", "rows 1", "columns 0 2")),
        ("MatMul", (5,), (5, 6), {}, ("batch", "rows", "columns 0")),
        ("Gemm", (5, 4), (6, 5), {"transA": 1, "transB": 1}, ("batch", "rows 0", "columns 1")),
        ("Conv", (2, 3, 8, 8), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}, ("batch", "rows 0 2 3", "columns 1")),
        ("Conv", (2, 4, 8, 8), (4, 1, 3, 3), {"group": 4}, ("batch 1", "rows 0 2 3", "columns")),
        ("Conv", (2, 4, 8, 8), (6, 2, 1, 1), {"group": 2}, ("batch 1", "rows 0 2 3", "columns")),
        ("Conv", (2, 4, 8), (6, 4, 1), {}, ("batch", "rows 0 2", "columns 1")),
    ],
)
def test_axes_of_contractions(op: str, left: Any, right: Any, attrs: Any, sizes: Any) -> None:
    b = Builder()
    found = one(b, b(op, b.input("x", *left), b.input("y", *right), **attrs))
    c, axes = found.contraction, found.definitions[0].axes
    assert c is not None
    told = tuple(" ".join([n, *(str(axes.index(a)) for a in getattr(c, n))]) for n in ("batch", "rows", "columns"))
    assert told == sizes


def test_operators_that_are_not_contractions() -> None:
    for op, shape, attrs in (
        ("ReduceSumSquare", (3, 5), {"axes": (1,)}),
        ("ReduceMean", (3, 5), {"axes": (1,)}),
        ("Softmax", (3, 5), {"axis": -1}),
        ("AveragePool", (1, 3, 6, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    ):
        b = Builder(opset=13)
        found = one(b, b(op, b.input("x", *shape), **attrs))
        assert found.kind == "reduction" and found.contraction is None


def test_kinds_of_other_nodes() -> None:
    def kind(op: str, *inputs: str, **attrs: Any) -> str:
        return one(b, b(op, *inputs, **attrs)).kind

    b = Builder()
    x = b.input("x", 2, 3, 4)
    assert kind("Relu", x) == "elementwise"
    assert kind("Cast", x, to=10) == "elementwise"
    assert kind("Add", x, x) == "elementwise"
    assert kind("Transpose", x, perm=(2, 0, 1)) == "movement"
    assert kind("Reshape", x, b.ints(6, 4)) == "movement"
    assert kind("Concat", x, x, axis=1) == "movement"
    assert kind("Pad", x, b.ints(0, 1, 0, 0, 0, 1)) == "movement"
    assert kind("ConstantOfShape", b.ints(2, 3)) == "movement"
    assert kind("Identity", x) == "movement"


def test_work() -> None:
    b = Builder()
    x = b.input("x", 8, 6)
    square = one(b, b("Mul", x, x))
    assert square.flops == 48
    assert one(b, b("Transpose", x)).flops == 0
    assert one(b, b("Cast", x, to=1)).flops == 0
    assert one(b, b("ReduceSum", x, b.ints(1))).flops == 48
    mean = one(b, b("ReduceMean", x, axes=(1,)))
    assert mean.flops == 48 + 8
    softmax = one(b, b("Softmax", x))
    assert softmax.flops == 48 + 96 + 48 + 48  # max, exp of a difference, sum, division


def test_a_gathered_table_is_one_to_many() -> None:
    b = Builder()
    b.types["ids"] = TensorType(I64, (Index.of(B), Index.of(S)))
    b.inputs.append("ids")
    found = one(b, b("Gather", b.weight(30000, 16), "ids"))
    assert found.type is MapType.ONE_TO_MANY


def test_symbols_stay_symbols() -> None:
    b = Builder()
    found = one(b, b("MatMul", b.input("x", B, S, 64), b.weight(64, 32)))
    assert found.flops == Index.of(B) * S * (2 * 64 * 32)
    heads = b("Reshape", b.input("h", B, S, 64), b.ints(0, 0, 4, 16))
    split = one(b, b("Transpose", heads, perm=(0, 2, 1, 3)))
    assert split.type is MapType.SHUFFLE


def test_refusals_are_kept() -> None:
    b = Builder()
    x = b.input("x", 2, 3)
    unknown = b("NonZero", x)
    after = b("Add", unknown, unknown)
    known = facts(b.graph(b("Relu", x), after), ROWS)
    assert set(known.node) == {"n2"}
    assert {n: d.code for n, d in known.refusals.items()} == {"n0": "E-NO-KERNEL", "n1": "E-SHAPE-UNKNOWN"}
    assert all(d.nodes == (n,) for n, d in known.refusals.items())


def test_groups_have_the_combined_type() -> None:
    b = Builder()
    x = b.input("x", 4, 8)
    y = b("Relu", b("Add", b("MatMul", x, b.weight(8, 6)), b.weight(6)))
    z = b("Transpose", b("Relu", x))
    graph = b.graph(y, z)
    known = facts(graph, ROWS)
    fused = Group("g", graph.nodes[:3], ("x", "w0", "w1"), (y,))
    assert group_facts(known, fused) == (MapType.MANY_TO_MANY, Index.of(4 * 6 * (2 * 8 + 2)))
    moved = Group("h", graph.nodes[3:], ("x",), (z,))
    assert group_facts(known, moved) == (MapType.SHUFFLE, Index.of(32))


def encoder(layers: int) -> Graph:
    """A transformer encoder in primitive operators with symbolic batch and sequence, 82 nodes a layer."""
    b = Builder()
    x, mask = b.input("x", B, S, 768), b.input("mask", B, 1, 1, S)
    for _ in range(layers):
        heads = []
        for _ in range(3):
            y = b("Add", b("MatMul", x, b.weight(768, 768)), b.weight(768))
            heads.append(b("Transpose", b("Reshape", y, b.ints(0, 0, 12, 64)), perm=(0, 2, 1, 3)))
        scores = b("MatMul", heads[0], b("Transpose", heads[1], perm=(0, 1, 3, 2)))
        p = b("Softmax", b("Add", b("Div", scores, b.weight(1)), mask))
        y = b("Reshape", b("Transpose", b("MatMul", p, heads[2]), perm=(0, 2, 1, 3)), b.ints(0, 0, 768))
        x = normalized(b, b("Add", b("Add", b("MatMul", y, b.weight(768, 768)), b.weight(768)), x))
        y = b("Add", b("MatMul", x, b.weight(768, 3072)), b.weight(3072))
        for _ in range(4):  # GELU and friends, spelled out
            t = b("Add", b("Erf", b("Div", y, b.weight(1))), b.weight(1))
            y = b("Mul", b("Mul", y, t), b.weight(1))
        y = b("Add", b("MatMul", y, b.weight(3072, 768)), b.weight(768))
        x = normalized(b, b("Add", y, x))
        for _ in range(8):
            x = b("Tanh", b("Mul", x, b.weight(768)))
    return b.graph(x)


def normalized(b: Builder, x: str) -> str:
    centred = b("Sub", x, b("ReduceMean", x, axes=(-1,)))
    variance = b("ReduceMean", b("Pow", centred, b.weight(1)), axes=(-1,))
    y = b("Div", centred, b("Sqrt", b("Add", variance, b.weight(1))))
    return b("Add", b("Mul", y, b.weight(768)), b.weight(768))


def test_facts_of_a_thousand_nodes_take_less_than_two_seconds() -> None:
    graph = encoder(12)
    assert 900 <= len(graph.nodes) <= 1100
    start = time.process_time()
    known = facts(graph, ROWS)
    spent = time.process_time() - start
    assert spent < 2.0, f"{spent:.2f} s"
    assert isinstance(known, Facts) and not known.refusals
    kinds = [f.kind for f in known.node.values()]
    assert kinds.count("contraction") == 12 * 8
