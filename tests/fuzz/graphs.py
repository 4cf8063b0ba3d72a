"""The maker of random small models, which draws node after node: of any opset, type, rank, with symbols or without.

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

OPSETS = (9, 11, 12, 13, 17, 18, 20, 20, 21, 23)
EXTENTS = (1, 2, 3, 5, 7, 8, 16, 17, 33)
SYMBOLS = ("N", "S")
SIZES: tuple[dict[str, int], ...] = ({"N": 3, "S": 17}, {"N": 1, "S": 1}, {"N": 2, "S": 40})
LARGEST = 20000  # elements of one value, symbols counted as 40
FLOAT, DOUBLE, HALF = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
WHOLE = (INT32, INT64)
REAL = (FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, DOUBLE, HALF)
MOST = {FLOAT: 1e4, DOUBLE: 1e4, HALF: 100.0}  # absolute value of a number


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
            kind = helper.tensor_dtype_to_np_dtype(v.dtype)
            if v.dtype in WHOLE or v.dtype == BOOL:
                out[v.name] = np.asarray(rng.integers(0, int(v.most) + 1, shape)).astype(kind)
            else:
                out[v.name] = np.asarray(np.clip(rng.normal(size=shape), -v.most, v.most)).astype(kind)
        return out


@dataclass
class Maker:
    """Draws one node after another."""

    draw: Draw
    opset: int = 20
    real: int = FLOAT  # the type of the model's real numbers
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def limit(self) -> float:
        """How large a number may become."""
        return MOST[self.real]

    def one(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def input(self, shape: Shape, dtype: int = 0, most: float = 4.0) -> Value:
        v = Value(f"x{len(self.inputs)}", shape, dtype or self.real, most)
        self.inputs.append(v)
        self.values.append(v)
        return v

    def constant(self, array: Array) -> str:
        """A constant: an initializer, or now and then a node."""
        if self.draw(st.integers(0, 5)) == 0:
            name = f"k{len(self.nodes)}"
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array, name)))
            return name
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weights(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant(self.drawn(*shape, scale=scale))

    def drawn(self, *shape: int, scale: float = 1.0) -> Array:
        """Numbers of the model's real type, at most 3 times `scale`."""
        numbers = np.clip(self.rng.normal(size=shape), -3, 3) * scale
        return np.asarray(numbers, helper.tensor_dtype_to_np_dtype(self.real))

    def node(self, op: str, inputs: list[str], *made: tuple[Shape, int, float], **attrs: Any) -> list[Value]:
        """A node with outputs of these shapes, types and sizes."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(len(made))]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}_{len(self.nodes)}", **attrs))
        out = [Value(n, *m) for n, m in zip(names, made, strict=True)]
        self.values.extend(out)
        return out

    def node_with(
        self, op: str, inputs: list[str], made: tuple[Shape, int, float], since: int, name: str, values: Any,
        **attrs: Any,
    ) -> Value:  # fmt: skip
        """A node with whole numbers that are an attribute before opset `since` and an input from it on."""
        whole = [int(v) for v in values]
        if self.opset < since:
            (out,) = self.node(op, inputs, made, **attrs, **{name: whole})
        else:
            (out,) = self.node(op, [*inputs, self.ints(*whole)], made, **attrs)
        return out

    def hide(self, *names: str) -> None:
        """Let nobody read these values any more: shapes, which have no row."""
        self.values = [v for v in self.values if v.name not in names]

    def like(self, v: Value) -> Value | str:
        """Something that broadcasts to a value: another value, an input, or a constant."""
        fitting = [w for w in self.values if w.dtype == v.dtype and w is not v and broadcasts(w.shape, v.shape)]
        choice = self.one(["value"] * bool(fitting) + ["input", "constant"])
        if choice == "value":
            found: Value = self.one(fitting)
            return found
        shape = tuple(1 if self.draw(st.integers(0, 3)) == 0 else e for e in v.shape)
        shape = shape[self.draw(st.integers(0, len(shape))) :]
        if choice == "input" and v.dtype == self.real and len(self.inputs) < 4:
            return self.input(shape)
        whole = tuple(e if isinstance(e, int) else 1 for e in shape)
        if v.dtype == self.real:
            return self.weights(*whole)
        kind = helper.tensor_dtype_to_np_dtype(v.dtype)
        return self.constant(np.asarray(self.rng.integers(0, 2 if v.dtype == BOOL else 5, whole)).astype(kind))

    def floats(self, least_rank: int = 0, most: float = float("inf")) -> list[Value]:
        return [v for v in self.values if v.dtype == self.real and len(v.shape) >= least_rank and v.most <= most]

    def exact(self) -> list[Value]:
        """Real values that were not rounded, so that comparisons of them are certain."""
        return [v for v in self.inputs if v.dtype == self.real]

    def finished(self) -> Made:
        """The model: values that nobody reads are outputs, and some of the others are."""
        read = {name for n in self.nodes for name in n.input}
        made = [v for v in self.values if v not in self.inputs]
        outputs = [v for v in made if v.name not in read or self.draw(st.integers(0, 5)) == 0]
        known = [v for v in self.inputs if v.name in read]
        graph = helper.make_graph(
            self.nodes,
            "fuzz",
            [helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in known],
            [helper.make_tensor_value_info(v.name, v.dtype, list(v.shape)) for v in outputs],
            self.initializers,
        )
        imports = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
        return Made(model, tuple(known), self.draw(st.integers(0, 2**16)))


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether a shape broadcasts to another without changing it."""
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
