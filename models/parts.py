"""Parts of transformers as torch's two exporters write them; the small networks are made of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from models.net import Extent, Net, Spread

# A mean that is not zero, so that the mean a LayerNorm subtracts is not zero either; a small deviation, because what
# all tokens share grows from layer to layer, until they are equal and attention is uniform.
BIAS = Spread(0.1, 0.15)
SHIFT = Spread(0.1, 0.1)
SCALE = Spread(0.15, 1.0)
ATTENTION_GAIN = 0.4  # scale of the output of attention, which is mostly the same for all tokens
GELU_GAIN = 1 / 0.65  # GELU of a standard normal has a root mean square of about 0.65
INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class TextSizes:
    """The extents that transformers of tokens have in common; `batch` and `sequence` may be symbolic."""

    hidden: int
    heads: int
    batch: Extent
    sequence: Extent

    @property
    def head(self) -> int:
        """Channels of one attention head."""
        return self.hidden // self.heads

    @property
    def static(self) -> tuple[int, int] | None:
        """(batch, sequence) when both are numbers."""
        if isinstance(self.batch, int) and isinstance(self.sequence, int):
            return self.batch, self.sequence
        return None


def vector(net: Net, name: str, size: int, spread: Spread) -> str:
    """A weight of one axis."""
    return net.weight(name, net.draw(name, (size,), spread))


def dense(net: Net, x: str, name: str, inputs: int, outputs: int, gain: float = 1.0, bias: bool = True) -> str:
    """A linear layer on the last axis: MatMul and Add, in the traced form with the bias first.

    One without a bias has weights of a small mean, so that what it says still has one.
    """
    spread = Spread(gain * inputs**-0.5, 0.0 if bias else 2 / inputs)
    weight = net.weight(f"{name}.weight", net.draw(f"{name}.weight", (inputs, outputs), spread))
    product = net.node("MatMul", x, weight)
    if not bias:
        return product
    shift = vector(net, f"{name}.bias", outputs, BIAS)
    return net.node("Add", shift, product) if net.form == "decomposed" else net.node("Add", product, shift)


def classify(net: Net, x: str, channels: int, classes: int, name: str = "classifier") -> None:
    """A Gemm to the output `logits`."""
    weight = net.draw(f"{name}.weight", (classes, channels), Spread(channels**-0.5))
    bias = vector(net, f"{name}.bias", classes, BIAS)
    net.node("Gemm", x, net.weight(f"{name}.weight", weight), bias, out="logits", alpha=1.0, beta=1.0, transB=1)


def layer_norm(
    net: Net, x: str, name: str, channels: int, epsilon: float = 1e-5, out: str = "", beta: Spread = SHIFT
) -> str:
    """LayerNormalization of the last axis, or its nine nodes at opset 12."""
    scale = vector(net, f"{name}.weight", channels, SCALE)
    shift = vector(net, f"{name}.bias", channels, beta)
    if net.form == "modern":
        return net.node("LayerNormalization", x, scale, shift, out=out, axis=-1, epsilon=epsilon, stash_type=1)
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    variance = net.node("ReduceMean", net.node("Pow", centred, net.constant(2.0)), axes=[-1])
    deviation = net.node("Sqrt", net.node("Add", variance, net.constant(epsilon)))
    normal = net.node("Div", centred, deviation)
    return net.node("Add", net.node("Mul", normal, scale), shift, out=out)


def gelu(net: Net, x: str) -> str:
    """GELU by erf: one node, or five."""
    if net.form == "modern":
        return net.node("Gelu", x, approximate="none")
    error = net.node("Erf", net.node("Div", x, net.constant(float(np.sqrt(2.0)))))
    gated = net.node("Mul", x, net.node("Add", error, net.constant(1.0)))
    return net.node("Mul", gated, net.constant(0.5))


def gelu_new(net: Net, x: str) -> str:
    """GELU by tanh, as GPT-2 spells it; both exporters keep its nodes."""
    half = net.node("Mul", x, net.constant(0.5))
    cube = net.node("Mul", net.node("Pow", x, net.constant(3.0)), net.constant(0.044715))
    inner = net.node("Mul", net.node("Add", x, cube), net.constant(float(np.sqrt(2 / np.pi))))
    return net.node("Mul", half, net.node("Add", net.node("Tanh", inner), net.constant(1.0)))


def softmax(net: Net, scores: str) -> str:
    """Softmax of the last axis: one node, or five."""
    if net.form == "modern":
        return net.node("Softmax", scores, axis=-1)
    powers = net.node("Exp", net.node("Sub", scores, net.node("ReduceMax", scores, axes=[-1], keepdims=1)))
    return net.node("Div", powers, net.node("ReduceSum", powers, axes=[-1], keepdims=1))


def convolution(
    net: Net, x: str, name: str, shape: tuple[int, int, int], stride: int = 1, pad: int = 0, depthwise: bool = False
) -> str:
    """A Conv with a bias; `shape` is (outputs, inputs, size), `depthwise` has one filter per channel."""
    outputs, inputs, size = shape
    group, depth = (outputs, 1) if depthwise else (1, inputs)
    weight = net.draw(f"{name}.weight", (outputs, depth, size, size), Spread((depth * size**2) ** -0.5))
    how: dict[str, Any] = {
        "dilations": (1, 1),
        "group": group,
        "kernel_shape": (size, size),
        "pads": (pad,) * 4,
        "strides": (stride, stride),
    }
    if net.form == "modern":
        how["auto_pad"] = "NOTSET"
    return net.node("Conv", x, net.weight(f"{name}.weight", weight), vector(net, f"{name}.bias", outputs, BIAS), **how)


def reshape(net: Net, x: str, extents: Sequence[Extent], out: str = "", allowzero: bool = True) -> str:
    """Reshape to a constant shape, in which one extent may be a symbol, which is inferred."""
    shape = net.constant([-1 if isinstance(extent, str) else extent for extent in extents])
    how = {"allowzero": int(allowzero)} if net.form == "modern" else {}
    return net.node("Reshape", x, shape, out=out, **how)


def places(net: Net, x: str, channels: int, count: int, batch: Extent) -> str:
    """(batch, channels, height, width) as (batch, height * width, channels)."""
    if net.form == "modern":
        flat = reshape(net, x, (batch, channels, count))
    else:
        axis, start, end = net.constant([0]), net.constant([0]), net.constant([2])
        outer = net.node("Slice", net.node("Shape", x), start, end, axis)
        flat = net.node("Reshape", x, net.node("Concat", outer, net.constant([-1]), axis=0))
    return net.node("Transpose", flat, perm=(0, 2, 1))


def images(net: Net, x: str, channels: int, size: int, batch: Extent) -> str:
    """(batch, height * width, channels) as (batch, channels, height, width)."""
    return reshape(net, net.node("Transpose", x, perm=(0, 2, 1)), (batch, channels, size, size))


def roll(net: Net, x: str, shift: int, size: int) -> str:
    """The two axes after the first moved on cyclically by `shift` places."""
    cut = -shift if net.form == "decomposed" else -shift % size
    for axis in (1, 2):
        ends = ((cut, INT64.max), (0, cut)) if net.form == "decomposed" else ((cut, size), (0, cut))
        parts = [
            net.node("Slice", x, net.constant([start]), net.constant([int(end)]), net.constant([axis]))
            for start, end in ends
        ]
        x = net.node("Concat", *parts, axis=axis)
    return x


def computed_pad(net: Net, x: str, pads: Sequence[int], value: float | None = 0.0) -> str:
    """Pad as tracing wrote it, at the ends of the last axes: filled up with zeros, paired, reversed and transposed.

    `pads` are before and after the last axis, then the one before it and so on, for all axes.
    """
    zeros = net.node("ConstantOfShape", net.constant([0]), value=numpy_helper.from_array(np.zeros(1, np.int64)))
    pairs = net.node("Concat", net.constant(list(pads)), zeros, axis=0)
    flat = reversed_pairs(net, pairs)
    fill = ("",) if value is None else (net.constant(value),)
    return net.node("Pad", x, flat, *fill, mode="constant")


def reversed_pairs(net: Net, pairs: str) -> str:
    """Pads in the order of torch, converted to that of ONNX."""
    pairs = net.node("Reshape", pairs, net.constant([-1, 2]))
    start, stop, axis, step = [-1], [-INT64.max], [0], [-1]
    pairs = net.node("Slice", pairs, *(net.constant(values) for values in (start, stop, axis, step)))
    flat = net.node("Reshape", net.node("Transpose", pairs, perm=(1, 0)), net.constant([-1]))
    return net.node("Cast", flat, to=onnx.TensorProto.INT64)


# --- attention -------------------------------------------------------------------------------------------------------


def attention(
    net: Net, query: str, key: str, value: str, static: tuple[int, int, int] | None, head: int, mask: str = "",
    view: Sequence[Extent] = (),
) -> str:  # fmt: skip
    """What attention says, (batch, places, heads, head) from three of that shape, as scaled_dot_product_attention.

    `static` is (batch, heads, places of the key) when these are numbers. The modern form has half of the scale on each
    side, keeps no row of NaN where there is a mask, and reshapes the result to its own shape where that is given,
    `view`, (batch, heads, places, head).
    """
    query, value = (net.node("Transpose", x, perm=(0, 2, 1, 3)) for x in (query, value))
    if net.form == "decomposed":
        key = net.node("Transpose", key, perm=(0, 2, 3, 1))
        scores = net.node("Div", net.node("MatMul", query, key), net.constant(float(head**0.5)))
    else:
        key = net.node("Transpose", key, perm=(0, 2, 1, 3))
        flat, apart = _key_shapes(net, key, static, head)
        key = net.node("Transpose", net.node("Reshape", key, flat, allowzero=0), perm=(0, 2, 1))
        key = net.node("Reshape", key, apart, allowzero=0)
        scale = net.constant(float(head**-0.25))
        scores = net.node("MatMul", net.node("Mul", query, scale), net.node("Mul", key, scale))
    chances = softmax(net, net.node("Add", scores, mask) if mask else scores)
    if mask and net.form == "modern":
        chances = net.node("Where", net.node("IsNaN", chances), net.constant(0.0), chances)
    said = net.node("MatMul", chances, value)
    if view and net.form == "modern":
        said = reshape(net, said, view)
    return net.node("Transpose", said, perm=(0, 2, 1, 3))


def _key_shapes(net: Net, key: str, static: tuple[int, int, int] | None, head: int) -> tuple[str, str]:
    """(batch * heads, places, head) and (batch, heads, head, places) as values."""
    if static:
        batch, heads, count = static
        return net.constant([-1, count, head]), net.constant([batch, heads, head, count])
    shape = net.node("Shape", key, start=0)
    last = net.constant([-1])
    width = net.node("Slice", shape, last, net.constant([INT64.max]))
    count_ = net.node("Slice", shape, net.constant([-2]), last)
    outer = net.node("Slice", shape, net.constant([INT64.min]), net.constant([-2]))
    flat = net.node("Concat", last, count_, width, axis=0)
    return flat, net.node("Concat", outer, width, count_, axis=0)
