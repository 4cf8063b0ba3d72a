"""The six twins' shapes: inputs with an RMS of about one, float64 references, flops and bytes of each case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.pool_host import aligned

Array = np.ndarray[Any, np.dtype[Any]]
PANEL = 32


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel on one shape.

    `inputs` are in the kernel's order; `weight` is the index of the input that streams in a real network, or None.
    `flops` count a multiply-add as two; `bytes` are inputs plus outputs, each once. `bound` is the largest accepted
    |y - reference| over the reference's RMS: float32 rounding of the longest sum, with room for its order.
    """

    name: str
    source: str
    symbol: str
    inputs: tuple[Array, ...]
    reference: Array
    flops: float
    bound: float
    weight: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all inputs and of the float32 output, each counted once."""
        return sum(a.nbytes for a in self.inputs) + 4 * self.reference.size


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Array:
    """A float32 array of standard normals times `scale`, 64-byte aligned."""
    return aligned(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale))


def pack_panels(weights: Array) -> Array:
    """A right side [depth, columns] as panels [columns / 32][depth][32]."""
    depth, columns = weights.shape
    return aligned(weights.reshape(depth, columns // PANEL, PANEL).transpose(1, 0, 2))


def pack_filters(weights: Array) -> Array:
    """Convolution weights [out, in, height, width] as panels [out / 32][height * width][in][32]."""
    out, channels, height, width = weights.shape
    return aligned(weights.reshape(out // PANEL, PANEL, channels, height * width).transpose(0, 3, 2, 1))


_ERF_STEPS = 60


def erf(x: Array) -> Array:
    """The error function in float64 to 1e-14: its Taylor series near zero, a continued fraction beyond."""
    small = np.abs(x) < 2.5
    z = np.where(small, x, 0.0)
    term, total = z.copy(), z.copy()
    for n in range(1, _ERF_STEPS):
        term = term * (-z * z) / n
        total += term / (2 * n + 1)
    big = np.where(small, 3.0, np.abs(x))
    fraction = np.zeros_like(big)
    for n in range(_ERF_STEPS, 0, -1):
        fraction = (n / 2) / (big + fraction)
    tail = np.exp(-big * big) / ((big + fraction) * np.sqrt(np.pi))
    return np.asarray(np.where(small, total * (2 / np.sqrt(np.pi)), np.sign(x) * (1 - tail)))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def gemm_gelu(rng: np.random.Generator, rows: int = 128, symbol: str = "twin_gemm_gelu") -> Case:
    """X[rows, 768] W[768, 3072] + b through the erf Gelu."""
    depth, columns = 768, 3072
    x, w, b = normal(rng, rows, depth), normal(rng, depth, columns, scale=depth**-0.5), normal(rng, columns)
    h = x.astype(np.float64) @ w + b
    y = 0.5 * h * (1 + erf(h / np.sqrt(2)))
    name = f"gemm_gelu {rows}x{depth}x{columns}" + (" dynamic" if symbol.endswith("dynamic") else "")
    return Case(name, "gemm_gelu.cpp", symbol, (x, pack_panels(w), b), y, 2.0 * rows * depth * columns, 5e-5, weight=1)


def gemm_gelu_dynamic(rng: np.random.Generator) -> Case:
    """The same kernel with the number of rows read at run time."""
    return gemm_gelu(rng, symbol="twin_gemm_gelu_dynamic")


def gemm_residual_layernorm(rng: np.random.Generator) -> Case:
    """LayerNorm(X[128, 3072] W[3072, 768] + b + R) * g + beta."""
    rows, depth, columns = 128, 3072, 768
    x, w = normal(rng, rows, depth), normal(rng, depth, columns, scale=depth**-0.5)
    b, r, g, beta = normal(rng, columns), normal(rng, rows, columns), normal(rng, columns), normal(rng, columns)
    h = x.astype(np.float64) @ w + b + r
    h -= h.mean(axis=1, keepdims=True)
    y = h / np.sqrt((h * h).mean(axis=1, keepdims=True) + 1e-12) * g + beta
    inputs = (x, pack_panels(w), b, r, g, beta)
    name, source = f"gemm_residual_layernorm {rows}x{depth}x{columns}", "gemm_residual_layernorm.cpp"
    return Case(name, source, "twin_gemm_residual_layernorm", inputs, y, 2.0 * rows * depth * columns, 1e-4, weight=1)


def _taps(x: Array, stride: int) -> list[Array]:
    side = x.shape[1]
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    return [padded[:, dy : dy + side : stride, dx : dx + side : stride] for dy in range(3) for dx in range(3)]


def conv3x3(rng: np.random.Generator, side: int, channels: int) -> Case:
    """A 3x3 convolution, channels last, with bias, residual and ReLU."""
    x, r = normal(rng, 1, side, side, channels), normal(rng, 1, side, side, channels)
    w, b = normal(rng, channels, channels, 3, 3, scale=(9 * channels) ** -0.5), normal(rng, channels)
    taps = _taps(x, 1)
    y = np.maximum(sum(t @ w[:, :, i // 3, i % 3].T for i, t in enumerate(taps)) + b + r, 0)
    flops = 18.0 * side * side * channels * channels
    name, symbol = f"conv3x3_residual_relu {side}x{side}x{channels}", f"twin_conv_{side}x{channels}"
    return Case(name, "conv3x3_residual_relu.cpp", symbol, (x, pack_filters(w), b, r), y, flops, 5e-5, weight=1)


def depthwise3x3(rng: np.random.Generator, side: int, channels: int, stride: int) -> Case:
    """A depthwise 3x3 convolution, channels last, with bias and ReLU6."""
    x, w, b = normal(rng, 1, side, side, channels), normal(rng, 9, channels), normal(rng, channels)
    y = np.clip(sum(t * w[i] for i, t in enumerate(_taps(x, stride))) + b, 0, 6)
    flops = 18.0 * (side // stride) ** 2 * channels
    name, symbol = f"depthwise3x3_relu6 {side}x{side}x{channels} stride {stride}", f"twin_depthwise_{side}x{channels}"
    return Case(name, "depthwise3x3_relu6.cpp", symbol, (x, w, b), y, flops, 1e-5)


def attention(rng: np.random.Generator) -> Case:
    """12 heads of 64 over 128 tokens from a merged QKV, additive mask, heads merged."""
    tokens, heads, size = 128, 12, 64
    qkv, mask = normal(rng, 1, tokens, 3 * heads * size), normal(rng, 1, 1, 1, tokens)
    q, k, v = qkv.astype(np.float64).reshape(tokens, 3, heads, size).transpose(1, 2, 0, 3)
    y = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(size) + mask[0]) @ v
    merged = y.transpose(1, 0, 2).reshape(1, tokens, heads * size)
    flops = 4.0 * tokens * tokens * heads * size
    return Case("attention 12x128x64", "attention.cpp", "twin_attention", (qkv, mask), merged, flops, 5e-5)


def softmax_rows(rng: np.random.Generator, rows: int, columns: int) -> Case:
    """softmax(X * scale + mask) over rows."""
    x, scale, mask = normal(rng, rows, columns, scale=3.0), np.full(1, 0.125, np.float32), normal(rng, columns)
    y = softmax(x.astype(np.float64) * 0.125 + mask)
    name, symbol = f"softmax {rows}x{columns}", f"twin_softmax_{columns}"
    return Case(name, "softmax.cpp", symbol, (x, scale, mask), y, 8.0 * rows * columns, 5e-5)


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "gemm_gelu": gemm_gelu,
    "gemm_gelu_dynamic": gemm_gelu_dynamic,
    "gemm_residual_layernorm": gemm_residual_layernorm,
    "conv_56x64": lambda rng: conv3x3(rng, 56, 64),
    "conv_14x256": lambda rng: conv3x3(rng, 14, 256),
    "depthwise_112x96": lambda rng: depthwise3x3(rng, 112, 96, 2),
    "depthwise_14x576": lambda rng: depthwise3x3(rng, 14, 576, 1),
    "attention": attention,
    "softmax_128": lambda rng: softmax_rows(rng, 1536, 128),
    "softmax_4096": lambda rng: softmax_rows(rng, 512, 4096),
}
