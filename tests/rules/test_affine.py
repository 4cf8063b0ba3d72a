"""Affine maps, scales and padding are folded into contractions: weights, biases, pads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.dtype import BF16, F16, F32, I64, DType
from onnxfuse.ir.graph import Constant, Graph
from onnxfuse.rewrite.affine import scaled
from tests.rules.build import Array, Build, only, ops, rewritten, same

AFTER, BEFORE, SCALE = "affine-after", "affine-before", "scale-into-weights"


def check(b: Build, out: str, expected: list[str], *rules: str) -> Graph:
    before = b.graph(out)
    after, _ = rewritten(before, only(*rules) if rules else None)
    assert sorted(ops(after)) == sorted(expected)
    same(before, after, {"n": 2, "s": 3}, terms=64)
    return after


def stays(b: Build, out: str, *rules: str) -> None:
    before = b.graph(out)
    assert rewritten(before, only(*rules))[1] == {}


def positive(b: Build, *shape: int) -> str:
    return b.constant(b.rng.uniform(0.5, 2.0, shape).astype(np.float32))


def batch_normalization(b: Build, x: str, channels: int) -> str:
    parts = (b.weights(channels), b.weights(channels), b.weights(channels), positive(b, channels))
    return str(b.node("BatchNormalization", x, *parts, epsilon=1e-3))


# A contraction with 6 output channels on axis 1 of (n, 6, ...), or on the last axis for MatMul.
HEADS: dict[str, Callable[[Build], str]] = {
    "conv": lambda b: b.node("Conv", b.input("x", "n", 4, 7, 7), b.weights(6, 4, 3, 3), pads=(1, 1, 1, 1)),
    "conv-bias": lambda b: b.node("Conv", b.input("x", 2, 4, 7, 7), b.weights(6, 4, 1, 1), b.weights(6)),
    "conv-groups": lambda b: b.node("Conv", b.input("x", 2, 4, 7), b.weights(6, 2, 3), b.weights(6), group=2),
    "depthwise": lambda b: b.node("Conv", b.input("x", 2, 6, 7, 7), b.weights(6, 1, 3, 3), group=6),
    "gemm": lambda b: b.node("Gemm", b.input("x", "n", 5), b.weights(5, 6), b.weights(6), alpha=0.5, beta=2.0),
    "gemm-t": lambda b: b.node("Gemm", b.input("x", 5, 3), b.weights(6, 5), transA=1, transB=1),
    "matmul": lambda b: b.dense(b.input("x", 3, 5), 6, bias=False),
    "dense": lambda b: b.dense(b.input("x", 3, 5), 6),
}
MAPS: dict[str, Callable[[Build, str, str], str]] = {
    "batch-normalization": lambda b, x, c: batch_normalization(b, x, 6),
    "mul": lambda b, x, c: b.node("Mul", x, c),
    "mul-left": lambda b, x, c: b.node("Mul", c, x),
    "div": lambda b, x, c: b.node("Div", x, c),
    "add": lambda b, x, c: b.node("Add", x, c),
    "sub": lambda b, x, c: b.node("Sub", x, c),
    "sub-left": lambda b, x, c: b.node("Sub", c, x),
    "neg": lambda b, x, c: b.node("Neg", x),
}


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("head", HEADS)
def test_affine_maps_of_output_channels(head: str, kind: str) -> None:
    b = Build()
    x = HEADS[head](b)
    rank = len((b.types[x] or pytest.fail()).shape)
    per_channel = positive(b, 6, *(1,) * (rank - 2))
    before = b.graph(MAPS[kind](b, x, per_channel))
    after, fired = rewritten(before, only(AFTER))
    expected = {"matmul": ["MatMul", "Add"] if kind == "batch-normalization" else ["MatMul"]}
    expected |= {"dense": ["MatMul", "Add"], "gemm": ["Gemm"], "gemm-t": ["Gemm"]}
    if head == "matmul" and kind in ("add", "sub", "sub-left"):
        assert fired == {}  # the bias of a MatMul stays an Add
    else:
        assert fired == {AFTER: 1}
        assert ops(after) == expected.get(head, ["Conv"])
    same(before, after, {"n": 2}, terms=64)


def test_conv_and_batch_normalization_with_shared_statistics_and_relu() -> None:
    b = Build(11)
    y = batch_normalization(b, HEADS["conv"](b), 6)
    after = check(b, b.node("Relu", y), ["Conv", "Relu"])
    assert after.nodes[0].origin == ("Conv0", "BatchNormalization1")
    assert after.nodes[0].inputs[1].startswith("c0.scaled.")


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_scale_that_is_not_finite_stays(value: float) -> None:
    b = Build()
    x = HEADS["conv"](b)
    stays(b, b.node("Div" if value == 0.0 else "Mul", x, b.constant(np.full((6, 1, 1), value, np.float32))), AFTER)


def test_a_map_that_varies_over_space_stays() -> None:
    b = Build()
    stays(b, b.node("Mul", HEADS["conv-bias"](b), b.weights(7)), AFTER)
    b = Build()
    stays(b, b.node("Mul", HEADS["conv-bias"](b), b.weights(2, 1, 1, 1)), AFTER)


def test_a_product_that_is_also_read_elsewhere_stays() -> None:
    b = Build()
    x = HEADS["conv-bias"](b)
    before = b.graph(b.node("Mul", x, positive(b, 6, 1, 1)), b.node("Exp", x))
    assert rewritten(before, only(AFTER))[1] == {}
    b = Build()
    x = HEADS["dense"](b)
    before = b.graph(b.node("Mul", x, positive(b, 6)), x)
    assert rewritten(before, only(AFTER))[1] == {}


def test_a_large_weight_that_is_also_read_elsewhere_is_not_copied() -> None:
    b = Build()
    w = b.weights(80, 80, name="w")
    x = b.input("x", 3, 80)
    before = b.graph(b.node("Mul", b.node("MatMul", x, w), positive(b, 80)), b.node("Exp", w))
    assert rewritten(before, only(AFTER))[1] == {}


def test_a_variable_weight_stays() -> None:
    b = Build()
    y = b.node("MatMul", b.input("x", 3, 5), b.input("w", 5, 6))
    stays(b, b.node("Mul", y, positive(b, 6)), AFTER)


def test_weights_are_scaled_when_loaded() -> None:
    b = Build()
    loads: list[int] = []
    y = b.node("Mul", b.dense(b.input("x", 2, 40), 40, bias=False), positive(b, 40))
    array: Array = b.constants["c0"].load()
    b.constants["c0"] = Constant(b.constants["c0"].dtype, array.shape, lambda: loads.append(1) or array)  # type: ignore[func-returns-value]
    after, _ = rewritten(b.graph(y))
    assert not loads
    after.constants[after.nodes[0].inputs[1]].load()
    assert len(loads) == 1


def test_half_precision_weights_that_would_overflow_stay() -> None:
    for factor, expected in ((1e4, {}), (2.0, {AFTER: 1})):
        b = Build()
        w = b.constant(np.full((2, 6), 100, np.float16))
        y = b.node("MatMul", b.node("Cast", b.input("x", 3, 2), to=10), w)
        before = b.graph(b.node("Mul", y, b.constant(np.full(6, factor, np.float16))))
        assert rewritten(before, only(AFTER))[1] == expected


# Before ---------------------------------------------------------------------------------------------------------------


TAILS = ("conv", "conv-groups", "conv-padded", "gemm", "gemm-t", "matmul")
# The channels of a BatchNormalization are not the summed axis of a Gemm that transposes it.
MAPPED = [(t, kind) for t in TAILS for kind in MAPS if (t, kind) != ("gemm-t", "batch-normalization")]


@pytest.mark.parametrize(("tail", "kind"), MAPPED)
def test_affine_maps_of_input_channels(tail: str, kind: str) -> None:
    b = Build()
    spatial = (5, 5) if tail.startswith("conv") else ()
    shape = (6, 3) if tail == "gemm-t" else (3, 6, *spatial)
    x = MAPS[kind](b, b.input("x", *shape), positive(b, 6, *(1,) * (1 if tail == "gemm-t" else len(spatial))))
    y = {
        "conv": lambda: b.node("Conv", x, b.weights(4, 6, 3, 3), b.weights(4)),
        "conv-groups": lambda: b.node("Conv", x, b.weights(4, 3, 2, 2), group=2),
        "conv-padded": lambda: b.node("Conv", x, b.weights(4, 6, 3, 3), auto_pad="SAME_UPPER"),
        "gemm": lambda: b.node("Gemm", x, b.weights(6, 4), b.weights(1, 4), beta=0.5),
        "gemm-t": lambda: b.node("Gemm", x, b.weights(4, 6), transA=1, transB=1, alpha=2.0),
        "matmul": lambda: b.dense(x, 4, bias=False),
    }[tail]()
    before = b.graph(y)
    after, fired = rewritten(before, only(BEFORE, "constants-add"))
    shifts = kind in ("batch-normalization", "add", "sub", "sub-left")
    if tail == "conv-padded" and shifts:
        assert fired == {}  # zeros of the padding are not shifted
    elif not (tail == "matmul" and shifts):
        assert fired == {BEFORE: 1} and len(after.nodes) == 1
    same(before, after, terms=64)


def test_a_shift_before_a_dense_layer_joins_its_bias() -> None:
    b = Build()
    x = b.node("Add", b.input("x", 3, 6), b.weights(6))
    y = b.dense(x, 4)
    before = b.graph(y)
    after, _ = rewritten(before, only(BEFORE, "constants-add"))
    same(before, after, terms=64)


def test_a_map_that_is_also_read_elsewhere_stays() -> None:
    b = Build()
    x = b.node("Mul", b.input("x", 3, 6), positive(b, 6))
    before = b.graph(b.dense(x, 4), b.node("Exp", x))
    assert rewritten(before, only(BEFORE))[1] == {}


def test_a_contraction_of_another_domain_stays() -> None:
    b = Build()
    y = b.node("Conv", b.node("Mul", b.input("x", 2, 6, 5, 5), positive(b, 6, 1, 1)), b.weights(4, 6, 3, 3))
    b.nodes[-1] = replace(b.nodes[-1], domain="com.microsoft.nchwc")
    stays(b, y, BEFORE)


# Scales ---------------------------------------------------------------------------------------------------------------


def attention(b: Build, heads: int = 2, head: int = 4, *, before: bool) -> str:
    """Scores of one attention layer, scaled on both sides of the product or behind it."""
    x = b.input("x", "n", "s", 8)
    sides = []
    for perm in ((0, 2, 1, 3), (0, 2, 3, 1)):
        y = b.node("Reshape", b.dense(x, heads * head), b.ints(0, 0, heads, head))
        y = b.node("Transpose", y, perm=perm)
        sides.append(b.node("Mul", y, b.constant(0.7)) if before else y)
    scores = b.node("MatMul", *sides)
    return str(scores if before else b.node("Div", scores, b.constant(2.0)))


@pytest.mark.parametrize("before", [True, False])
def test_the_scale_of_attention_ends_in_the_weights(before: bool) -> None:
    b = Build()
    side = ["MatMul", "Add", "Reshape", "Transpose"]
    check(b, attention(b, before=before), [*side, *side, "MatMul"], SCALE)


def test_a_scale_passes_sums_products_and_gemms() -> None:
    b = Build()
    x = b.input("x", 3, 5)
    left = b.node("Gemm", x, b.weights(5, 4), b.weights(4))
    right = b.node("Mul", b.node("Exp", x), b.weights(5))
    total = b.node("Sub", left, b.node("MatMul", right, b.weights(5, 4)))
    check(b, b.node("Mul", b.constant(3.0), total), ["Gemm", "Exp", "Mul", "MatMul", "Sub"], SCALE)


MOVES: dict[str, Callable[[Build, str], str]] = {
    "Gather": lambda b, y: str(b.node("Gather", y, b.ints(2, 0, 2), axis=1)),
    "Expand": lambda b, y: str(b.node("Expand", y, b.ints(2, 3, 4))),
    "Tile": lambda b, y: str(b.node("Tile", y, b.ints(1, 2))),
    "Slice": lambda b, y: str(b.node("Slice", y, b.ints(3), b.ints(-9), b.ints(1), b.ints(-2))),
    "Unsqueeze": lambda b, y: str(b.node("Unsqueeze", y, b.ints(1))),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_scale_passes_whatever_moves_elements(name: str) -> None:
    b = Build()
    y = MOVES[name](b, b.dense(b.input("x", 3, 4), 4))
    check(b, b.node("Mul", y, b.constant(2.0)), ["MatMul", "Add", name], SCALE)


def test_a_scale_ends_in_a_table_that_is_looked_up() -> None:
    b = Build()
    y = b.node("Gather", b.weights(7, 4), b.input("i", 2, 3, dtype=I64))
    check(b, b.node("Mul", y, b.constant(2.0)), ["Gather"], SCALE)


def test_a_scale_of_one_part_of_a_split_stays() -> None:
    b = Build()
    left, right = b.node("Split", b.dense(b.input("x", 3, 4), 4), axis=1, count=2)
    before = b.graph(b.node("Mul", left, b.constant(2.0)), b.node("Exp", right))
    assert rewritten(before, only(SCALE))[1] == {}


def test_a_scale_does_not_pass_zeros_around_a_tensor() -> None:
    """Behind a guard is another value, which would have to be scaled as well; of zeros nobody asks."""
    b = Build()
    stays(b, b.node("Mul", b.node("Pad", b.dense(b.input("x", 3, 4), 4), b.ints(0, 1, 0, 1)), b.constant(2.0)), SCALE)


def test_a_scale_that_no_constant_takes_stays() -> None:
    b = Build()
    x = b.input("x", 3, 4)
    stays(b, b.node("Mul", b.node("MatMul", x, b.node("Transpose", x)), b.constant(2.0)), SCALE)
    b = Build()
    stays(b, b.node("Mul", b.node("Relu", b.dense(b.input("x", 3, 4), 4)), b.constant(2.0)), SCALE)


@pytest.mark.parametrize("value", [0.0, 1e30, np.inf, np.nan])
def test_a_scale_out_of_proportion_stays(value: float) -> None:
    b = Build()
    y = b.node("Transpose", b.dense(b.input("x", 3, 4), 4))
    stays(b, b.node("Mul", y, b.constant(value)), SCALE)


def test_a_scaled_value_that_is_also_read_elsewhere_stays() -> None:
    b = Build()
    y = b.node("Transpose", b.dense(b.input("x", 3, 4), 4))
    before = b.graph(b.node("Mul", y, b.constant(2.0)), b.node("Exp", y))
    assert rewritten(before, only(SCALE))[1] == {}


def test_two_scales_of_a_product_become_one() -> None:
    b = Build()
    q, k = (b.node("Exp", b.input(name, 2, 40, 4)) for name in "qk")
    k = b.node("Transpose", k, perm=(0, 2, 1))
    c = b.constant(0.7)
    scores = b.node("MatMul", b.node("Mul", q, c), b.node("Mul", k, c))
    after = check(b, scores, ["Exp", "Exp", "Transpose", "Mul", "MatMul"])
    assert next(c.load() for c in after.constants.values()) == np.float32(0.7) * np.float32(0.7)


# Padding --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [10, 17])
def test_padding_joins_the_convolution(opset: int) -> None:
    b = Build(opset)
    x = b.input("x", 1, 2, 5, 5)
    amounts = (0, 0, 0, 1, 0, 0, 2, 0)
    y = b.node("Pad", x, pads=amounts) if opset < 11 else b.node("Pad", x, b.ints(*amounts), b.constant(0.0))
    after = check(b, b.node("Conv", y, b.weights(3, 2, 2, 2), pads=(1, 0, 0, 0)), ["Conv"], "pad-into-conv")
    assert after.nodes[0].attrs["pads"] == (1, 1, 2, 0)


@pytest.mark.parametrize(
    ("amounts", "fill"),
    [((0, 1, 0, 0, 0, 1, 0, 0), 0.0), ((0, 0, -1, 0, 0, 0, 0, 0), 0.0), ((0, 0, 1, 1, 0, 0, 1, 1), 1.0)],
)
def test_other_padding_stays(amounts: tuple[int, ...], fill: float) -> None:
    b = Build()
    y = b.node("Pad", b.input("x", 1, 2, 5, 5), b.ints(*amounts), b.constant(fill))
    channels = 4 if amounts[1] else 2
    stays(b, b.node("Conv", y, b.weights(3, channels, 2, 2)), "pad-into-conv")


@pytest.mark.parametrize(
    ("size", "taps", "how", "left", "pads"),
    [
        ((12, 12), (3, 3), {"dilations": (12, 12), "pads": (12,) * 4}, (1, 1), (0, 0, 0, 0)),
        ((7, 30), (3, 3), {"dilations": (8, 8), "pads": (8,) * 4}, (1, 3), (0, 8, 0, 8)),
        ((9, 9), (5, 5), {"dilations": (3, 6), "pads": (6, 12, 6, 12)}, (5, 3), (6, 6, 6, 6)),
        ((6, 5), (3, 3), {"dilations": (4, 4), "pads": (8, 4, 1, 4), "strides": (3, 1)}, (2, 3), (4, 4, 1, 4)),
        ((5,), (4,), {"dilations": (2,), "pads": (7, 0)}, (3,), (5, 0)),
        ((3, 1), (3, 3), {"dilations": (), "strides": (), "pads": (1, 1, 1, 1)}, (3, 1), (1, 0, 1, 0)),
    ],
)
def test_taps_that_reach_padding_only_are_removed(
    size: tuple[int, ...], taps: tuple[int, ...], how: dict[str, Any], left: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    b = Build()
    y = b.node("Conv", b.input("x", 2, 3, *size), b.weights(4, 3, *taps), b.weights(4), **how)
    (conv,) = check(b, y, ["Conv"], "taps-in-the-image").nodes
    assert conv.attrs["kernel_shape"] == left and conv.attrs["pads"] == pads


@pytest.mark.parametrize("size", [(13, 13), ("h", 12)])
def test_taps_that_may_reach_the_image_stay(size: tuple[int | str, ...]) -> None:
    b = Build()
    x = b.input("x", 1, 2, *size)
    stays(b, b.node("Conv", x, b.weights(3, 2, 3, 3), dilations=(12, 12), pads=(12,) * 4), "taps-in-the-image")


def test_taps_that_are_infinite_stay() -> None:
    """What is times them is NaN, also where it is padding."""
    b = Build()
    w = np.full((3, 2, 3, 3), np.inf, np.float32)
    y = b.node("Conv", b.input("x", 1, 2, 4, 4), b.constant(w), dilations=(5, 5), pads=(5,) * 4)
    stays(b, y, "taps-in-the-image")


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
def test_scaled_weights_are_rounded_once_and_take_no_more_memory_than_they_have(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((512, 700)).astype(dtype.numpy)
    scale = rng.uniform(0.5, 2.0, 700)
    load = scaled(Constant.of(weight, dtype), scale)
    tracemalloc.start()
    found = load()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.dtype == dtype.numpy
    assert (found == (weight.astype(np.float64) * scale).astype(dtype.numpy)).all()
    assert peak < 1.5 * found.nbytes
