"""Kernels between nodes that stay with ONNX Runtime: one small model for each class, at any size.

Every model is a kernel of two or three operators between graph inputs and outputs, so that values have ONNX's layout on
one side or both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
Sizes = tuple[int, ...]


@dataclass
class Draft:
    """A graph under construction; each method adds a node and returns its value."""

    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result."""
        out = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=out, **attributes))
        return out

    def constant(self, values: Any) -> str:
        """An initializer."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int) -> str:
        """Random weights scaled so that products keep the standard deviation of their inputs."""
        deviation = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1
        return self.constant((self.random.standard_normal(shape) * deviation).astype(np.float32))

    def conv(self, x: str, channels: int, filters: int, *kernel: int, stride: int = 1, group: int = 1) -> str:
        """A padded convolution."""
        pads = [k // 2 for k in kernel] * 2
        w, b = self.weight(filters, channels // group, *kernel), self.weight(filters)
        shape: dict[str, Any] = {"kernel_shape": kernel, "strides": [stride] * len(kernel), "pads": pads}
        return self.node("Conv", x, w, b, group=group, **shape)

    def silu(self, x: str) -> str:
        """x times its sigmoid."""
        return self.node("Mul", x, self.node("Sigmoid", x))


@dataclass(frozen=True, slots=True)
class Border:
    """A class: its model at a size, the shape of its input there, and six sizes."""

    name: str
    what: str
    write: Callable[[Draft, Sizes], tuple[str, ...]]  # what it adds behind the input x, and its results
    shape: Callable[[Sizes], Sizes]
    sizes: Sequence[Sizes]

    def build(self, sizes: Sizes) -> onnx.ModelProto:
        """The model."""
        draft = Draft()
        outputs = self.write(draft, sizes)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape(sizes))
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(draft.nodes, self.name, [x], made, draft.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred


def _first(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.silu(d.conv("x", 3, s[0], 3, 3, stride=2)),)


def _stem(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("Relu", d.conv("x", 3, s[0], 3, 3, stride=2))
    return (d.node("Relu", d.conv(x, s[0], s[0], 3, 3)),)


def _square(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.silu(d.conv("x", s[0], s[0], 3, 3)),)


def _pointwise(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.silu(d.conv("x", s[0], s[1], 1, 1)),)


def _few(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("Relu", d.conv("x", s[0], s[0], 1, 1))
    x = d.node("Relu", d.conv(x, s[0], s[1], s[2], s[2]))
    return (d.node("Relu", d.conv(x, s[1], s[0], 1, 1)),)


def _line(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.node("Relu", d.conv("x", s[0], s[0], 3)),)


def _recurrent(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("Relu", d.conv("x", s[0], s[0], 5))
    x = d.node("Transpose", x, perm=[2, 0, 1])
    w, r = d.weight(1, 4 * 16, s[0]), d.weight(1, 4 * 16, 16)
    return (d.node("LSTM", x, w, r, hidden_size=16),)


def _max_pool(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.node("MaxPool", d.node("Relu", "x"), kernel_shape=[2, 2], strides=[2, 2]),)


def _max_pool_padded(d: Draft, s: Sizes) -> tuple[str, ...]:
    shape: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    return (d.node("MaxPool", d.node("Relu", "x"), **shape),)


def _max_pool_wide(d: Draft, s: Sizes) -> tuple[str, ...]:
    shape: dict[str, Any] = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2, 2, 2, 2]}
    return (d.node("MaxPool", d.node("Relu", "x"), **shape),)


def _mean_pool(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.node("Sqrt", d.node("AveragePool", d.node("Abs", "x"), kernel_shape=[2, 2], strides=[2, 2])),)


def _global_pool(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.node("Sigmoid", d.node("GlobalAveragePool", d.node("Relu", "x"))),)


def _pool_behind(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("Relu", d.conv("x", s[0], 16, 1, 1))
    return (d.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),)


def _pool_before(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return (d.node("Relu", d.conv(x, s[0], 16, 3, 3)),)


def _mean_then(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("AveragePool", "x", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    return (d.node("Sub", x, d.constant(np.float32(0.1))),)


def _max_then(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return (d.node("Mul", x, d.constant(np.float32(0.5))),)


def _max_halves(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.node("Relu", d.node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])),)


def _softmax(axis: int) -> Callable[[Draft, Sizes], tuple[str, ...]]:
    def write(d: Draft, s: Sizes) -> tuple[str, ...]:
        scaled = d.node("Mul", "x", d.constant(np.float32(0.3)))
        return (d.node("Softmax", scaled, axis=axis),)

    return write


def _turned_softmax(d: Draft, s: Sizes) -> tuple[str, ...]:
    return (d.node("Softmax", d.node("Transpose", "x", perm=[0, 2, 3, 1]), axis=-1),)


def _channel_norm(d: Draft, s: Sizes) -> tuple[str, ...]:
    moved = d.node("Sub", "x", d.node("ReduceMean", "x", axes=[1], keepdims=1))
    square = d.node("ReduceMean", d.node("Mul", moved, moved), axes=[1], keepdims=1)
    root = d.node("Sqrt", d.node("Add", square, d.constant(np.float32(1e-5))))
    scale = d.constant(np.linspace(0.5, 1.5, s[0], dtype=np.float32).reshape(1, s[0], 1, 1))
    return (d.node("Mul", d.node("Div", moved, root), scale),)


def _reduced(op: str) -> Callable[[Draft, Sizes], tuple[str, ...]]:
    def write(d: Draft, s: Sizes) -> tuple[str, ...]:
        return (d.node("Sigmoid", d.node(op, d.node("Relu", "x"), axes=[1], keepdims=1)),)

    return write


def _running(axis: int) -> Callable[[Draft, Sizes], tuple[str, ...]]:
    def write(d: Draft, s: Sizes) -> tuple[str, ...]:
        return (d.node("CumSum", d.node("Sigmoid", "x"), d.constant(np.int64(axis))),)

    return write


def _turned(*perm: int) -> Callable[[Draft, Sizes], tuple[str, ...]]:
    def write(d: Draft, s: Sizes) -> tuple[str, ...]:
        return (d.node("Relu", d.node("Transpose", "x", perm=list(perm))),)

    return write


def _two_readers(d: Draft, s: Sizes) -> tuple[str, ...]:
    x = d.silu(d.conv("x", s[0], s[0], 3, 3))
    return x, d.silu(d.conv(x, s[0], s[0], 1, 1))


def _image(s: Sizes) -> Sizes:
    return (1, *s)


def _of(channels: int) -> Callable[[Sizes], Sizes]:
    return lambda s: (1, channels, *s[1:])


def _between(s: Sizes) -> Sizes:
    return (1, s[0], *s[2:])


_SQUARES = ((16, 160, 160), (32, 56, 56), (64, 80, 80), (64, 28, 28), (128, 20, 20), (256, 13, 17))
_ROWS = ((2, 112, 112), (19, 64, 64), (64, 40, 40), (80, 20, 20), (256, 7, 7), (21, 129, 65))
_FIRST = ((16, 224, 224), (32, 320, 320), (32, 160, 96), (48, 64, 64), (64, 224, 224), (24, 97, 131))
_LINES = ((64, 3000), (128, 1000), (256, 200), (32, 16000), (40, 501), (512, 50))
_IMAGES = ((64, 112, 112), (16, 56, 56), (128, 28, 28), (256, 14, 14), (32, 75, 41), (8, 320, 320))

_TABLE: tuple[Border, ...] = (
    Border("first-convolution", "3 channels, stride 2, result handed on", _first, _of(3), _FIRST),
    Border("stem", "3 channels, stride 2, then a convolution whose result is handed on", _stem, _of(3), _FIRST),
    Border("convolution", "3x3", _square, _image, _SQUARES),
    Border(
        "pointwise", "1x1", _pointwise, _between,
        ((64, 64, 80, 80), (32, 128, 56, 56), (256, 64, 40, 40), (96, 24, 28, 28), (512, 256, 20, 20),
          (40, 40, 13, 17)),
    ),
    Border(
        "few-filters", "few filters between other convolutions", _few, lambda s: (1, s[0], *s[3:]),
        ((64, 8, 1, 40, 40), (64, 3, 3, 40, 40), (256, 4, 1, 15, 20), (16, 16, 3, 40, 40), (128, 48, 1, 28, 28),
          (96, 2, 1, 33, 21)),
    ),
    Border("taps-of-a-line", "1-D, of 3 taps", _line, _image, _LINES),
    Border("recurrent", "1-D, before an LSTM", _recurrent, _image, tuple((c, n // 4) for c, n in _LINES)),
    Border("max-pool", "2x2, stride 2", _max_pool, _image, _IMAGES),
    Border("max-pool-padded", "3x3, stride 2, padded", _max_pool_padded, _image, _IMAGES),
    Border("max-pool-wide", "5x5, stride 1, padded", _max_pool_wide, _image, _IMAGES),
    Border("mean-pool", "2x2, stride 2", _mean_pool, _image, _IMAGES),
    Border("pool-behind", "a pool that reads a kernel and is read by the graph", _pool_behind, _image, _IMAGES),
    Border("pool-before", "a pool that reads the graph and is read by a kernel", _pool_before, _image, _IMAGES),
    Border("mean-then", "3x3, stride 1, padded, and a Sub", _mean_then, _image, _IMAGES),
    Border("max-then", "3x3, stride 2, padded, and a Mul", _max_then, _image, _IMAGES),
    Border("max-halves", "2x2, stride 2, and a Relu", _max_halves, _image, _IMAGES),
    Border("global-pool", "the mean of a whole image", _global_pool, _image, _IMAGES),
    Border("softmax-channels", "Softmax over the channels of an image", _softmax(1), _image, _ROWS),
    Border("softmax-lines", "Softmax over the lines of an image", _softmax(2), _image, _ROWS),
    Border("softmax-turned", "Softmax behind a Transpose", _turned_softmax, _image, _ROWS),
    Border("norm-channels", "layer normalization over channels, of primitives", _channel_norm, _image, _ROWS),
    Border("sum-channels", "ReduceMean over channels", _reduced("ReduceMean"), _image, _ROWS),
    Border("max-channels", "ReduceMax over channels", _reduced("ReduceMax"), _image, _ROWS),
    Border("running-channels", "CumSum over channels", _running(1), _image, _ROWS),
    Border("running-lines", "CumSum over lines", _running(2), _image, _ROWS),
    Border("running-columns", "CumSum over columns", _running(3), _image, _ROWS),
    Border("two-readers", "a result for a kernel and for the graph", _two_readers, _image, _SQUARES),
    *(
        Border(f"transpose-{''.join(map(str, perm))}", "a Transpose and Relu", _turned(*perm), lambda s: s, sizes)
        for perm, sizes in (
            ((1, 0), ((64, 64), (1000, 80), (128, 768), (3, 5000), (1025, 33), (512, 512))),
            ((0, 2, 1), ((1, 64, 3000), (12, 64, 128), (1, 3136, 64), (8, 17, 29), (1, 513, 200), (2, 3, 20000))),
            ((1, 0, 2), ((128, 12, 64), (50, 7, 96), (1000, 4, 32), (3, 500, 80), (64, 64, 5), (30, 40, 257))),
            ((2, 0, 1), ((1, 64, 500), (8, 32, 100), (64, 64, 64), (3, 224, 224), (16, 7, 201), (2, 500, 33))),
            ((2, 1, 0), ((64, 32, 48), (100, 20, 30), (3, 200, 200), (256, 1, 300), (17, 19, 23), (200, 200, 3))),
            ((0, 2, 3, 1), ((1, 3, 224, 224), (1, 64, 56, 56), (1, 256, 14, 14), (2, 19, 33, 35),
              (1, 32, 112, 112), (1, 2, 97, 101))),
            ((0, 3, 1, 2), ((1, 224, 224, 3), (1, 56, 56, 64), (1, 14, 14, 256), (2, 33, 35, 19),
              (1, 112, 112, 32), (1, 97, 101, 2))),
            ((0, 2, 1, 3), ((1, 128, 12, 64), (1, 12, 197, 64), (4, 50, 8, 32), (1, 1000, 4, 24), (2, 33, 5, 17),
              (1, 8, 512, 3))),
            ((0, 1, 3, 2), ((1, 12, 128, 64), (1, 8, 49, 32), (16, 4, 50, 64), (1, 2, 513, 300), (3, 5, 17, 19),
              (1, 64, 100, 4))),
            ((0, 3, 2, 1), ((1, 64, 20, 20), (1, 3, 64, 64), (2, 19, 21, 23), (1, 16, 128, 64), (1, 128, 7, 100),
              (1, 80, 1, 500))),
            ((0, 1, 4, 2, 5, 3), ((1, 3, 2, 2, 112, 112), (1, 16, 2, 2, 28, 28), (1, 64, 2, 2, 14, 14),
              (1, 1, 4, 4, 60, 80), (1, 3, 3, 3, 33, 35), (2, 8, 2, 2, 20, 20))),
            ((0, 1, 3, 2, 4, 5), ((1, 8, 7, 8, 7, 32), (1, 4, 8, 4, 8, 96), (1, 2, 7, 2, 7, 256),
              (1, 16, 4, 16, 4, 3), (2, 3, 5, 7, 5, 11), (1, 8, 8, 8, 8, 16))),
            ((0, 2, 1, 3, 4), ((1, 2, 32, 28, 28), (1, 3, 24, 14, 14), (1, 4, 60, 7, 7), (1, 8, 8, 40, 40),
              (2, 3, 5, 7, 11), (1, 2, 116, 14, 14))),
            ((2, 0, 3, 1, 4), ((1, 49, 3, 4, 32), (8, 49, 3, 8, 32), (1, 197, 3, 12, 64), (2, 100, 3, 4, 16),
              (1, 50, 2, 3, 7), (4, 64, 3, 6, 24))),
        )
    ),
)  # fmt: skip

BORDERS: Mapping[str, Border] = {row.name: row for row in _TABLE}
