"""Models of one operator in usual sizes, by which the rows of `onnxfuse/cost/runtime.py` are measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


@dataclass(frozen=True, slots=True)
class Case:
    """One node: shapes of activations (of a type other than float32 where a letter says so) and arrays of constants."""

    op: str
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]
    outputs: int = 1
    domain: str = ""

    @property
    def label(self) -> str:
        """For people."""
        shown = [str(list(each.shape)) + "c" if isinstance(each, np.ndarray) else str(each) for each in self.inputs]
        attrs = " ".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op} {' '.join(shown)} {attrs}".strip()

    def model(self) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """The model and inputs to run it with."""
        rng = np.random.default_rng(0)
        names, given, feeds, weights = [], [], {}, []
        for at, each in enumerate(self.inputs):
            name = f"x{at}" if each is not None else ""
            names.append(name)
            if isinstance(each, np.ndarray):
                weights.append(numpy_helper.from_array(each, name))
            elif each is not None:
                shape, dtype = (each[1:], each[0]) if isinstance(each[0], str) else (each, "float32")
                feeds[name] = random_values(rng, shape, dtype)
                onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                given.append(helper.make_tensor_value_info(name, onnx_type, shape))
        outs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outs, name="node", domain=self.domain, **self.attrs)
        made = [onnx.ValueInfoProto(name=out) for out in outs]
        graph = helper.make_graph([node], "g", given, made, weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def random_values(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Any:
    """Values that every operator takes: positive, indices of 0 and 1."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in ("int64", "int32", "uint8", "int8"):
        return rng.integers(0, 2, shape).astype(dtype)
    return (rng.random(shape) + 0.1).astype(dtype)


def _weights(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(1)
    if dtype != "float32":
        return rng.integers(-7, 7, shape).astype(dtype)
    return (rng.standard_normal(shape) / math.sqrt(max(math.prod(shape[1:]), 1))).astype(np.float32)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


_SIZES = ((64, 256), (128, 768), (512, 1024))
_IMAGES = ((1, 32, 56, 56), (1, 128, 28, 28), (1, 64, 112, 112), (1, 512, 14, 14))


def cases() -> Iterator[Case]:
    """Every measured node."""
    yield from _elementwise()
    yield from _rows()
    yield from _products()
    yield from _convolutions()
    yield from _moves()
    yield from _codes()


def _elementwise() -> Iterator[Case]:
    row = _weights(1024)
    for s in _SIZES:
        for op in ("Add", "Mul", "Max"):
            yield Case(op, (s, s), {})
        yield Case("Div", (s, s), {})
        for op in ("Relu", "Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "LeakyRelu", "HardSigmoid", "HardSwish"):
            yield Case(op, (s,), {})
        yield Case("Clip", (s, np.array(0, np.float32), np.array(6, np.float32)), {})
        for op in ("Exp", "Sigmoid", "Tanh", "Erf", "Gelu"):
            yield Case(op, (s,), {})
        for op in ("Log", "Sin", "Cos", "Softplus", "Elu", "Mish"):
            yield Case(op, (s,), {})
        for exponent in (2, 2.5, 3):
            yield Case("Pow", (s, np.array(exponent, np.float32)), {})
        for op in ("Greater", "Equal", "LessOrEqual"):
            yield Case(op, (s, s), {})
        yield Case("Where", (("bool", *s), s, s), {})
        yield Case("And", (("bool", *s), ("bool", *s)), {})
        yield Case("Add", (("int64", *s), ("int64", *s)), {})
        yield Case("Mul", (("int64", *s), ("int64", *s)), {})
        for to in (7, 9, 10):
            yield Case("Cast", (s,), {"to": to})
        yield Case("Cast", (("int64", *s),), {"to": 1})
        yield Case("Cast", (("bool", *s),), {"to": 1})
    for op in ("Add", "Mul"):
        yield Case(op, ((512, 1024), row), {})
        yield Case(op, ((1, 64, 56, 56), _weights(64, 1, 1)), {})


def _rows() -> Iterator[Case]:
    for s in (*_SIZES, (8192, 32)):
        for op in ("ReduceMean", "ReduceMax"):
            yield Case(op, (s, _ints(1)), {})
            yield Case(op, (s, _ints(0)), {})
        yield Case("ReduceSum", (s, _ints(1)), {})
        yield Case("ReduceL2", (s, _ints(1)), {})
        yield Case("ArgMax", (s,), {"axis": 1})
        yield Case("CumSum", (s, np.array(1, np.int64)), {})
        yield Case("Softmax", (s,), {"axis": -1})
        yield Case("LogSoftmax", (s,), {"axis": -1})
        yield Case("LayerNormalization", (s, _weights(s[1]), _weights(s[1])), {})
        yield Case("SimplifiedLayerNormalization", (s, _weights(s[1])), {})
    for s in _IMAGES:
        yield Case("Softmax", (s,), {"axis": 1})
        yield Case("InstanceNormalization", (s, _weights(s[1]), _weights(s[1])), {})
        yield Case("ReduceMean", (s, _ints(2, 3)), {})
        yield Case("GlobalAveragePool", (s,), {})
        for op, size, stride in (("MaxPool", 2, 2), ("MaxPool", 3, 2), ("AveragePool", 3, 1), ("MaxPool", 5, 1)):
            around = {"pads": [size // 2] * 4} if size % 2 else {}
            yield Case(op, (s,), {"kernel_shape": [size, size], "strides": [stride, stride], **around})
        for mode in ("nearest", "linear", "cubic"):
            sizes = _ints(s[0], s[1], 2 * s[2], 2 * s[3])
            yield Case("Resize", (s, None, None, sizes), {"mode": mode})
        for mode in ("nearest", "linear", "cubic"):
            yield Case("GridSample", (s, (s[0], 2 * s[2], 2 * s[3], 2)), {"mode": mode})
        regions = (
            np.tile(np.float32([1, 1, s[3] - 1, s[2] - 1]), (100, 1)) * np.float32(np.linspace(0.2, 1, 100))[:, None]
        )
        for side in (7, 14):
            sizes = {"output_height": side, "output_width": side, "sampling_ratio": 2}
            yield Case("RoiAlign", (s, regions, np.zeros(100, np.int64)), sizes)


def _products() -> Iterator[Case]:
    for m, k, n in ((128, 768, 768), (128, 768, 3072), (512, 256, 256), (196, 384, 384), (64, 64, 64), (1024, 64, 128)):
        yield Case("MatMul", ((1, m, k), _weights(k, n)), {})
        yield Case("Gemm", ((m, k), _weights(k, n), _weights(n)), {})
    for m, k, n in ((1, 256, 256), (1, 512, 1024), (4, 512, 512), (8, 256, 1024), (1, 768, 768)):
        yield Case("MatMul", ((1, m, k), _weights(k, n)), {})
        yield Case("Gemm", ((m, k), _weights(k, n), _weights(n)), {})
    for b, m, k, n in ((12, 128, 64, 128), (12, 128, 128, 64), (8, 64, 32, 64), (64, 49, 32, 49), (12, 512, 64, 512)):
        yield Case("MatMul", ((1, b, m, k), (1, b, k, n)), {})
    for m, k, n in ((128, 768, 768), (16, 384, 384)):
        zero, scale = np.array(3, np.uint8), np.array(0.1, np.float32)
        left, right = ("uint8", m, k), _weights(k, n, dtype="int8")
        yield Case("MatMulInteger", (left, right, zero), {})
        yield Case("QLinearMatMul", (left, scale, zero, right, scale, np.array(0, np.int8), scale, zero), {})


_WINDOWS = (  # channels, image, filters, window, stride, groups
    (64, 56, 256, 1, 1, 1), (256, 28, 128, 1, 1, 1), (512, 14, 512, 1, 1, 1), (16, 80, 16, 1, 1, 1),
    (64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1), (256, 14, 256, 3, 1, 1), (64, 56, 128, 3, 2, 1),
    (32, 80, 32, 3, 1, 1), (16, 96, 16, 3, 1, 1), (64, 28, 64, 5, 1, 1), (32, 28, 64, 7, 1, 1),
    (3, 224, 64, 7, 2, 1), (3, 224, 32, 3, 2, 1), (1, 96, 16, 3, 1, 1), (3, 160, 16, 3, 2, 1),
    (64, 56, 64, 3, 1, 64), (128, 28, 128, 7, 1, 128), (96, 56, 96, 5, 2, 96), (512, 14, 512, 3, 1, 512),
    (64, 40, 64, 7, 1, 64), (128, 28, 128, 3, 1, 4), (64, 56, 64, 3, 1, 8),
)  # fmt: skip


def _convolutions() -> Iterator[Case]:
    for c, image, filters, window, stride, groups in _WINDOWS:
        weights = _weights(filters, c // groups, window, window)
        around = {"pads": [window // 2] * 4, "strides": [stride, stride], "group": groups}
        yield Case("Conv", ((1, c, image, image), weights, _weights(filters)), around)
    for c, length, filters, window in ((128, 200, 128, 3), (256, 500, 256, 1), (1, 4000, 258, 256), (64, 1000, 64, 5)):
        yield Case("Conv", ((1, c, length), _weights(filters, c, window), _weights(filters)), {})
    for c, image, filters, window in ((64, 28, 32, 2), (128, 14, 64, 4), (24, 80, 24, 2)):
        around = {"strides": [2, 2], "pads": [(window - 2) // 2] * 4}
        yield Case("ConvTranspose", ((1, c, image, image), _weights(c, filters, window, window)), around)
    zero, scale = np.array(3, np.uint8), np.array(0.1, np.float32)
    for c, image, filters, window in ((64, 56, 64, 3), (256, 14, 256, 1)):
        weights = _weights(filters, c, window, window, dtype="int8")
        inputs = (("uint8", 1, c, image, image), scale, zero, weights, scale, np.array(0, np.int8), scale, zero)
        yield Case("QLinearConv", inputs, {"pads": [window // 2] * 4})


def _moves() -> Iterator[Case]:
    for s in _IMAGES:
        yield Case("Transpose", (s,), {"perm": [0, 2, 3, 1]})
        yield Case("Concat", (s, s), {"axis": 1})
        yield Case("Pad", (s, _ints(0, 0, 1, 1, 0, 0, 1, 1)), {})
        yield Case("Pad", (s, _ints(0, 0, 3, 3, 0, 0, 3, 3)), {"mode": "reflect"})
        yield Case("Slice", (s, _ints(1, 1), _ints(-1, -1), _ints(2, 3)), {})
        yield Case("Slice", (s, _ints(0), _ints(s[1] // 2), _ints(1)), {})
        yield Case("Split", (s,), {"axis": 1, "num_outputs": 2}, outputs=2)
        yield Case("DepthToSpace", (s,), {"blocksize": 2})
        yield Case("Expand", ((1, s[1], 1, 1), _ints(*s)), {})
    for s in _SIZES:
        yield Case("Transpose", (s,), {"perm": [1, 0]})
        yield Case("Transpose", ((1, s[0], s[1] // 32, 32),), {"perm": [0, 2, 1, 3]})
        yield Case("Concat", (s, s), {"axis": 1})
        yield Case("Slice", (s, _ints(0), _ints(s[1] // 2), _ints(1)), {})
        yield Case("Gather", (_weights(3000, s[1]), ("int64", s[0])), {})
        yield Case("Gather", (s, ("int64", s[1] // 2)), {"axis": 1})
        yield Case("GatherElements", (s, ("int64", *s)), {"axis": 1})
        yield Case("Tile", (s, _ints(2, 1)), {})
        yield Case("ScatterElements", (s, ("int64", *s), s), {"axis": 0})
        yield Case("Trilu", (s,), {})


def _codes() -> Iterator[Case]:
    zero, scale = np.array(3, np.uint8), np.array(0.1, np.float32)
    for s in _SIZES:
        yield Case("QuantizeLinear", (s, scale, zero), {})
        yield Case("DequantizeLinear", (("uint8", *s), scale, zero), {})
        yield Case("DynamicQuantizeLinear", (s,), {}, outputs=3)
        codes = (("uint8", *s), scale, zero)
        yield Case("QLinearAdd", (*codes, *codes, scale, zero), {}, domain="com.microsoft")
