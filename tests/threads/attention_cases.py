"""Cases of attention for GPU kernels: windows, masks, shared keys, a cache, all floating types."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.cases import contraction
from tests.kernels.compiled import Case
from tests.rules.build import Build


def windows(dtype: DType, count: int = 3, heads: int = 2, rows: int = 49, depth: int = 32) -> Graph:
    """Attention in windows with a bias for each head, as Swin has it, heads split off one projection."""
    b = Build(22)
    width = heads * depth
    qkv = b.input("qkv", count, rows, 3 * width, dtype=dtype)
    parts = b.node("Split", qkv, b.ints(width, width, width), count=3, axis=2)
    split = b.ints(0, 0, heads, depth)
    q, k, v = (
        b.node("Transpose", b.node("Reshape", p, split), perm=perm)
        for p, perm in zip(parts, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
    )
    s = b.node("Add", b.node("MatMul", q, k), b.input("bias", 1, heads, rows, rows, dtype=dtype))
    o = b.node("MatMul", b.node("Softmax", s, axis=-1), v)
    return b.graph(b.node("Reshape", b.node("Transpose", o, perm=(0, 2, 1, 3)), b.ints(0, 0, width)))


def biased(dtype: DType, heads: int = 2, rows: int = 77, depth: int = 32) -> Graph:
    """Heads split off one projection whose bias is added first, with a mask, and shares that are no numbers hidden."""
    b = Build(22)
    width = heads * depth
    qkv = b.node("Add", b.input("qkv", 1, rows, 3 * width, dtype=dtype), b.input("bias", 3 * width, dtype=dtype))
    split = b.ints(0, 0, heads, depth)
    q, k, v = (
        b.node("Transpose", b.node("Reshape", p, split), perm=perm)
        for p, perm in zip(
            b.node("Split", qkv, b.ints(width, width, width), count=3, axis=2),
            ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)),
            strict=True,
        )
    )
    s = b.node("Add", b.node("MatMul", q, k), b.input("mask", 1, 1, rows, rows, dtype=dtype))
    p = b.node("Softmax", s, axis=-1)
    p = b.node("Where", b.node("IsNaN", p), b.constant(np.zeros((), dtype.numpy), dtype.numpy.type), p)
    o = b.node("Transpose", b.node("MatMul", p, v), perm=(0, 2, 1, 3))
    return b.graph(b.node("Reshape", o, b.ints(0, 0, width)))


def separate(dtype: DType, heads: int, rows: int, keys: int, depth: int, columns: int | None = None) -> Graph:
    """Queries, keys and values by themselves, without a mask."""
    b = Build(22)
    q, k = (b.input(n, 1, heads, s, depth, dtype=dtype) for n, s in (("q", rows), ("k", keys)))
    v = b.input("v", 1, heads, keys, columns or depth, dtype=dtype)
    p = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", k, perm=(0, 1, 3, 2))), axis=-1)
    return b.graph(b.node("MatMul", p, v))


PARTED = (
    Case("two_tiles_float16", separate(F16, 2, 20, 600, 32)),
    *(Case(f"decoding_{t}", separate(t, 3, 1, 1100, 32)) for t in (F32, F16)),
    Case("decoding_few_rows_float16", separate(F16, 2, 5, 1030, 16, 24)),
)
TYPED = (
    *(Case(f"window_{t}", windows(t)) for t in (F32, F16, BF16)),
    *(Case(f"deep_{t}", separate(t, 2, 70, 150, 64)) for t in (F32, F16, BF16)),
    *(Case(f"few_rows_{t}", separate(t, 3, 1, 200, 64)) for t in (F32, F16)),
    Case("uneven_float16", separate(F16, 2, 20, 33, 24, 40)),
    Case("biased_float16", biased(F16)),
    Case("wide_float16", separate(F16, 1, 17, 40, 128)),
    Case("largest_float32", separate(F32, 2, 40, 70, 256)),
    *PARTED,
)
CASES: tuple[Case, ...] = (
    *TYPED,
    Case("biased_float32", biased(F32)),
    *(c for c in contraction.CASES if c.name.startswith("attention_")),
)
