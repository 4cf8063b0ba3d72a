"""Each twin's computation as a small ONNX model with the weights of its case, and the tensors its kernel is fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.twins.cases import Array, Case

FLOAT = TensorProto.FLOAT
IR_VERSION = 8  # what ONNX Runtime 1.18 and newer read


@dataclass(frozen=True, slots=True)
class Twin:
    """The model of a case. `group` is a value that only the raced kernel makes.

    `feeds` are that kernel's inputs other than weights, in logical (ONNX) order; its output, in the layout that the
    planner chose, has the elements of the case's reference in the same order.
    """

    model: bytes
    group: str
    feeds: Mapping[str, Array] = field(default_factory=dict)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    output: Mapping[str, Sequence[int | str]],
    weights: Mapping[str, Array],
    opset: int,
) -> bytes:
    """A checked model; inputs and output are float32."""
    graph = helper.make_graph(
        list(nodes),
        "twin",
        [_value(name, shape) for name, shape in inputs.items()],
        [_value(name, shape) for name, shape in output.items()],
        [numpy_helper.from_array(np.ascontiguousarray(values), name) for name, values in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _value(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, list(shape))


def _node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    outputs = output.split()
    return helper.make_node(op, inputs.split(), outputs, name=f"node_{outputs[0]}", **attributes)


def _from_panels(packed: Array) -> Array:
    """The [depth, columns] matrix behind the panels [columns / 32][depth][32]."""
    return packed.transpose(1, 0, 2).reshape(packed.shape[1], -1)


def _from_filters(packed: Array) -> Array:
    """3x3 convolution weights [out, in, 3, 3] behind the panels [out / 32][9][in][32]."""
    blocks, taps, channels, width = packed.shape
    return packed.transpose(0, 3, 2, 1).reshape(blocks * width, channels, *(2 * (round(taps**0.5),)))


def _from_last(stored: Array) -> Array:
    """N, C, H, W of an array with its channels last."""
    return np.ascontiguousarray(stored.transpose(0, 3, 1, 2))


def gemm_gelu(case: Case, rows: int | str) -> Twin:
    """MatMul, bias, erf Gelu; `rows` may be a symbol."""
    x, w, b = case.inputs
    nodes = [_node("MatMul", "x w", "h"), _node("Add", "h b", "g"), _node("Gelu", "g", "y")]
    weights = {"w": _from_panels(w), "b": b}
    return Twin(_model(nodes, {"x": (rows, x.shape[1])}, {"y": (rows, b.size)}, weights, 20), "y", {"x": x})


def gemm_residual_layernorm(case: Case) -> Twin:
    """MatMul, bias, residual, LayerNormalization."""
    x, w, b, r, g, beta = case.inputs
    nodes = [
        _node("MatMul", "x w", "h"),
        _node("Add", "h b", "s"),
        _node("Add", "s r", "t"),
        _node("LayerNormalization", "t g beta", "y", axis=-1, epsilon=1e-12),
    ]
    weights = {"w": _from_panels(w), "b": b, "g": g, "beta": beta}
    return Twin(_model(nodes, {"x": x.shape, "r": r.shape}, {"y": r.shape}, weights, 17), "y", {"x": x, "r": r})


def _between(
    nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array], weights: Mapping[str, Array], stored: Sequence[int]
) -> Twin:
    """The nodes, which make `y` of `feeds`, between pointwise convolutions: there values lie with their channels last.

    The last feed is computed first and the others of it, as a residual is. `stored` is the shape of `y` in memory.
    """
    rows, columns, channels = stored[1:]
    before, more, source, width = [], dict(weights), "in", 32
    for name, value in reversed(list(feeds.items())):
        more[f"{name}_w"] = np.full((value.shape[1], width, 1, 1), 0.25, np.float32)
        before.append(_node("Conv", f"{source} {name}_w", f"{name}_before"))
        before.append(_node("Relu", f"{name}_before", name))
        source, width, side = name, value.shape[1], value.shape[2:]
    more["last_w"] = np.full((32, channels, 1, 1), 0.25, np.float32)
    after = _node("Conv", "y last_w", "last")
    inputs, outputs = {"in": (1, 32, *side)}, {"last": (1, 32, rows, columns)}
    return Twin(_model([*before, *nodes, after], inputs, outputs, more, 17), "y", feeds)


def conv3x3(case: Case) -> Twin:
    """Conv 3x3, bias, residual, Relu, in the middle of a network."""
    x, w, b, r = case.inputs
    nodes = [
        _node("Conv", "x w b", "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        _node("Add", "c r", "s"),
        _node("Relu", "s", "y"),
    ]
    feeds = {"x": _from_last(x), "r": _from_last(r)}
    return _between(nodes, feeds, {"w": _from_filters(w), "b": b}, case.reference.shape)


def depthwise3x3(case: Case, stride: int) -> Twin:
    """Depthwise Conv 3x3, bias, Clip to 0..6, in the middle of a network."""
    x, w, b = case.inputs
    channels = x.shape[3]
    convolution = _node(
        "Conv", "x w b", "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3], strides=[stride, stride], group=channels
    )
    nodes = [convolution, _node("Clip", "c low high", "y")]
    weights = {
        "w": w.T.reshape(channels, 1, 3, 3),
        "b": b,
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
    }
    return _between(nodes, {"x": _from_last(x)}, weights, case.reference.shape)


def attention(case: Case) -> Twin:
    """Split, heads apart, scaled products, mask, Softmax, values, heads merged."""
    qkv, mask = case.inputs
    tokens, heads, size = qkv.shape[1], 12, 64
    merged = (1, tokens, heads * size)
    nodes = [_node("Split", "qkv parts", "q k v", axis=2)]
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(_node("Reshape", f"{name} apart", f"{name}_apart"))
        nodes.append(_node("Transpose", f"{name}_apart", f"{name}_heads", perm=perm))
    nodes += [
        _node("MatMul", "q_heads k_heads", "products"),
        _node("Mul", "products scale", "scaled"),
        _node("Add", "scaled mask", "masked"),
        _node("Softmax", "masked", "p", axis=-1),
        _node("MatMul", "p v_heads", "o"),
        _node("Transpose", "o", "o_apart", perm=[0, 2, 1, 3]),
        _node("Reshape", "o_apart merged", "y"),
    ]
    weights = {
        "parts": np.array([heads * size] * 3),
        "apart": np.array([1, tokens, heads, size]),
        "merged": np.array(merged),
        "scale": np.array(size**-0.5, np.float32),
    }
    feeds = {"qkv": qkv, "mask": mask}
    inputs = {name: value.shape for name, value in feeds.items()}
    return Twin(_model(nodes, inputs, {"y": merged}, weights, 17), "y", feeds)


def softmax(case: Case) -> Twin:
    """Scale, mask, and a softmax written in primitive operators, as older exporters do."""
    x, scale, mask = case.inputs
    nodes = [
        _node("Mul", "x scale", "scaled"),
        _node("Add", "scaled mask", "masked"),
        _node("ReduceMax", "masked", "most", axes=[-1]),
        _node("Sub", "masked most", "below"),
        _node("Exp", "below", "e"),
        _node("ReduceSum", "e last", "sum"),
        _node("Div", "e sum", "y"),
    ]
    weights = {"scale": scale, "last": np.array([-1])}
    inputs = {"x": x.shape, "mask": mask.shape}
    return Twin(_model(nodes, inputs, {"y": x.shape}, weights, 13), "y", {"x": x, "mask": mask})


def product(rows: int, depth: int, columns: int) -> Twin:
    """MatMul, bias, Relu on normal numbers."""
    rng = np.random.default_rng(rows * depth * columns)
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in ((rows, depth), (depth, columns), (columns,)))
    nodes = [_node("MatMul", "x w", "h"), _node("Add", "h b", "g"), _node("Relu", "g", "y")]
    weights = {"w": w / np.float32(depth**0.5), "b": b}
    return Twin(_model(nodes, {"x": x.shape}, {"y": (rows, columns)}, weights, 17), "y", {"x": x})


def convolution(side: int, channels: int, filters: int, kernel: int, stride: int) -> Twin:
    """Conv of a square image, bias, Relu, on normal numbers, in the middle of a network."""
    rng = np.random.default_rng(side * channels * filters)
    shapes = ((1, channels, side, side), (filters, channels, kernel, kernel), (filters,))
    x, w, b = (rng.normal(size=s).astype(np.float32) for s in shapes)
    pad, weights = kernel // 2, {"w": w / np.float32((channels * kernel * kernel) ** 0.5), "b": b}
    conv = _node("Conv", "x w b", "c", pads=[pad] * 4, kernel_shape=[kernel] * 2, strides=[stride] * 2)
    last = (side + 2 * pad - kernel) // stride + 1
    return _between([conv, _node("Relu", "c", "y")], {"x": x}, weights, (1, last, last, filters))


TWINS: dict[str, Callable[[Case], Twin]] = {
    "gemm_gelu": lambda case: gemm_gelu(case, case.inputs[0].shape[0]),
    "gemm_gelu_dynamic": lambda case: gemm_gelu(case, "rows"),
    "gemm_residual_layernorm": gemm_residual_layernorm,
    "conv_56x64": conv3x3,
    "conv_14x256": conv3x3,
    "depthwise_112x96": lambda case: depthwise3x3(case, 2),
    "depthwise_14x576": lambda case: depthwise3x3(case, 1),
    "attention": attention,
    "softmax_128": softmax,
    "softmax_4096": softmax,
}
