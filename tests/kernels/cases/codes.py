"""Products of 8-bit quantized values: signed and unsigned, zero points of all kinds, odd depths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import I8, I16, U8, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Index
from tests.kernels.compiled import Array, Case
from tests.rules.build import Build, draw

Extent = int | str | Index


def full_range(graph: Graph, rng: np.random.Generator, symbols: Mapping[str, int]) -> dict[str, Array]:
    """Random inputs; codes of every value, scales that are no constants small and positive."""
    feeds = draw(graph, rng, symbols)
    for name, array in feeds.items():
        if array.dtype.kind != "f":
            info = np.iinfo(array.dtype)
            feeds[name] = rng.integers(info.min, info.max + 1, array.shape).astype(array.dtype)
        elif array.ndim == 0:
            feeds[name] = np.full((), 0.02, np.float32)
    return feeds


def decoded(b: Build, x: str, zero: int, scale: float = 0.05) -> str:
    """The numbers that codes stand for."""
    held = b.types[x]
    assert held is not None
    return str(
        b.node("DequantizeLinear", x, b.constant(np.float32(scale)), b.constant(np.array(zero, held.dtype.numpy)))
    )


def coded(b: Build, x: str, zero: int, dtype: DType = U8, scale: float = 0.7) -> str:
    """Numbers as codes."""
    return str(b.node("QuantizeLinear", x, b.constant(np.float32(scale)), b.constant(np.array(zero, dtype.numpy))))


def weights(b: Build, shape: tuple[int, ...], axis: int | None, dtype: DType = I8, zeros: Any = None) -> str:
    """Constant codes as numbers: a scale and a zero point for all, or for each slice of an axis (zeros: 0)."""
    info = np.iinfo(dtype.numpy)
    codes = b.constant(b.rng.integers(info.min, info.max + 1, shape).astype(dtype.numpy))
    size = () if axis is None else (shape[axis],)
    scale = b.constant((b.rng.random(size) * 0.01 + 0.001).astype(np.float32))
    zero = b.rng.integers(info.min, info.max + 1, size) if zeros is None else np.full(size, zeros)
    return str(b.node("DequantizeLinear", codes, scale, b.constant(zero.astype(dtype.numpy)), axis=axis or 0))


def product(
    name: str,
    rows: Extent,
    depth: int,
    columns: int,
    left: DType = U8,
    right: DType = I8,
    axis: int | None = 1,
    **how: Any,
) -> Case:
    """Codes by constant codes, a bias, a clamp, codes again; zero points that the options do not give are random."""
    b = Build(21)
    x = decoded(b, b.input("x", rows, depth, dtype=left), -9 if left == I8 else 101)
    y = b.node("MatMul", x, weights(b, (depth, columns), axis, right, how.get("zeros")))
    y = b.node("Relu", b.node("Add", y, b.weights(columns)))
    sizes = ({"n": 1}, {"n": 37}) if isinstance(rows, str) else ({},)
    return Case(name, b.graph(coded(b, y, 7)), sizes, feeds=full_range)


def image(
    name: str, size: tuple[int, ...], outputs: int, kernel: int, left: DType = U8, right: DType = I8, **attrs: Any
) -> Case:
    """A convolution of codes with a bias of codes, padded with the code of zero."""
    b = Build(21)
    x = decoded(b, b.input("x", *size, dtype=left), -5 if left == I8 else 77)
    bias = b.constant(b.rng.integers(-3000, 3000, outputs).astype(np.int32))
    numbers = b.node("DequantizeLinear", bias, b.constant(np.full(outputs, 0.0004, np.float32)), "", axis=0)
    w = weights(b, (outputs, size[1], *(kernel,) * (len(size) - 2)), 0, right, 0 if right == I8 else None)
    y = coded(b, b.node("Conv", x, w, numbers, **attrs), -3, I8)
    return Case(name, b.graph(y), last=("x", y), feeds=full_range)


def scale_given(name: str) -> Case:
    """The scale and the zero point of the left side are inputs."""
    b = Build(21)
    zero = b.input("z", dtype=U8)
    x = b.node("DequantizeLinear", b.input("x", 6, 40, dtype=U8), b.input("s"), zero)
    return Case(name, b.graph(b.node("MatMul", x, weights(b, (40, 33), None, zeros=0))), feeds=full_range)


def gemm(name: str) -> Case:
    """Gemm with a transposed right side, numbers as its result."""
    b = Build(21)
    x = decoded(b, b.input("x", 5, 24, dtype=U8), 128)
    y = b.node("Gemm", x, weights(b, (40, 24), 0, zeros=0), b.weights(40), transB=1, alpha=0.5)
    return Case(name, b.graph(y), feeds=full_range)


def depthwise(
    name: str,
    channels: int,
    kernel: tuple[int, ...],
    left: DType = U8,
    size: tuple[int | str, ...] = (11, 12),
    zeros: bool = False,
    **attrs: Any,
) -> Case:
    """A convolution of each channel by itself, whose weights may have zero points; symbols are tried at 1 and 19."""
    b = Build(21)
    x = decoded(b, b.input("x", 1, channels, *size, dtype=left), 4)
    if zeros:
        w = weights(b, (channels, 1, *kernel), 0, I8)
    else:
        codes = b.constant(b.rng.integers(-128, 128, (channels, 1, *kernel)).astype(np.int8))
        scale = b.constant(b.rng.uniform(0.005, 0.03, channels).astype(np.float32))
        w = str(b.node("DequantizeLinear", codes, scale, "", axis=0))
    y = b.node("Clip", b.node("Conv", x, w, group=channels, **attrs), b.constant(0.0), b.constant(6.0))
    y = coded(b, y, 0, scale=0.02)
    symbols = [e for e in size if isinstance(e, str)]
    sizes = tuple(dict.fromkeys(symbols, e) for e in (1, 19)) if symbols else ({},)
    return Case(name, b.graph(y), sizes, last=("x", y), feeds=full_range)


def integers(name: str, left: DType, right: DType) -> Case:
    """MatMulInteger with zero points that are known when it runs, scaled and biased as dynamic quantization has it."""
    b = Build(21)
    x, zero = b.input("x", 19, 50, dtype=left), b.input("z", dtype=left)
    info = np.iinfo(right.numpy)
    w = b.constant(b.rng.integers(info.min, info.max + 1, (50, 37)).astype(right.numpy))
    zeros = b.constant(b.rng.integers(info.min, info.max + 1, 37).astype(right.numpy))
    y = b.node("Cast", b.node("MatMulInteger", x, w, zero, zeros), to=1)
    y = b.node("Add", b.node("Mul", y, b.input("s")), b.weights(37))
    return Case(name, b.graph(y), feeds=full_range)


def qlinear(name: str, op: str, shape: tuple[int, ...], held: tuple[int, ...], **attrs: Any) -> Case:
    """A QLinear operator; its weights have one scale and one zero point."""
    b = Build(21)
    x = b.input("x", *shape, dtype=U8)
    scale, other, last = (b.constant(np.float32(v)) for v in (0.05, 0.01, 0.9))
    zero, middle = b.constant(np.array(120, np.uint8)), b.constant(np.array(5, np.int8))
    w = b.constant(b.rng.integers(-128, 128, held).astype(np.int8))
    y = b.node(op, x, scale, zero, w, other, middle, last, zero, **attrs)
    return Case(name, b.graph(y), last=("x", y) if len(shape) > 2 else (), feeds=full_range)


def made(name: str, dtype: DType, zero: int, *, axis: int | None = None) -> Case:
    """Numbers as codes: halves, what saturates, infinities and NaN."""
    b = Build(21)
    x = b.input("x", 5, 37)
    zeros = b.constant(np.full(() if axis is None else 5, zero, dtype.numpy))
    scale = b.constant(np.full(() if axis is None else 5, 0.25, np.float32))

    def feeds(graph: Graph, rng: np.random.Generator, symbols: Mapping[str, int]) -> dict[str, Array]:
        halves = (rng.integers(-300, 300, (5, 37)) * 0.125).astype(np.float32)
        halves[0, :6] = np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0
        return {"x": halves}

    return Case(name, b.graph(b.node("QuantizeLinear", x, scale, zeros, axis=axis or 0)), feeds=feeds)


def interleaved(name: str, channels: int, dtype: DType, zero: int) -> Case:
    """An image that is coded and laid out channels last: codes of a place lie side by side."""
    b = Build(21)
    scale, zeros = b.constant(np.float32(0.02)), b.constant(np.array(zero, dtype.numpy))
    codes = b.node("QuantizeLinear", b.input("x", 2, channels, 5, 27), scale, zeros)
    return Case(name, b.graph(b.node("Transpose", codes, perm=(0, 2, 3, 1))))


def recoded(name: str, dtype: DType) -> Case:
    """A sum of codes that are made and read at once, which need no zero point in between."""
    b = Build(21)
    x, y = (decoded(b, coded(b, b.input(n, 6, 45), 9, dtype, 0.02), 9, 0.02) for n in "xy")
    return Case(name, b.graph(coded(b, b.node("Add", x, y), -7 if dtype == I8 else 130, dtype, 0.03)))


def attention(name: str, heads: int, rows: int, keys: int, depth: int, dtype: DType = U8) -> Case:
    """Codes on both sides of both products, and between all steps."""
    b = Build(21)
    zero = 0 if dtype == I8 else 128
    shapes = (rows, depth), (keys, depth), (keys, depth)
    q, k, v = (b.input(n, 1, heads, *s, dtype=dtype) for n, s in zip("qkv", shapes, strict=True))
    k = b.node("Transpose", decoded(b, k, zero, 0.02), perm=(0, 1, 3, 2))
    scores = b.node("MatMul", decoded(b, q, zero, 0.02), k)
    scores = decoded(b, coded(b, scores, zero, dtype, 0.1), zero, 0.1)
    shares = coded(b, b.node("Softmax", scores, axis=-1), -128 if dtype == I8 else 0, dtype, 1 / 256)
    shares = decoded(b, shares, -128 if dtype == I8 else 0, 1 / 256)
    y = coded(b, b.node("MatMul", shares, decoded(b, v, zero, 0.02)), zero, dtype, 0.05)
    return Case(name, b.graph(y), feeds=full_range)


ATTENTIONS = (
    attention("codes_attention", 2, 19, 37, 16),
    attention("codes_attention_signed", 3, 5, 33, 40, I8),
)
MADE = (
    made("codes_made", U8, 100),
    made("codes_made_signed", I8, -3),
    made("codes_made_wide", I16, 1000, axis=0),
    *(interleaved(f"codes_interleaved_{n}", n, I8 if n == 4 else U8, 3) for n in (2, 3, 4)),
    recoded("codes_recoded", U8),
    recoded("codes_recoded_signed", I8),
)
ZEROS_OF_CHANNELS = depthwise("codes_depthwise_zeros", 19, (3, 3), pads=[1, 1, 1, 1], zeros=True)
WINDOWS = (
    depthwise("codes_depthwise", 40, (3, 3), pads=[1, 1, 1, 1]),
    depthwise("codes_depthwise_halved", 16, (5, 5), I8, pads=[2, 2, 2, 2], strides=[2, 2]),
    depthwise("codes_depthwise_large", 70, (5, 5), size=(9, 28), pads=[2, 2, 2, 2]),
    depthwise("codes_depthwise_signed", 33, (3, 3), I8, (7, 7), pads=[1, 1, 1, 1]),
    depthwise("codes_depthwise_dilated", 24, (4, 3), size=(13, 10), pads=[0, 1, 2, 1], dilations=[2, 1]),
    depthwise("codes_depthwise_line", 40, (9,), size=(23,), pads=[4, 4]),
    depthwise("codes_depthwise_any_size", 36, (3, 3), size=("h", "w"), pads=[1, 1, 1, 1]),
)
CASES = (
    product("codes_plain", 28, 64, 64, zeros=0, axis=None),
    product("codes_odd", 17, 67, 45),
    product("codes_of_one_row", 1, 130, 96, zeros=0),
    product("codes_signed", 15, 33, 40, I8, I8, zeros=0),
    product("codes_unsigned", 15, 70, 40, U8, U8, zeros=128, axis=None),
    product("codes_signed_by_unsigned", 30, 131, 31, I8, U8),
    product("codes_any_rows", "n", 61, 35),
    product("codes_deep", 8, 1027, 45),  # more than are widened at a time, as are those of the next one's windows
    image("codes_image_deep", (1, 60, 5, 6), 20, 3, pads=[1, 1, 1, 1]),
    image("codes_image", (2, 12, 9, 7), 20, 3, pads=[1, 1, 1, 1]),
    image("codes_image_signed", (1, 8, 13, 13), 33, 3, I8, pads=[1, 1, 1, 1], strides=[2, 2]),
    image("codes_image_halved", (1, 8, 14, 14), 24, 3, pads=[1, 1, 1, 1], strides=[2, 2]),
    image("codes_image_of_colours", (1, 3, 17, 19), 16, 7, pads=[3, 3, 3, 3], strides=[2, 2]),
    image("codes_image_of_few_colours", (1, 3, 19, 23), 45, 3, pads=[0, 0, 1, 1], strides=[2, 2]),
    image("codes_image_of_apart_colours", (1, 3, 17, 19), 20, 3, I8, U8, dilations=[2, 2]),
    image("codes_image_of_pairs", (1, 2, 14, 11), 33, 5, I8, pads=[2, 2, 2, 2]),
    image("codes_image_unsigned", (1, 16, 8, 8), 24, 1, U8, U8),
    image("codes_line", (2, 10, 21), 17, 3, pads=[1, 1], dilations=[2]),
    scale_given("codes_scale_given"),
    gemm("codes_gemm"),
    integers("codes_integers", U8, I8),
    integers("codes_integers_signed", I8, U8),
    qlinear("codes_qlinear", "QLinearMatMul", (13, 40), (40, 24)),
    qlinear("codes_qlinear_image", "QLinearConv", (1, 8, 9, 11), (16, 8, 3, 3), pads=(1, 1, 1, 1)),
)
