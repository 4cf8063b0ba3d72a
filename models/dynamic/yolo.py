"""A detector of YOLOv8's kind with symbolic batch, height and width, node for node as ultralytics exports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from models.net import Net, Spread
from models.parts import vector
from models.shapes import extent, reshape, shape, unsqueeze
from models.sized import sized

BINS = 16  # of the distribution over each distance
STRIDES = (8, 16, 32)
BIAS = Spread(0.1, 0.1)


def yolov8(
    widths: Sequence[int] = (8, 16, 16, 24, 32),
    depths: Sequence[int] = (1, 1, 1, 1),
    classes: int = 5,
    box: int = 16,
    image: int = 64,
    seed: int = 0,
) -> onnx.ModelProto:
    """YOLOv8: images (batch, 3, height, width) to boxes and scores (batch, 4 + classes, places of three levels).

    `widths` are the channels at strides 2 to 32, `depths` the bottlenecks at strides 4 to 32; YOLOv8n has (16, 32, 64,
    128, 256) and (1, 2, 2, 1). Extents must be multiples of 32, or the levels do not meet.
    """
    net = Net("yolov8", "modern", 17, seed)
    net.input("images", TensorProto.FLOAT, ("batch", 3, "height", "width"))
    levels, x, inputs = [], _conv(net, "images", "model.0", 3, widths[0], 3, 2), widths[0]
    for number, (width, depth) in enumerate(zip(widths[1:], depths, strict=True)):
        x = _conv(net, x, f"model.{2 * number + 1}", inputs, width, 3, 2)
        x, inputs = _c2f(net, x, f"model.{2 * number + 2}", (width, width), depth, True), width
        levels.append(x)
    low, middle, _ = widths[2:]
    levels[3] = _sppf(net, levels[3], "model.9", widths[4])
    features = _neck(net, levels, (low, middle, widths[4]))
    out = _head(net, features, (low, middle, widths[4]), classes, box)
    made = net.model({out: ("batch", 4 + classes, "places")})
    images = np.random.default_rng(9).standard_normal((2, 3, image, image), dtype=np.float32)
    return sized(made, {"images": images}, {r"\.dfl\.": 0.0, r"cv2\.\d\.2": 2.0})


def _conv(net: Net, x: str, name: str, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> str:
    """Conv and SiLU."""
    y = _plain(net, x, f"{name}.conv", inputs, outputs, size, stride)
    return net.node("Mul", y, net.node("Sigmoid", y))


def _plain(net: Net, x: str, name: str, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> str:
    spread = Spread((inputs * size**2) ** -0.5)
    weight = net.weight(f"{name}.weight", net.draw(f"{name}.weight", (outputs, inputs, size, size), spread))
    how: dict[str, Any] = {
        "dilations": (1, 1), "group": 1, "kernel_shape": (size, size), "pads": (size // 2,) * 4,
        "strides": (stride, stride),
    }  # fmt: skip
    return net.node("Conv", x, weight, vector(net, f"{name}.bias", outputs, BIAS), **how)


def _c2f(net: Net, x: str, name: str, sizes: tuple[int, int], depth: int, shortcut: bool) -> str:
    """Two halves of a convolution, bottlenecks on the second, and a convolution over all that was made."""
    inputs, outputs = sizes
    half = outputs // 2
    both = _conv(net, x, f"{name}.cv1", inputs, outputs)
    parts = net.nodes("Split", 2, both, net.constant([half, half]), axis=1)
    for number in range(depth):
        y = _conv(net, parts[-1], f"{name}.m.{number}.cv1", half, half, 3)
        y = _conv(net, y, f"{name}.m.{number}.cv2", half, half, 3)
        parts.append(net.node("Add", parts[-1], y) if shortcut else y)
    return _conv(net, net.node("Concat", *parts, axis=1), f"{name}.cv2", (2 + depth) * half, outputs)


def _sppf(net: Net, x: str, name: str, channels: int) -> str:
    """Three max pools of 5x5, each on the one before, beside their input."""
    parts = [_conv(net, x, f"{name}.cv1", channels, channels // 2)]
    how: dict[str, Any] = {
        "ceil_mode": 0, "dilations": (1, 1), "kernel_shape": (5, 5), "pads": (2,) * 4, "strides": (1, 1),
    }  # fmt: skip
    for _ in range(3):
        parts.append(net.node("MaxPool", parts[-1], **how))
    return _conv(net, net.node("Concat", *parts, axis=1), f"{name}.cv2", 2 * channels, channels)


def _neck(net: Net, levels: Sequence[str], widths: tuple[int, int, int]) -> tuple[str, str, str]:
    """Down the pyramid by Resize, up again by strided convolutions; Concat at each step."""
    low, middle, high = widths
    y = net.node("Concat", _doubled(net, levels[3]), levels[2], axis=1)
    fourth = _c2f(net, y, "model.12", (high + middle, middle), 1, False)
    y = net.node("Concat", _doubled(net, fourth), levels[1], axis=1)
    third = _c2f(net, y, "model.15", (middle + low, low), 1, False)
    y = net.node("Concat", _conv(net, third, "model.16", low, low, 3, 2), fourth, axis=1)
    fourth = _c2f(net, y, "model.18", (low + middle, middle), 1, False)
    y = net.node("Concat", _conv(net, fourth, "model.19", middle, middle, 3, 2), levels[3], axis=1)
    return third, fourth, _c2f(net, y, "model.21", (middle + high, high), 1, False)


def _doubled(net: Net, x: str) -> str:
    """Nearest neighbours, twice as large."""
    how: dict[str, Any] = {
        "coordinate_transformation_mode": "asymmetric", "cubic_coeff_a": -0.75, "mode": "nearest",
        "nearest_mode": "floor",
    }  # fmt: skip
    return net.node("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), **how)


# --- head ------------------------------------------------------------------------------------------------------------


def _head(net: Net, features: Sequence[str], widths: Sequence[int], classes: int, box: int) -> str:
    """Distances and scores of every place of every level, decoded to boxes in pixels."""
    outputs, levels = 4 * BINS + classes, []
    for number, (x, width) in enumerate(zip(features, widths, strict=True)):
        parts = []
        for branch, inner, last in (("cv2", box, 4 * BINS), ("cv3", max(box, classes), classes)):
            name = f"model.22.{branch}.{number}"
            y = _conv(net, _conv(net, x, f"{name}.0", width, inner, 3), f"{name}.1", inner, inner, 3)
            parts.append(_plain(net, y, f"{name}.2", inner, last))
        levels.append(net.node("Concat", *parts, axis=1))
    batch = extent(net, levels[0], 0)
    flat = net.node("Concat", *(reshape(net, level, batch, outputs, -1) for level in levels), axis=2)
    anchors, strides = _anchors(net, levels)
    distances, scores = net.nodes("Split", 2, flat, net.constant([4 * BINS, classes]), axis=1)
    boxes = net.node("Mul", _boxes(net, _expected(net, distances), anchors), strides)
    return net.node("Concat", boxes, net.node("Sigmoid", scores), out="output0", axis=1)


def _anchors(net: Net, levels: Sequence[str]) -> tuple[str, str]:
    """The middle of each place, (1, 2, places), and its stride, (1, places), by ranges over the levels' extents."""
    points, strides = [], []
    for level, stride in zip(levels, STRIDES, strict=True):
        height, width = extent(net, level, 2), extent(net, level, 3)
        across, down = _middles(net, width), _middles(net, height)
        both = net.node("Concat", net.node("Shape", down), net.node("Shape", across), axis=0)
        grid = [
            unsqueeze(net, net.node("Expand", reshape(net, each, *extents), both), -1)
            for each, extents in ((across, (1, -1)), (down, (-1, 1)))
        ]
        points.append(reshape(net, net.node("Concat", *grid, axis=-1), -1, 2))
        places = shape(net, net.node("Mul", height, width), 1)
        zeros = net.node("ConstantOfShape", places, value=numpy_helper.from_array(np.zeros(1, np.float32)))
        strides.append(net.node("Add", zeros, net.constant(float(stride))))
    anchors = net.node("Transpose", net.node("Concat", *points, axis=0), perm=(1, 0))
    return unsqueeze(net, anchors, 0), net.node("Transpose", net.node("Concat", *strides, axis=0), perm=(1, 0))


def _middles(net: Net, count: str) -> str:
    """0.5, 1.5 and so on."""
    number = net.node("Cast", count, to=TensorProto.FLOAT)
    return net.node("Add", net.node("Range", net.constant(0.0), number, net.constant(1.0)), net.constant(0.5))


def _expected(net: Net, distances: str) -> str:
    """The mean of each distance under the softmax of its bins, as a convolution whose weights are the bins."""
    batch, places = extent(net, distances, 0), extent(net, distances, 2)
    bins = net.node("Transpose", reshape(net, distances, batch, 4, BINS, places), perm=(0, 2, 1, 3))
    weight = net.weight("model.22.dfl.conv.weight", np.arange(BINS).reshape(1, BINS, 1, 1))
    how: dict[str, Any] = {
        "dilations": (1, 1), "group": 1, "kernel_shape": (1, 1), "pads": (0,) * 4, "strides": (1, 1)
    }  # fmt: skip
    mean = net.node("Conv", net.node("Softmax", bins, axis=1), weight, **how)
    return reshape(net, mean, batch, 4, places)


def _boxes(net: Net, distances: str, anchors: str) -> str:
    """Left, top, right and bottom distances as centres and sizes."""
    before, after = (
        net.node("Slice", distances, net.constant([start]), net.constant([end]), net.constant([1]))
        for start, end in ((0, 2), (2, 4))
    )
    first, last = net.node("Sub", anchors, before), net.node("Add", anchors, after)
    centre = net.node("Div", net.node("Add", first, last), net.constant(2.0))
    return net.node("Concat", centre, net.node("Sub", last, first), axis=1)
