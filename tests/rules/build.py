"""Short builders of graphs, and their evaluation by the definitions of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfuse.config import Options
from onnxfuse.ir.dtype import BF16, F32, I64, DType
from onnxfuse.ir.graph import Constant, Decision, Graph, Node, TensorType
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.interpret.elements import rounded
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import View, define
from onnxfuse.rewrite import STEPS, rewrite
from tests.elements import dtype_of_numpy

Array = np.ndarray[Any, Any]


class Build:
    """A graph under construction; values are typed by the rows as they are added."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self.rng = np.random.default_rng(3)
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.types: dict[str, TensorType | None] = {}
        self.constants: dict[str, Constant] = {}
        self.known: dict[str, tuple[Index, ...]] = {}

    def input(self, name: str, *shape: int | str | Index, dtype: DType = F32) -> str:
        """A graph input; extents that are names are symbols."""
        extents = tuple(Index.of(Symbol(e) if isinstance(e, str) else e) for e in shape)
        self.types[name] = TensorType(dtype, extents)
        self.inputs.append(name)
        return name

    def constant(self, value: Any, dtype: type = np.float32, name: str = "") -> str:
        """A constant of these elements."""
        array = np.asarray(value, None if isinstance(value, np.ndarray) else dtype)
        element = dtype_of_numpy(array.dtype)
        assert element is not None
        name = name or f"c{len(self.constants)}"
        self.constants[name] = Constant.of(array, element)
        self.types[name] = TensorType(element, tuple(map(Index.of, array.shape)))
        if array.dtype.kind == "i" and array.ndim <= 1:
            self.known[name] = tuple(Index.of(int(i)) for i in array.reshape(-1))
        return name

    def ints(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.constant(np.asarray(values, np.int64))

    def opaque(self, op: str, x: str, domain: str = "", outputs: tuple[str, ...] = (), **attrs: Any) -> str:
        """The first output of a node that no row defines; all outputs have the type of its input."""
        outputs = outputs or (f"v{len(self.nodes)}",)
        self.nodes.append(Node(op, (x,), outputs, attrs, f"{op.lower()}_{len(self.nodes)}", domain))
        self.types.update(dict.fromkeys(outputs, self.types[x]))
        return outputs[0]

    def node(self, op: str, *inputs: str, out: str = "", count: int = 1, **attrs: Any) -> Any:
        """The output of a node, or its outputs when there are several."""
        base = out or f"v{len(self.nodes)}"
        outputs = (base, *(f"{base}.{k}" for k in range(1, count)))
        node = Node(op, inputs, outputs, attrs, f"{op.lower()}_{len(self.nodes)}", origin=(f"{op}{len(self.nodes)}",))
        found = define(ROWS, View(node, self.types, self.constants, self.known, self.opset))
        if op == "Shape":
            have = self.types[inputs[0]]
            assert have is not None
            self.known[base] = have.shape
            self.types[base] = TensorType(I64, (Index.of(len(have.shape)),))
        else:
            made = {} if isinstance(found, Decision) else {d.name: d.type for d in found}
            self.types.update({o: made.get(o) for o in outputs})
            if op == "Concat" and all(i in self.known for i in inputs):
                self.known[base] = tuple(e for i in inputs for e in self.known[i])
        self.nodes.append(node)
        return outputs if count > 1 else base

    def weights(self, *shape: int, name: str = "") -> str:
        """A constant of random numbers."""
        return self.constant(self.rng.normal(size=shape).astype(np.float32), name=name)

    def dense(self, x: str, columns: int, *, bias: bool = True) -> str:
        """x @ w + b with random w and b."""
        have = self.types[x]
        assert have is not None
        y: str = self.node("MatMul", x, self.weights(have.shape[-1].constant or 0, columns))
        return str(self.node("Add", y, self.weights(columns))) if bias else y

    def pointwise(self, x: str, rows: int, *, bias: bool = True, **attrs: Any) -> str:
        """A convolution of single positions with random weights."""
        have = self.types[x]
        assert have is not None
        depth = (have.shape[1].constant or 0) // int(attrs.get("group", 1))
        w = self.weights(rows, depth, *(1,) * (len(have.shape) - 2))
        return str(self.node("Conv", x, w, *([self.weights(rows)] if bias else []), **attrs))

    def graph(self, *outputs: str) -> Graph:
        """The finished graph."""
        made = Graph(tuple(self.nodes), tuple(self.inputs), outputs, self.types, self.constants, self.known, self.opset)
        made.verify()
        return made


def run(graph: Graph, feeds: Mapping[str, Array], symbols: Mapping[str, int] | None = None) -> dict[str, Array]:
    """The outputs of a graph, node by node as the rows define them."""
    symbols = symbols or {}
    values: dict[str, Array] = {**{k: c.load() for k, c in graph.constants.items()}, **feeds}
    for node in graph.nodes:
        if node.op == "Shape":
            extents = values[node.inputs[0]].shape[node.attrs.get("start", 0) : node.attrs.get("end")]  # type: ignore[misc]
            values[node.outputs[0]] = np.asarray(extents, np.int64)
        elif node.op == "Identity":
            values[node.outputs[0]] = values[node.inputs[0]]
        else:
            found = define(ROWS, View(node, graph.types, graph.constants, graph.known, graph.opset))
            assert not isinstance(found, Decision), found
            values.update(meaning(found, values, symbols))
    for name, value in values.items():
        have = graph.types.get(name)
        if have is not None:
            shape = tuple(int(evaluate(e, lambda a: symbols[a.name])) for e in have.shape)
            assert value.shape == shape, name
    return {o: values[o] for o in graph.outputs}


def draw(graph: Graph, rng: np.random.Generator, symbols: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Random inputs."""
    feeds: dict[str, Array] = {}
    for name in graph.inputs:
        have = graph.types[name]
        assert have is not None
        shape = [int(evaluate(e, lambda a: (symbols or {})[a.name])) for e in have.shape]
        kind = have.dtype.kind
        values = rng.normal(size=shape) if kind == "f" else rng.integers(0, 2 if kind == "b" else 5, shape)
        drawn = values.astype(have.dtype.numpy)
        feeds[name] = rounded(drawn, BF16) if have.dtype == BF16 else drawn
    return feeds


def only(*names: str, enable: bool = False) -> Options:
    """Options that leave these steps alone; with `enable` they may assume what they cannot prove."""
    off = tuple(s.name for s in STEPS if s.name not in names)
    return Options(disable=off, enable=names if enable else ())


def rewritten(graph: Graph, options: Options | None = None) -> tuple[Graph, dict[str, int]]:
    """The rewritten graph, and how often each rule fired."""
    result, trace = rewrite(graph, options or Options())
    return result, {f.rule: f.count for f in trace}


def same(before: Graph, after: Graph, symbols: Mapping[str, int] | None = None, terms: int = 1, seed: int = 7) -> None:
    """Assert that two graphs compute the same, up to rounding of sums over `terms` products."""
    feeds = draw(before, np.random.default_rng(seed), symbols)
    want, got = run(before, feeds, symbols), run(after, feeds, symbols)
    for name in before.outputs:
        assert got[name].dtype == want[name].dtype
        assert got[name].shape == want[name].shape
        scale = float(np.abs(want[name]).max(initial=1.0)) if want[name].dtype.kind == "f" else 0.0
        np.testing.assert_allclose(
            got[name].astype(np.float64), want[name].astype(np.float64), 0, 2.0**-22 * (terms + 8) * scale, err_msg=name
        )


def ops(graph: Graph) -> list[str]:
    """The operators of a graph, in order."""
    return [n.op for n in graph.nodes]
