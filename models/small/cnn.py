"""ResNet and MobileNetV2 of any size, node for node as torch's exporters write them, with onnx and numpy alone.

BatchNormalization needs the statistics of what it normalizes. They are computed, not measured: each value carries the
mean and variance of every channel through the network, channels and places taken as independent and before each
activation as normal. That is true of the average over random weights, and near enough for each network
(tests/models_build asserts it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from models.net import Extent, Form, Net, Spread

Floats: TypeAlias = npt.NDArray[np.float64]

OPSETS: dict[Form, int] = {"modern": 20, "decomposed": 11}
EPSILON = 1e-5
RELU6 = 6.0
BOTTLENECK = 4  # a ResNet block's outputs per inner channel
QUANTILES = (np.arange(256) + 0.5) / 256
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Maps:
    """A value of the network: its name, and the mean and variance of each of its channels."""

    name: str
    mean: Floats
    variance: Floats

    @property
    def square(self) -> Floats:
        """The mean square of each channel."""
        return self.variance + self.mean**2


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution looks at its input; `pads` are (top, left, bottom, right)."""

    size: int = 1
    stride: int = 1
    group: int = 1
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)


def resnet(
    blocks: Sequence[int] = (1, 1),
    width: int = 8,
    image: int = 32,
    classes: int = 10,
    batch: Extent = 1,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """A bottleneck ResNet (stride in the 3x3): pixel_values (batch, 3, image, image) to logits (batch, classes).

    `blocks` counts the bottlenecks of each stage; `resnet((3, 4, 6, 3), 64, 224, 1000)` is ResNet-50.
    `modern` has BatchNormalization folded into Conv, `decomposed` (opset 11) keeps it.
    """
    net = Net("resnet", form, OPSETS[form], seed)
    x = _images(net, batch, image)
    x = _conv(net, x, "embedder", width, Window(7, 2, 1, (3, 3, 3, 3)))
    x = _max_pool(net, _activate(net, x, _relu))
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if block == 0 and stage > 0 else 1
            x = _bottleneck(net, x, f"stages.{stage}.layers.{block}", width << stage, stride)
    return _classify(net, x, batch, classes)


def mobilenet_v2(
    stages: Sequence[tuple[int, int, int, int]] = ((6, 8, 1, 2), (6, 16, 2, 2)),
    stem: int = 8,
    last: int = 32,
    image: int = 32,
    classes: int = 10,
    batch: Extent = 1,
    form: Form = "modern",
    seed: int = 0,
) -> onnx.ModelProto:
    """MobileNetV2: pixel_values (batch, 3, image, image) to logits (batch, classes); `image` a multiple of all strides.

    `stages` has a row (expansion, channels, blocks, stride of the first) per stage, after a stem that ends in an
    inverted residual without expansion. Strided convolutions pad below and right, as TensorFlow's do; `decomposed`
    (opset 11) computes those pads by a chain of constants in front of every Conv and keeps BatchNormalization.
    """
    net = Net("mobilenet_v2", form, OPSETS[form], seed)
    x = _images(net, batch, image)
    x = _same_conv(net, x, "stem.first_conv", stem, 3, 2, clip=True)
    x = _same_conv(net, x, "stem.conv_3x3", stem, 3, 1, depthwise=True, clip=True)
    x = _same_conv(net, x, "stem.reduce_1x1", max(stem // 2, 1), 1, 1)
    for stage, (expansion, channels, count, stride) in enumerate(stages):
        for block in range(count):
            step = stride if block == 0 else 1
            x = _inverted_residual(net, x, f"layer.{stage}.{block}", expansion, channels, step)
    x = _same_conv(net, x, "conv_1x1", last, 1, 1, clip=True)
    return _classify(net, x, batch, classes)


def _images(net: Net, batch: Extent, image: int) -> Maps:
    name = net.input("pixel_values", TensorProto.FLOAT, (batch, 3, image, image))
    return Maps(name, np.zeros(3), np.ones(3))


def _bottleneck(net: Net, x: Maps, name: str, inner: int, stride: int) -> Maps:
    """1x1, 3x3, 1x1 beside the identity, or beside a 1x1 where the shape changes."""
    y = _activate(net, _conv(net, x, f"{name}.layer.0", inner, Window()), _relu)
    y = _activate(net, _conv(net, y, f"{name}.layer.1", inner, Window(3, stride, 1, (1, 1, 1, 1))), _relu)
    y = _conv(net, y, f"{name}.layer.2", inner * BOTTLENECK, Window(), scale=0.6)
    if stride > 1 or len(x.mean) != inner * BOTTLENECK:
        x = _conv(net, x, f"{name}.shortcut", inner * BOTTLENECK, Window(1, stride))
    return _activate(net, _add(net, y, x), _relu)


def _inverted_residual(net: Net, x: Maps, name: str, expansion: int, channels: int, stride: int) -> Maps:
    wide = len(x.mean) * expansion
    y = _same_conv(net, x, f"{name}.expand_1x1", wide, 1, 1, clip=True)
    y = _same_conv(net, y, f"{name}.conv_3x3", wide, 3, stride, depthwise=True, clip=True)
    y = _same_conv(net, y, f"{name}.reduce_1x1", channels, 1, 1)
    return _add(net, x, y) if stride == 1 and len(x.mean) == channels else y


def _same_conv(
    net: Net, x: Maps, name: str, channels: int, size: int, stride: int, depthwise: bool = False, clip: bool = False
) -> Maps:
    """A convolution whose output has the input's extents divided by the stride, with ReLU6 if `clip`."""
    total = max(size - stride, 0)
    pads = (total // 2, total // 2, total - total // 2, total - total // 2)
    group = channels if depthwise else 1
    if net.form == "decomposed":
        x, pads = Maps(_computed_pad(net, x.name, pads), x.mean, x.variance), (0, 0, 0, 0)
    # Deviations of 2.2 make the upper bound of the clip matter.
    y = _conv(net, x, name, channels, Window(size, stride, group, pads), scale=2.2 if clip else 1.0)
    return _activate(net, y, _relu6) if clip else y


def _conv(net: Net, x: Maps, name: str, channels: int, window: Window, scale: float = 1.0) -> Maps:
    """Conv and BatchNormalization to deviations around `scale`: one node in the modern form, two in the decomposed."""
    inputs = len(x.mean) // window.group
    shape = (channels, inputs, window.size, window.size)
    weight = net.draw(f"{name}.convolution.weight", shape, Spread((inputs * window.size**2) ** -0.5))
    mean, variance = _moments_of_conv(x, weight, window.group)
    gamma = np.maximum(net.draw(f"{name}.normalization.weight", (channels,), Spread(0.15 * scale, scale)), 0.3 * scale)
    beta = net.draw(f"{name}.normalization.bias", (channels,), Spread(0.3, 0.1))
    how: dict[str, Any] = {
        "kernel_shape": (window.size,) * 2,
        "strides": (window.stride,) * 2,
        "pads": window.pads,
        "dilations": (1, 1),
        "group": window.group,
    }
    if net.form == "modern":
        factor = gamma / np.sqrt(variance + EPSILON)
        folded = net.weight(f"{name}.convolution.weight", weight * factor[:, None, None, None])
        bias = net.weight(f"{name}.convolution.weight_bias", beta - mean * factor)
        return Maps(net.node("Conv", x.name, folded, bias, auto_pad="NOTSET", **how), beta, gamma**2)
    product = net.node("Conv", x.name, net.weight(f"{name}.convolution.weight", weight), **how)
    parts = {"weight": gamma, "bias": beta, "running_mean": mean, "running_var": variance}
    names = [net.weight(f"{name}.normalization.{part}", values) for part, values in parts.items()]
    out = net.node("BatchNormalization", product, *names, epsilon=EPSILON, momentum=0.9)
    return Maps(out, beta, gamma**2)


def _moments_of_conv(x: Maps, weight: Floats, group: int) -> tuple[Floats, Floats]:
    channels, inputs = weight.shape[:2]
    per_group = weight.reshape(group, channels // group, inputs, -1)
    mean = np.einsum("goik,gi->go", per_group, x.mean.reshape(group, inputs))
    variance = np.einsum("goik,gi->go", per_group**2, x.variance.reshape(group, inputs))
    return mean.reshape(-1), variance.reshape(-1)


def _computed_pad(net: Net, x: str, pads: tuple[int, int, int, int]) -> str:
    """Pad as tracing wrote it: (left, right, top, bottom) filled up with zeros, paired, reversed and transposed."""
    top, left, bottom, right = pads
    zeros = net.node("ConstantOfShape", net.constant([4]), value=onnx.numpy_helper.from_array(np.zeros(1, np.int64)))
    pairs = net.node("Concat", net.constant([left, right, top, bottom]), zeros, axis=0)
    pairs = net.node("Reshape", pairs, net.constant([-1, 2]))
    start, stop, axis, step = [-1], [-np.iinfo(np.int64).max], [0], [-1]
    pairs = net.node("Slice", pairs, *(net.constant(values) for values in (start, stop, axis, step)))
    flat = net.node("Reshape", net.node("Transpose", pairs, perm=(1, 0)), net.constant([-1]))
    return net.node("Pad", x, net.node("Cast", flat, to=TensorProto.INT64), net.constant(0.0), mode="constant")


def _relu(x: Floats) -> Floats:
    return np.maximum(x, 0.0)


def _relu6(x: Floats) -> Floats:
    return np.clip(x, 0.0, RELU6)


def _activate(net: Net, x: Maps, function: Callable[[Floats], Floats]) -> Maps:
    """ReLU or ReLU6."""
    if function is _relu:
        name = net.node("Relu", x.name)
    else:
        name = net.node("Clip", x.name, net.constant(0.0), net.constant(RELU6))
    return _moments_of(name, x, function, 1)


def _moments_of(name: str, x: Maps, function: Callable[[Floats], Floats], best_of: int) -> Maps:
    """The moments of an activation of the largest of `best_of` normal values per channel."""
    scores = np.array([NORMAL.inv_cdf(float(q)) for q in QUANTILES ** (1 / best_of)])
    samples = function(x.mean[:, None] + np.sqrt(x.variance)[:, None] * scores)
    return Maps(name, samples.mean(axis=1), samples.var(axis=1))


def _max_pool(net: Net, x: Maps) -> Maps:
    modern: dict[str, Any] = {"storage_order": 0, "auto_pad": "NOTSET"} if net.form == "modern" else {}
    how: dict[str, Any] = {
        "kernel_shape": (3, 3),
        "strides": (2, 2),
        "pads": (1, 1, 1, 1),
        "ceil_mode": 0,
        "dilations": (1, 1),
    }
    return _moments_of(net.node("MaxPool", x.name, **how, **modern), x, _relu, 9)


def _add(net: Net, x: Maps, y: Maps) -> Maps:
    return Maps(net.node("Add", x.name, y.name), x.mean + y.mean, x.variance + y.variance)


def _classify(net: Net, x: Maps, batch: Extent, classes: int) -> onnx.ModelProto:
    """The average over places, and a linear layer."""
    channels = len(x.mean)
    if net.form == "decomposed":
        flat = net.node("Flatten", net.node("GlobalAveragePool", x.name), axis=1)
    else:
        pooled = net.node("ReduceMean", x.name, net.constant([-1, -2]), keepdims=1, noop_with_empty_axes=0)
        flat = net.node("Reshape", pooled, _flat_shape(net, batch, channels), allowzero=1)
    spread = Spread(float(np.sum(x.mean**2)) ** -0.5)
    weight = net.weight("classifier.weight", net.draw("classifier.weight", (classes, channels), spread))
    bias = net.weight("classifier.bias", net.draw("classifier.bias", (classes,), Spread(0.2, 0.2)))
    net.node("Gemm", flat, weight, bias, out="logits", alpha=1.0, beta=1.0, transB=1)
    return net.model({"logits": (batch, classes)})


def _flat_shape(net: Net, batch: Extent, channels: int) -> str:
    if isinstance(batch, int):
        return net.constant([batch, channels])
    extent = net.node("Shape", "pixel_values", start=0, end=1)
    return net.node("Concat", extent, net.constant([channels]), axis=0)
