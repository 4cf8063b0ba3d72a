"""Shapes of rows and elements that GPU kernels parallelize in their own way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Sizes, draw
from tests.rules.build import Build


def enlarged(dtype: DType, *sides: int) -> Graph:
    """Images of so many pixels a side, with a bias each, enlarged to the first one's side and joined."""
    b = Build(18)
    made = []
    for side in sides:
        x = b.input(f"x{side}", 1, 6, side, side, dtype=dtype)
        x = b.node("Add", x, b.constant(np.linspace(-1, 1, 6, dtype=dtype.numpy).reshape(6, 1, 1)))
        scales = b.constant([1, 1, sides[0] / side, sides[0] / side])
        made.append(b.node("Resize", x, "", scales, mode="linear"))
    return b.graph(b.node("Concat", *made, axis=1))


def enlarged_rows(dtype: DType, channels: int, *sides: int) -> Graph:
    """The same of images whose channels lie side by side, as products leave them, and without what else is there."""
    b = Build(18)
    made = []
    for side in sides:
        x = b.input(f"x{side}", 1, side * side, channels, dtype=dtype)
        x = b.node("Add", x, b.constant(np.linspace(-1, 1, channels, dtype=dtype.numpy)))
        x = b.node("Reshape", b.node("Transpose", x, perm=(0, 2, 1)), b.ints(1, channels, side, side))
        scales = b.constant([1, 1, sides[0] / side, sides[0] / side])
        made.append(x if side == sides[0] else b.node("Resize", x, "", scales, mode="linear"))
    return b.graph(b.node("Concat", *made[::-1], axis=1))


def reduced(op: str, shape: Sequence[int], axes: Sequence[int], dtype: DType = F32) -> Graph:
    """What one reduction makes of a tensor, and the tensor less that."""
    b = Build(20)
    x = b.input("x", *shape, dtype=dtype)
    return b.graph(b.node("Sub", x, b.node(op, x, b.ints(*axes), keepdims=1)))


def normalized(*shape: int) -> Graph:
    """An image by the mean and variance of each channel, with what follows."""
    b = Build(20)
    scale, bias = (b.constant(np.linspace(low, 1, shape[1])) for low in (0.5, -1))
    return b.graph(b.node("Relu", b.node("InstanceNormalization", b.input("x", *shape), scale, bias)))


def placed(op: str, shape: Sequence[int], axis: int, last: int = 0) -> Graph:
    """The place of an extreme."""
    b = Build(20)
    return b.graph(b.node(op, b.input("x", *shape), axis=axis, select_last_index=last))


def ties(graph: Graph, random: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Few different numbers, so that extremes are there often."""
    return {name: np.rint(x).astype(x.dtype) for name, x in draw(graph, random, sizes).items()}


def channels_first(side: int, channels: int) -> Graph:
    """The pixels of an image by the mean and variance of their channels, as rows."""
    b = Build(20)
    x = b.node("Transpose", b.input("x", 1, channels, side, side), perm=(0, 2, 3, 1))
    weights = [b.constant(np.linspace(low, 1, channels)) for low in (0.5, -1)]
    return b.graph(b.node("LayerNormalization", x, *weights, axis=-1))


def mirrored(rows: int, width: int) -> Graph:
    """Softmax, and what stands at the other end of the row added."""
    b = Build(20)
    y = b.node("Softmax", b.input("x", rows, width), axis=-1)
    turned = b.node("Slice", y, b.ints(-1), b.ints(-width - 1), b.ints(1), b.ints(-1))
    return b.graph(b.node("Add", y, turned))


def shifted(side: int, channels: int, dtype: DType = F32, shift: int = 3, window: int = 7) -> Graph:
    """A residual and its normalized rows in windows of an image that is rolled by `shift` rows and columns."""
    b = Build(20)
    total = b.node("Add", *(b.input(name, 1, side * side, channels, dtype=dtype) for name in ("x", "r")))
    y = b.node("LayerNormalization", total, *_scale_and_bias(b, channels, dtype), axis=-1)
    y = b.node("Reshape", y, b.ints(1, side, side, channels))
    for axis in (1, 2):
        parts = [b.node("Slice", y, *map(b.ints, (*cut, axis))) for cut in ((shift, side), (0, shift))]
        y = b.node("Concat", *parts, axis=axis)
    n = side // window
    y = b.node("Transpose", b.node("Reshape", y, b.ints(1, n, window, n, window, channels)), perm=(0, 1, 3, 2, 4, 5))
    return b.graph(total, b.node("Reshape", y, b.ints(n * n, window * window, channels)))


def tokens_and_image(side: int, channels: int, dtype: DType = F32) -> Graph:
    """Normalized rows, and the image that they are the pixels of."""
    b = Build(20)
    x = b.input("x", 1, side * side, channels, dtype=dtype)
    y = b.node("LayerNormalization", x, *_scale_and_bias(b, channels, dtype), axis=-1)
    image = b.node("Transpose", y, perm=(0, 2, 1))
    return b.graph(y, b.node("Reshape", image, b.ints(1, channels, side, side)))


def _scale_and_bias(b: Build, channels: int, dtype: DType) -> list[str]:
    return [b.constant(np.linspace(low, 1, channels).astype(dtype.numpy)) for low in (0.5, -1)]


def pooled(rows: int, width: int, dtype: DType, *, before: bool = False) -> Graph:
    """The mean over all rows of what is normalized along each, or what is normalized of that mean."""
    b = Build(20)
    x = b.node("Add", *(b.input(n, 1, rows, width, dtype=dtype) for n in "xr"))
    gamma, beta = (b.constant(np.linspace(low, 1, width, dtype=dtype.numpy)) for low in (0.5, -1))
    x = b.node("ReduceMean", x, b.ints(1), keepdims=0) if before else x
    y = b.node("LayerNormalization", x, gamma, beta, axis=-1)
    return b.graph(y if before else b.node("ReduceMean", y, b.ints(1), keepdims=0))


def long_softmax(rows: int, width: int, dtype: DType) -> Graph:
    """Softmax of rows that registers do not hold."""
    b = Build(20)
    return b.graph(b.node("Softmax", b.input("x", rows, width, dtype=dtype), axis=-1))


def long_norm(rows: int, width: int, dtype: DType) -> Graph:
    """A residual and the normalization of rows that registers do not hold."""
    b = Build(20)
    total = b.node("Add", *(b.input(n, rows, width, dtype=dtype) for n in "xr"))
    return b.graph(b.node("LayerNormalization", total, *_scale_and_bias(b, width, dtype), axis=-1))


def long_chain(rows: int, width: int | str, dtype: DType) -> Graph:
    """Two softmaxes, one of the other, with a mask: their exponentials are computed again."""
    b = Build(20)
    x, m = (b.input(n, r, width, dtype=dtype) for n, r in (("x", rows), ("m", 1)))
    y = b.node("Softmax", b.node("Add", x, m), axis=-1)
    return b.graph(b.node("Softmax", b.node("Mul", y, b.constant(np.array(3, dtype.numpy))), axis=-1))


CASES: Sequence[Case] = (
    Case("long_chain", long_chain(2, 40000, F32)),
    Case("long_chain_any", long_chain(2, "N", F16), ({"N": 40000}, {"N": 77})),
    *(Case(f"long_softmax_{w}_{t}", long_softmax(2, w, t)) for w, t in ((65536, F32), (40008, F16), (300000, F32))),
    *(Case(f"long_norm_{w}_{t}", long_norm(2, w, t)) for w, t in ((40004, F32), (65512, F16))),
    *(Case(f"shifted_{t}", shifted(14, 40, t)) for t in (F32, F16)),
    Case("shifted_unevenly", shifted(21, 24, shift=16)),
    *(Case(f"tokens_and_image_{t}", tokens_and_image(12, 48, t)) for t in (F32, F16)),
    Case("mirrored_row", mirrored(2, 13000)),
    Case("pixels", channels_first(14, 96)),
    Case("long_rows", reduced("ReduceMean", (3, 70000), (1,))),
    Case("long_row_prime", reduced("ReduceMax", (1, 75013), (1,))),
    Case("long_rows_half", reduced("ReduceSum", (2, 40, 2048), (1, 2), F16)),
    Case("long_images", normalized(1, 2, 270, 260)),
    Case("few_columns", reduced("ReduceMean", (1, 4800, 24), (1,))),
    Case("few_columns_prime", reduced("ReduceMin", (2, 4999, 16), (1,))),
    Case("place_of_maximum", placed("ArgMax", (2, 3001), 1), feeds=ties),
    Case("last_place_of_minimum", placed("ArgMin", (5, 512), 1, 1), feeds=ties),
    Case("place_in_columns", placed("ArgMax", (1, 160, 40), 1), feeds=ties),
    Case("enlarged_float16", enlarged(F16, 16, 8, 4)),
    Case("enlarged_float32", enlarged(F32, 16, 8, 4, 2)),
    *(Case(f"enlarged_rows_{t}", enlarged_rows(t, 40, 16, 8, 4)) for t in (F32, F16)),
    Case("enlarged_rows_whole_tiles", enlarged_rows(F16, 64, 32, 16, 8)),
    Case("enlarged_rows_in_fours", enlarged_rows(F16, 36, 20, 10, 5)),
    *(Case(f"mean_of_normalized_{t}", pooled(49, 768, t)) for t in (F32, F16)),
    Case("normalized_mean", pooled(130, 264, F32, before=True)),
)
