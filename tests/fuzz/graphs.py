"""Random small models: elementwise work, movement, reductions, products, convolutions; symbols, several outputs.

Shapes are tracked, so that every model is valid, and so is the size of numbers, so that none overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Extent = int | str
Shape = tuple[Extent, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

OPSET = 20
EXTENTS = (1, 2, 3, 5, 7, 8, 16, 17, 33)
SYMBOLS = ("N", "S")
SIZES: tuple[dict[str, int], ...] = ({"N": 3, "S": 17}, {"N": 1, "S": 1}, {"N": 2, "S": 40})
LARGEST = 20000  # elements of one value, symbols counted as 40
MOST = 1e4  # absolute value of a number
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@dataclass(frozen=True)
class Value:
    """A tensor of the model under construction; its elements are at most `most`, and exact unless rounded."""

    name: str
    shape: Shape
    dtype: int = FLOAT
    most: float = 4.0

    @property
    def size(self) -> int:
        return prod(e if isinstance(e, int) else 40 for e in self.shape)


@dataclass(frozen=True)
class Made:
    """A finished model; `seed` draws its inputs, for each of the SIZES where it has a symbol."""

    model: onnx.ModelProto
    inputs: tuple[Value, ...]
    seed: int

    @property
    def sizes(self) -> tuple[Mapping[str, int], ...]:
        used = any(isinstance(e, str) for v in self.inputs for e in v.shape)
        return SIZES if used else ({},)

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)
        out: dict[str, Array] = {}
        for v in self.inputs:
            shape = [e if isinstance(e, int) else sizes[e] for e in v.shape]
            if v.dtype == INT64:
                out[v.name] = np.asarray(rng.integers(0, int(v.most) + 1, shape))
            else:
                out[v.name] = np.asarray(np.clip(rng.normal(size=shape), -v.most, v.most), np.float32)
        return out


@dataclass
class Maker:
    """Draws one node after another."""

    draw: Draw
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def one(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def input(self, shape: Shape, dtype: int = FLOAT, most: float = 4.0) -> Value:
        v = Value(f"x{len(self.inputs)}", shape, dtype, most)
        self.inputs.append(v)
        self.values.append(v)
        return v

    def constant(self, array: Array) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weights(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant(np.asarray(np.clip(self.rng.normal(size=shape), -3, 3) * scale, np.float32))

    def node(self, op: str, inputs: list[str], *made: tuple[Shape, int, float], **attrs: Any) -> list[Value]:
        """A node with outputs of these shapes, types and sizes."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(len(made))]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}_{len(self.nodes)}", **attrs))
        out = [Value(n, *m) for n, m in zip(names, made, strict=True)]
        self.values.extend(out)
        return out

    def like(self, v: Value) -> Value | str:
        """Something that broadcasts to a value: another value, an input, or a constant."""
        fitting = [w for w in self.values if w.dtype == v.dtype and w is not v and broadcasts(w.shape, v.shape)]
        choice = self.one(["value"] * bool(fitting) + ["input", "constant"])
        if choice == "value":
            found: Value = self.one(fitting)
            return found
        shape = tuple(1 if self.draw(st.integers(0, 3)) == 0 else e for e in v.shape)
        shape = shape[self.draw(st.integers(0, len(shape))) :]
        if choice == "input" and v.dtype == FLOAT and len(self.inputs) < 4:
            return self.input(shape)
        whole = tuple(e if isinstance(e, int) else 1 for e in shape)
        return self.weights(*whole) if v.dtype == FLOAT else self.constant(np.asarray(self.rng.integers(0, 5, whole)))

    def floats(self, least_rank: int = 0, most: float = MOST) -> list[Value]:
        return [v for v in self.values if v.dtype == FLOAT and len(v.shape) >= least_rank and v.most <= most]

    def finished(self) -> Made:
        """The model: values that nobody reads are outputs, and some of the others are."""
        read = {name for n in self.nodes for name in n.input}
        made = [v for v in self.values if v not in self.inputs]
        outputs = [v for v in made if v.name not in read or (v.dtype == FLOAT and self.draw(st.integers(0, 5)) == 0)]
        known = [v for v in self.inputs if v.name in read]
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            [helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in known],
            [helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in outputs],
            self.initializers,
        )
        imports = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=9)
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
        return Made(model, tuple(known), self.draw(st.integers(0, 2**16)))


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether a shape broadcasts to another without changing it."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
