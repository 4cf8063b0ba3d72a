"""Depthwise convolutions and pools, whose windows overlap: a thread has a column of their results on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BF16, F16, F32, I8, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Sizes
from tests.rules.build import Build, draw


def depthwise(
    shape: Sequence[int | str],
    taps: Sequence[int],
    dtype: DType = F32,
    behind: Sequence[str] = (),
    *,
    per: int = 1,
    **how: Any,
) -> Graph:
    """A convolution of each channel, with a bias, and operators behind it; `per` results of each channel."""
    b = Build(20)
    channels = int(shape[1])
    x = b.input("x", *shape, dtype=dtype)
    w, bias = b.input("w", per * channels, 1, *taps, dtype=dtype), b.input("b", per * channels, dtype=dtype)
    y = b.node("Conv", x, w, bias, group=channels, kernel_shape=list(taps), **how)
    for op in behind:
        y = b.node(op, y)
    return b.graph(y)


def clipped(shape: Sequence[int], dtype: DType, **how: Any) -> Graph:
    """What is between two products of MobileNetV2: values of a product cut off, convolved with a bias, cut off."""
    b = Build(20)
    channels = shape[1]
    ends = [b.constant(np.asarray(n, dtype.numpy)) for n in (0, 6)]
    x = b.node("Clip", b.input("x", *shape, dtype=dtype), *ends)
    w, bias = b.input("w", channels, 1, 3, 3, dtype=dtype), b.input("b", 1, channels, 1, 1, dtype=dtype)
    y = b.node("Conv", x, w, group=channels, kernel_shape=[3, 3], pads=[1, 1, 1, 1], **how)
    return b.graph(b.node("Clip", b.node("Add", y, bias), *ends))


def residual(shape: Sequence[int]) -> Graph:
    """A convolution that is returned, and added to what it read."""
    b = Build(20)
    x = b.input("x", *shape)
    y = b.node("Conv", x, b.input("w", shape[1], 1, 3, 3), group=shape[1], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return b.graph(y, b.node("Add", b.node("Tanh", y), x))


def pooled(op: str, shape: Sequence[int], dtype: DType = F32, **how: Any) -> Graph:
    """A pool."""
    b = Build(20)
    return b.graph(b.node(op, b.input("x", *shape, dtype=dtype), **how))


def special(graph: Graph, random: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Numbers, infinities and what is no number."""
    drawn = draw(graph, random, sizes)
    for x in drawn.values():
        x.ravel()[:: max(x.size // 7, 1)] = np.nan
        x.ravel()[3 :: max(x.size // 5, 1)] = -np.inf
    return drawn


SAME3: dict[str, Any] = {"pads": [1, 1, 1, 1]}
SAME7: dict[str, Any] = {"pads": [3, 3, 3, 3]}
HALVED: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
CASES = (
    Case("depthwise_7x7", depthwise((1, 6, 56, 56), (7, 7), **SAME7)),
    Case("depthwise_7x7_half", depthwise((2, 5, 28, 28), (7, 7), F16, **SAME7)),
    Case("depthwise_7x7_whole", depthwise((1, 9, 7, 7), (7, 7), F16, **SAME7)),
    Case("depthwise_3x3_odd", depthwise((2, 7, 15, 13), (3, 3), F16, ("Relu",), **SAME3)),
    Case("depthwise_3x3_prime", depthwise((1, 3, 13, 17), (3, 3), behind=("HardSwish",), **SAME3)),
    Case("depthwise_stride", depthwise((1, 4, 29, 30), (3, 3), strides=[2, 2], **SAME3)),
    Case("depthwise_stride_down", depthwise((1, 4, 24, 24), (5, 3), strides=[3, 1])),
    Case("depthwise_dilated", depthwise((1, 4, 24, 21), (3, 3), dilations=[2, 3], strides=[1, 2])),
    Case(
        "depthwise_apart", depthwise((1, 4, 24, 24), (3, 3), F16, dilations=[2, 2], strides=[2, 2], pads=[2, 2, 1, 1])
    ),
    Case("depthwise_uneven", depthwise((1, 4, 21, 20), (5, 5), pads=[0, 3, 4, 1])),
    Case("depthwise_twice", depthwise((1, 4, 16, 16), (3, 3), per=2, **SAME3)),
    Case("depthwise_signal", depthwise((2, 5, 40), (9,), pads=[4, 4])),
    Case("depthwise_volume", depthwise((1, 3, 8, 10, 12), (3, 3, 3), pads=[1] * 6)),
    Case("depthwise_clipped", clipped((1, 12, 14, 14), F16)),
    Case("depthwise_clipped_stride", clipped((1, 12, 28, 28), F32, strides=[2, 2])),
    Case("depthwise_residual", residual((2, 3, 12, 12))),
    Case("pool_max", pooled("MaxPool", (2, 5, 28, 28), **HALVED)),
    Case("pool_max_special", pooled("MaxPool", (2, 5, 28, 28), F16, **HALVED), feeds=special),
    Case("depthwise_batch", depthwise(("N", 5, 28, 28), (3, 3), **SAME3), ({"N": 1}, {"N": 3})),
    Case("pool_max_integers", pooled("MaxPool", (1, 6, 20, 20), I8, **HALVED)),
    Case("pool_max_brain", pooled("MaxPool", (1, 6, 20, 20), BF16, **HALVED)),
    Case("pool_max_wide", pooled("MaxPool", (1, 6, 20, 20), kernel_shape=[5, 5], pads=[2, 2, 2, 2])),
    Case("pool_max_up", pooled("MaxPool", (1, 3, 21, 16), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)),
    Case("pool_average", pooled("AveragePool", (1, 6, 24, 24), F16, kernel_shape=[3, 3], pads=[1, 1, 1, 1])),
    Case("pool_average_all", pooled("AveragePool", (1, 6, 24, 24), count_include_pad=1, **HALVED)),
    Case("pool_lp", pooled("LpPool", (1, 6, 24, 24), kernel_shape=[3, 3], strides=[1, 1])),
)
"""Overlapping windows along rows and columns, and some that do not overlap or whose columns have no divisor."""
