"""Cases of contractions with weights stored in 16 bits: graphs of float16, and of float32 with rounded weights.

The numbers that are multiplied can be held in 16 bits, so that the bounds are those of the sums in float32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BF16, F16, F32, I64, DType
from onnxfuse.ir.graph import Constant, Graph
from tests.kernels.cases.contraction import CASES as CONTRACTIONS
from tests.kernels.cases.contraction import SHAPES, gemm, scaled
from tests.kernels.cases.window import CASES as WINDOWS
from tests.kernels.cases.window import conv, pads
from tests.kernels.compiled import Array, Case, Sizes
from tests.kernels.isa import bf16_bits, bf16_values
from tests.rules.build import Build, draw

# Even depths, which bfloat16 weights need, and odd ones, which stay float32; images with and without padding, packed
# and read where they lie; symbols; sums in parts.
HALVES = (
    "gemm_1_64_64", "gemm_1_7_33", "gemm_17_31_37", "gemm_14_8_32", "gemm_13_300_290", "gemm_29_257_321",
    "gemm_3_1100_1000", "gemm_200_16_8", "gemm_5_64_1", "gemm_bias", "gemm_norm", "gemm_relu_both", "gemm_any_gelu",
    "gemm_any_relu_both", "gemm_deep_43", "gemm_deep_M", "gemm_any_wide", "empty_0_5_40", "empty_4_0_40", "empty_any",
    "gemm_t01", "gemm_t10", "batch_weights", "left_joined", "rows_looked_up", "rows_added_by_index",
    "conv3_even", "conv3_lines", "conv3_lines_any", "conv5_lines", "conv3_lines_apart", "conv1_lines_strided",
    "conv3_packed", "conv3_packed_parts", "conv3_odd", "conv3_plain_in", "conv3_plain_out", "conv3_both",
    "conv3_stride", "conv3_uneven", "conv3_valid", "conv1", "conv1_plain", "conv1_stride", "conv_one_in", "conv_line",
    "conv_volume", "stem", "stem_plain", "group_two", "conv_any_image", "conv1_any_image", "conv_no_image",
)  # fmt: skip


def rounded(array: Array, half: DType) -> Array:
    """Floats that the type can hold."""
    if array.dtype != np.float32:
        return array
    return bf16_values(bf16_bits(array)) if half == BF16 else array.astype(np.float16).astype(np.float32)


def halved(case: Case, half: DType) -> Case:
    """The case with weights held in a type that can hold them and its inputs."""
    old = case.graph.constants
    constants = {name: Constant.of(rounded(c.load(), half), c.dtype) for name, c in old.items()}

    def feeds(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
        return {name: rounded(array, half) for name, array in case.feeds(graph, rng, sizes).items()}

    return replace(
        case, name=f"{half}_{case.name}", graph=replace(case.graph, constants=constants), feeds=feeds, half=half
    )


def few_digits(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Inputs that float16 and bfloat16 can both hold."""
    return {
        name: (rng.integers(-64, 65, array.shape) / 16).astype(array.dtype)
        for name, array in draw(graph, rng, sizes).items()
    }


def short() -> list[Case]:
    """Graphs that are float16 themselves."""
    out = [Case(f"half_{m}_{k}_{n}", gemm(m, k, n, dtype=F16)) for m, k, n in SHAPES]
    out += [Case(f"half_{a}", gemm(19, 70, 45, after=a, dtype=F16)) for a in ("bias", "relu_both")]
    out.append(Case("half_any", gemm("M", 260, 270, dtype=F16), tuple({"M": m} for m in (1, 14, 37))))
    three = {"pads": pads(1), "dtype": F16}
    out += [
        conv("half_conv3", (1, 32, 14, 14), (32, 32, 3, 3), **three, after="residual"),
        conv("half_conv3_plain", (1, 5, 9, 9), (11, 5, 3, 3), **three, last=""),
        conv("half_conv3_packed", (1, 72, 7, 7), (264, 72, 3, 3), **three, after="residual", way=-1),
        conv("half_conv3_valid", (1, 9, 11, 11), (16, 9, 3, 3), dtype=F16, last="x"),
        conv("half_conv1", (1, 64, 7, 7), (32, 64, 1, 1), after="residual", dtype=F16),
        conv("half_conv1_stride", (1, 24, 9, 9), (17, 24, 1, 1), strides=(2, 2), dtype=F16),
        conv("half_stem", (1, 3, 24, 24), (64, 3, 7, 7), strides=(2, 2), pads=pads(3), last="y", dtype=F16),
        conv("half_patches", (1, 3, 24, 24), (40, 3, 8, 8), strides=(8, 8), last="", dtype=F16),
        conv("half_depth", (1, 32, 14, 14), (32, 1, 3, 3), group=32, **three),
        *between(),
        letters(),
    ]
    return out


def letters() -> Case:
    """A convolution over looked-up letters that lie channels first: they are copied, so that no filter is widened."""
    b = Build()
    table, ids = b.constant(b.rng.normal(size=(19, 24)).astype(np.float16)), b.input("i", "n", "t", dtype=I64)
    x = b.node("Transpose", b.node("Gather", table, ids), perm=(0, 2, 1))
    w = b.constant((b.rng.normal(size=(33, 24, 5)) / 11).astype(np.float16))
    y = b.node("Relu", b.node("Conv", x, w, pads=(2, 2), kernel_shape=(5,)))
    return Case("half_letters", b.graph(y), ({"n": 1, "t": 1}, {"n": 3, "t": 17}))


def between() -> list[Case]:
    """Convolutions between images that lie as the runtime has them, in every form."""
    rows: dict[str, tuple[tuple[int | str, ...], tuple[int, ...], dict[str, Any]]] = {
        "image": ((2, 5, 9, 37), (11, 5, 3, 3), {"pads": pads(1), "after": "residual"}),
        "lines": ((1, 7, 9, 7), (13, 7, 3, 3), {"pads": pads(1)}),
        "points": ((1, 24, 7, 5), (33, 24, 1, 1), {}),
        "stride": ((1, 3, 17, 71), (16, 3, 3, 3), {"strides": (2, 2)}),
        "line": ((2, 19, 101), (32, 19, 3), {"pads": (1, 1)}),
        "wave": ((1, 1, 203), (48, 1, 10), {"strides": (5,)}),
        "any": ((1, 8, "L"), (14, 8, 3), {"pads": (1, 1), "sizes": ({"L": 1}, {"L": 33}, {"L": 300})}),
    }
    return [
        conv(f"half_{way}_{name}", x, w, last="", dtype=F16, form=form, **how)
        for name, (x, w, how) in rows.items()
        for way, form in (("plain", 0), ("exchanged", -1))
    ]


def held() -> list[Case]:
    """Graphs of float32 whose weights are held in 16 bits."""
    named = {c.name: c for c in (*CONTRACTIONS, *WINDOWS)}
    b = Build()
    x = b.node("Cast", b.input("x", 15, 40, dtype=F16), to=F32.onnx)
    odd = [Case(f"gemm_{m}_{k}_{n}", gemm(m, k, n)) for m, k, n in ((35, 94, 33), (61, 160, 40), (70, 62, 96))]
    odd.append(Case("gemm_any_94", gemm("M", 94, 33), tuple({"M": m} for m in (1, 2, 16, 17, 31, 33, 64, 69))))
    widened = Case("widened", b.graph(b.node("MatMul", x, scaled(b, 40, 45))), feeds=few_digits)
    return [halved(c, BF16) for c in (*(named[name] for name in HALVES), *odd, widened)] + [
        halved(named[name], F16) for name in HALVES[5::6]
    ]


CASES: tuple[Case, ...] = (*short(), *held())
