"""A small transformer layer as exporters write it: masked attention, residuals, LayerNorm, GELU by erf."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROWS, WIDTH, HEADS, HIDDEN = 16, 64, 4, 128


class _Layer:
    """Nodes and weights while they are written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def constant(self, value: object) -> str:
        """A value that is known."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        """Numbers about 0."""
        return self.constant((self.rng.normal(size=shape) * 0.2).astype(np.float32))

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """A node of one output."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        """A product with weights, and their bias."""
        return self.node("Add", self.node("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def norm(self, x: str) -> str:
        """LayerNorm."""
        return self.node("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)

    def head(self, x: str, perm: tuple[int, ...]) -> str:
        """Rows divided among heads."""
        shape = self.constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
        return self.node("Transpose", self.node("Reshape", self.linear(x, WIDTH, WIDTH), shape), perm=perm)

    def attention(self, x: str, mask: str) -> str:
        """Attention of all heads."""
        q, k, v = (self.head(x, perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = self.node("Mul", self.node("MatMul", q, k), self.constant(np.float32(0.25)))
        shares = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", shares, v), perm=(0, 2, 1, 3))
        return self.linear(self.node("Reshape", mixed, self.constant(np.array([0, 0, WIDTH]))), WIDTH, WIDTH)

    def gelu(self, x: str) -> str:
        """GELU by erf."""
        inside = self.node("Erf", self.node("Div", x, self.constant(np.float32(2**0.5))))
        twice = self.node("Mul", x, self.node("Add", inside, self.constant(np.float32(1))))
        return self.node("Mul", twice, self.constant(np.float32(0.5)))


def layer() -> onnx.ModelProto:
    """One layer on any batch."""
    made = _Layer()
    first = made.norm(made.node("Add", made.attention("x", "mask"), "x"))
    inner = made.linear(made.gelu(made.linear(first, WIDTH, HIDDEN)), HIDDEN, WIDTH)
    y = made.norm(made.node("Add", inner, first))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in (("x", ("B", ROWS, WIDTH)), ("mask", ("B", 1, 1, ROWS)), (y, ("B", ROWS, WIDTH)))]  # fmt: skip
    graph = helper.make_graph(made.nodes, "layer", ends[:2], ends[2:], made.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
