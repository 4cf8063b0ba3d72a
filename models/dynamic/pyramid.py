"""A feature pyramid over images of any size, channels last, node for node as tf2onnx writes a Keras model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from models.net import Net, Spread
from models.parts import vector
from models.shapes import cut
from models.sized import sized

BIAS = Spread(0.1, 0.1)


def pyramid(widths: Sequence[int] = (8, 12, 16, 24), inner: int = 16, depth: int = 1, seed: int = 0) -> onnx.ModelProto:
    """Levels at strides 4, 8 and 16: image (batch, height, width, 3) to features (batch, height / 4, width / 4, inner).

    Strided convolutions pad as TensorFlow does (SAME_UPPER: an extent of n becomes (n + 1) // 2), so any size will do:
    each level is enlarged to the extents of the next, read by Shape. Between channels first and last lie Transposes.
    """
    net = Net("pyramid", "decomposed", 13, seed)
    net.input("image", TensorProto.FLOAT, ("batch", "height", "width", 3))
    x, inputs, levels = _first(net, "image"), 3, []
    for number, width in enumerate(widths):
        x = net.node("Relu", _conv(net, x, f"stage.{number}", (width, inputs, 3), 2))
        for block in range(depth):
            y = net.node("Relu", _conv(net, x, f"stage.{number}.{block}.a", (width, width, 3)))
            x = net.node("Relu", net.node("Add", x, _conv(net, y, f"stage.{number}.{block}.b", (width, width, 3))))
        inputs = width
        levels.append(x)
    merged = _conv(net, levels[-1], "lateral.3", (inner, widths[-1], 1))
    heads = [merged]
    for number in range(len(levels) - 2, 0, -1):
        lateral = _conv(net, levels[number], f"lateral.{number}", (inner, widths[number], 1))
        merged = net.node("Add", lateral, _resized(net, merged, lateral))
        heads.append(merged)
    outs = [_conv(net, head, f"head.{number}", (inner, inner, 3)) for number, head in enumerate(heads)]
    all_levels = [*(_resized(net, out, outs[-1]) for out in outs[:-1]), outs[-1]]
    y = _conv(net, net.node("Concat", *all_levels, axis=1), "last", (inner, inner * len(outs), 3))
    net.node("Transpose", net.node("Relu", y), perm=(0, 2, 3, 1), out="features")
    made = net.model({"features": ("batch", "rows", "columns", inner)})
    images = np.random.default_rng(9).standard_normal((2, 80, 80, 3), dtype=np.float32)
    return sized(made, {"image": images}, {r"\.b\.": 0.5, "lateral": 0.7})


def _first(net: Net, x: str) -> str:
    """Channels last as channels first."""
    return net.node("Transpose", x, perm=(0, 3, 1, 2))


def _conv(net: Net, x: str, name: str, sizes: tuple[int, int, int], stride: int = 1) -> str:
    """Conv with a bias; `sizes` are (outputs, inputs, size)."""
    outputs, inputs, size = sizes
    draw = net.draw(f"{name}.weight", (outputs, inputs, size, size), Spread((inputs * size**2) ** -0.5))
    how: dict[str, Any] = {"dilations": (1, 1), "strides": (stride,) * 2, "kernel_shape": (size,) * 2, "group": 1}
    shift = vector(net, f"{name}.bias", outputs, BIAS)
    return net.node("Conv", x, net.weight(f"{name}.weight", draw), shift, auto_pad="SAME_UPPER", **how)


def _resized(net: Net, x: str, like: str) -> str:
    """Nearest neighbours, channels last, to the last two extents of `like`."""
    rows = net.node("Cast", cut(net, net.node("Shape", like), 0, 2, 4), to=TensorProto.INT32)
    last = net.node("Transpose", x, perm=(0, 2, 3, 1))
    whole = net.node("Shape", last)
    parts = (cut(net, whole, 0, 0, 1), net.node("Cast", rows, to=TensorProto.INT64), cut(net, whole, 0, 3, 4))
    sizes = net.node("Concat", *parts, axis=0)
    how = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest", "nearest_mode": "floor"}
    return _first(net, net.node("Resize", last, "", "", sizes, **how))
