"""Pointwise convolutions commute with upsampling and average pooling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Index, Symbol
from tests.rules.build import Build, draw, only, ops, rewritten, run, same

RESIZE, POOL = RULES = ("conv-before-resize", "pool-before-conv")
SYMBOLS = {"n": 2, "h": 4, "w": 3}


def check(b: Build, out: str, expected: list[str], *rules: str) -> Graph:
    before = b.graph(out)
    after, _ = rewritten(before, only(*(rules or RULES)))
    assert sorted(ops(after)) == sorted(expected)
    same(before, after, SYMBOLS, terms=64)
    return after


def stays(b: Build, *outputs: str) -> None:
    before = b.graph(*outputs)
    assert rewritten(before, only(*RULES))[1] == {}


def resize(b: Build, x: str, *by: float, sizes: tuple[int, ...] = (), **attrs: Any) -> str:
    """Resize by scales or to sizes, as the opset spells it."""
    to = b.constant(np.asarray(by, np.float32)) if by else ""
    if b.opset < 10:
        return str(b.node("Upsample", x, to, **attrs))
    if b.opset < 11:
        return str(b.node("Resize", x, to, **attrs))
    if b.opset < 13:  # regions and scales were no optional inputs yet
        to = to or b.constant(np.zeros(0, np.float32))
        return str(
            b.node("Resize", x, b.constant(np.zeros(0, np.float32)), to, *([b.ints(*sizes)] if sizes else []), **attrs)
        )
    return str(b.node("Resize", x, "", to, *([b.ints(*sizes)] if sizes else []), **attrs))


# Before Resize --------------------------------------------------------------------------------------------------------

WAYS: dict[str, tuple[int, Callable[[Build, str], str]]] = {
    "upsample": (9, lambda b, x: resize(b, x, 1, 1, 2, 2)),
    "scales-10": (10, lambda b, x: resize(b, x, 1, 1, 2, 2, mode="linear")),
    "scales-11": (11, lambda b, x: resize(b, x, 1, 1, 2, 3)),
    "sizes-11": (11, lambda b, x: resize(b, x, sizes=(2, 64, 9, 14), mode="linear")),
    "nearest": (13, lambda b, x: resize(b, x, 1, 1, 2, 2)),
    "odd-scales": (17, lambda b, x: resize(b, x, 1, 1, 1.7, 2.3, nearest_mode="floor")),
    "asymmetric": (
        17,
        lambda b, x: resize(b, x, 1, 1, 3, 2, coordinate_transformation_mode="asymmetric", mode="linear"),
    ),
    "corners": (
        17,
        lambda b, x: resize(b, x, sizes=(2, 64, 11, 8), coordinate_transformation_mode="align_corners", mode="linear"),
    ),
    "cubic": (17, lambda b, x: resize(b, x, sizes=(2, 64, 7, 9), mode="cubic", cubic_coeff_a=-0.5)),
    "cubic-inside": (17, lambda b, x: resize(b, x, 1, 1, 2, 2, mode="cubic", exclude_outside=1)),
    "one-axis-shrinks": (18, lambda b, x: resize(b, x, 1, 1, 0.5, 8, mode="linear", antialias=1)),
    "axes-scales": (18, lambda b, x: resize(b, x, 2, 2, axes=(2, 3))),
    "axes-sizes": (18, lambda b, x: resize(b, x, sizes=(13, 9), axes=(-1, 2), mode="linear")),
    "axes-channels": (18, lambda b, x: resize(b, x, sizes=(9, 64, 13), axes=(2, -3, 3), mode="linear")),
    "proportion": (18, lambda b, x: resize(b, x, sizes=(13, 11), axes=(2, 3), keep_aspect_ratio_policy="not_larger")),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [64, 17])
@pytest.mark.parametrize("way", WAYS)
def test_a_pointwise_convolution_moves_before_the_resize(way: str, rows: int, bias: bool) -> None:
    opset, make = WAYS[way]
    b = Build(opset)
    y = b.pointwise(make(b, b.input("x", 2, 64, 4, 5)), rows, bias=bias)
    check(b, y, ["Conv", "Upsample" if opset < 10 else "Resize"], RESIZE)


@pytest.mark.parametrize("rank", [3, 5])
def test_images_of_other_ranks(rank: int) -> None:
    b = Build()
    x = b.input("x", 1, 32, *(3,) * (rank - 2))
    check(b, b.pointwise(resize(b, x, 1, 1, *(2,) * (rank - 2)), 8), ["Conv", "Resize"], RESIZE)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_symbolic_images_and_batches(mode: str) -> None:
    b = Build()
    x = b.input("x", "n", 64, "h", "w")
    check(b, b.pointwise(resize(b, x, 1, 1, 2, 2, mode=mode), 16), ["Conv", "Resize"], RESIZE)


@pytest.mark.parametrize("rows", [64, 17])
@pytest.mark.parametrize("opset", [11, 17])
def test_sizes_that_are_computed_become_scales(opset: int, rows: int) -> None:
    """So that what made them ends, which often read the shape of the very value that is enlarged."""
    b = Build(opset)
    x = b.node("Neg", b.input("x", "n", 64, 4, 5))
    head = b.node("Slice", b.node("Shape", x), b.ints(0), b.ints(2))
    b.known[head] = (Index.of(Symbol("n")), Index.of(64))
    sizes = b.node("Concat", head, b.ints(8, 15), axis=0)
    empty = "" if opset > 13 else b.constant(np.zeros(0, np.float32))
    y = b.node("Resize", x, empty, empty, sizes, mode="linear")
    after = check(b, b.pointwise(y, rows), ["Neg", "Conv", "Resize"], RESIZE)
    scales = next(n.inputs[2] for n in after.nodes if n.op == "Resize")
    assert after.constants[scales].load().tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axis", [1, -3])
def test_a_convolution_of_a_concat_is_the_sum_of_those_of_its_operands(axis: int, bias: bool) -> None:
    b = Build()
    small, large, other = b.input("x", 2, 32, 4, 5), b.input("y", 2, 7, 8, 10), b.input("z", 2, 16, 2, 2)
    parts = [
        resize(b, small, 1, 1, 2, 2),
        large,
        resize(b, other, sizes=(2, 16, 8, 10), mode="linear"),
        b.node("Neg", large),
    ]
    y = b.pointwise(b.node("Concat", *parts, axis=axis), 24, bias=bias)
    after = check(b, y, ["Neg", "Concat", "Conv", "Conv", "Resize", "Add", "Conv", "Resize", "Add"], RESIZE)
    assert [len(n.inputs) for n in after.nodes if n.op == "Conv"] == [3 if bias else 2, 2, 2]
    assert after.outputs == (y,)


def test_the_decoder_of_a_pyramid_of_symbolic_images() -> None:
    b = Build()
    h, w = Index.of(Symbol("h")), Index.of(Symbol("w"))
    levels = [b.input(f"x{k}", "n", 32, h * (4 >> k), w * (4 >> k)) for k in range(3)]
    parts = [levels[0], *(resize(b, x, 1, 1, 2**k, 2**k, mode="linear") for k, x in enumerate(levels) if k)]
    y = b.pointwise(b.node("Concat", *parts, axis=1), 32, bias=False)
    check(b, y, ["Conv", "Conv", "Resize", "Add", "Conv", "Resize", "Add"], RESIZE)


def test_what_may_be_of_another_size_is_put_together_and_not_added() -> None:
    b = Build()
    h, w = Index.of(Symbol("h")), Index.of(Symbol("w"))
    parts = [resize(b, b.input("y", "n", 32, h, w), 1, 1, 2, 2), b.input("x", "n", 32, "a", w * 2)]
    y = b.pointwise(b.node("Concat", *parts, axis=1), 32, bias=False)
    assert "Concat" in ops(rewritten(b.graph(y), only(RESIZE))[0])


def test_all_of_a_concat_is_enlarged_and_one_value_twice() -> None:
    b = Build()
    x, y = (resize(b, b.input(name, 1, 32, 3, 3), 1, 1, 2, 2) for name in "xy")
    out = b.pointwise(b.node("Concat", x, y, x, axis=1), 32)
    check(b, out, ["Conv", "Resize", "Conv", "Resize", "Add", "Conv", "Resize", "Add"], RESIZE)


def test_downsampling_moves_before_the_convolution() -> None:
    b = Build()
    up, down = resize(b, b.input("x", 1, 64, 3, 3), 1, 1, 2, 2), resize(b, b.input("y", 1, 8, 12, 12), 1, 1, 0.5, 0.5)
    out = b.pointwise(b.node("Concat", up, down, axis=1), 16)
    after = check(b, out, ["Resize", "Conv", "Conv", "Resize", "Add"], RESIZE)
    assert after.nodes[0].outputs == (down,)
    b = Build()
    stays(b, b.pointwise(resize(b, b.input("x", 1, 64, 8, 8), 1, 1, 0.5, 0.5), 64))


def test_channels_that_are_made_many_stay_few_for_the_resize() -> None:
    b = Build()
    stays(b, b.pointwise(resize(b, b.input("x", 1, 1, 8, 8), 1, 1, 2, 2, mode="cubic"), 128))


@pytest.mark.parametrize(
    ("opset", "attrs", "by", "sizes"),
    [
        (17, {}, (1, 2, 2, 2), ()),  # channels
        (17, {}, (2, 1, 2, 2), ()),  # batch
        (17, {}, (1, 1.01, 2, 2), ()),  # as many channels, of which the last are weighted
        (17, {}, (), (1, 64, 8, 8)),
        (18, {"axes": (1, 2, 3)}, (), (64, 8, 8)),
        (18, {"axes": (3, 2, 1), "mode": "linear"}, (2, 2, 2), ()),
        (17, {"coordinate_transformation_mode": "tf_crop_and_resize"}, (1, 1, 2, 2), ()),
    ],
)
def test_other_resizes_stay(opset: int, attrs: dict[str, Any], by: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    b = Build(opset)
    x = b.input("x", 1, 32, 4, 4)
    if "coordinate_transformation_mode" in attrs:
        roi = b.constant(np.asarray([0, 0, 0, 0, 1, 1, 0.5, 0.5], np.float32))
        y = b.node("Resize", x, roi, b.constant(np.asarray(by, np.float32)), **attrs)
    else:
        y = resize(b, x, *by, sizes=sizes, **attrs)
    stays(b, b.pointwise(y, 16))


def test_channels_that_are_stretched_to_one_do_not_broadcast() -> None:
    """Two channels made one of, beside others: the same number of channels, were the sizes taken over."""
    b = Build(18)
    x = resize(b, b.input("x", 1, 2, 4, 4), sizes=(1, 32, 32), axes=(1, 2, 3), mode="linear")
    stays(b, b.pointwise(b.node("Concat", x, b.input("y", 1, 3, 32, 32), axis=1), 16))


@pytest.mark.parametrize(
    "attrs", [{"group": 2}, {"strides": (2, 1)}, {"pads": (0, 1, 0, 0)}, {"auto_pad": "SAME_UPPER", "strides": (2, 2)}]
)
def test_other_convolutions_stay(attrs: dict[str, Any]) -> None:
    b = Build()
    stays(b, b.pointwise(resize(b, b.input("x", 1, 64, 4, 4), 1, 1, 2, 2), 16, **attrs))
    b = Build()
    y = resize(b, b.input("x", 1, 64, 4, 4), 1, 1, 2, 2)
    stays(b, b.node("Conv", y, b.weights(8, 64, 1, 2)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_element_types_stay(dtype: type) -> None:
    code = {np.float16: 10, np.float64: 11}[dtype]  # type: ignore[index]
    b = Build()
    x = b.node("Cast", b.input("x", 1, 64, 4, 4), to=code)
    w = b.constant(b.rng.normal(size=(16, 64, 1, 1)).astype(dtype))
    stays(b, b.node("Conv", resize(b, x, 1, 1, 2, 2), w))


def test_a_variable_weight_stays() -> None:
    b = Build()
    stays(b, b.node("Conv", resize(b, b.input("x", 1, 8, 4, 4), 1, 1, 2, 2), b.input("k", 4, 8, 1, 1)))


@pytest.mark.parametrize("where", ["reader", "output"])
@pytest.mark.parametrize("what", ["resize", "concat"])
def test_a_value_that_is_also_used_elsewhere_is_not_made_twice(what: str, where: str) -> None:
    b = Build()
    x = resize(b, b.input("x", 1, 64, 4, 4), 1, 1, 2, 2)
    whole = b.node("Concat", x, b.input("y", 1, 2, 8, 8), axis=1)
    y = b.pointwise(whole, 16)
    used = x if what == "resize" else whole
    stays(b, y, b.node("Exp", used) if where == "reader" else used)


def test_a_concat_along_another_axis_stays() -> None:
    b = Build()
    parts = [resize(b, b.input(name, 1, 64, 4, 4), 1, 1, 2, 2) for name in "xy"]
    stays(b, b.pointwise(b.node("Concat", *parts, axis=-1), 16))


def test_constant_operands_are_not_folded_into_larger_ones() -> None:
    b = Build()
    places = b.weights(1, 2, 8, 8)
    x = resize(b, b.input("x", 1, 64, 4, 4), 1, 1, 2, 2)
    stays(b, b.pointwise(b.node("Concat", x, places, axis=1), 16))


def test_an_operator_of_another_domain_is_none_of_ours() -> None:
    b = Build()
    x = resize(b, b.input("x", 1, 64, 4, 4), 1, 1, 2, 2)
    y = b.pointwise(x, 64, bias=False)
    b.nodes[-1] = replace(b.nodes[-1], domain="com.microsoft.nchwc")
    stays(b, y)
    b = Build()
    y = b.opaque("GlobalAveragePool", b.pointwise(b.input("x", 1, 64, 4, 4), 64), "com.microsoft.nchwc")
    stays(b, y)


def test_a_large_weight_with_other_readers_is_not_cut() -> None:
    b = Build()
    w = b.weights(64, 96, 1, 1)
    x = resize(b, b.input("x", 1, 64, 4, 4), 1, 1, 2, 2)
    y = b.node("Conv", b.node("Concat", x, b.input("y", 1, 32, 8, 8), axis=1), w)
    stays(b, y, b.node("Conv", b.input("z", 1, 96, 4, 4), w))
    b = Build()
    w = b.weights(96, 96, 1, 1)
    y = b.node("Conv", resize(b, b.input("x", 1, 96, 4, 4), 1, 1, 2, 2), w)
    before = b.graph(y, b.node("Conv", b.input("z", 1, 96, 4, 4), w))
    after, fired = rewritten(before, only(RESIZE))
    assert fired == {RESIZE: 1} and set(after.constants) <= {w, *before.constants}


# Pools ----------------------------------------------------------------------------------------------------------------

POOLS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_shape": (2, 2), "strides": (2, 2)},
    "overlapping": {"kernel_shape": (3, 2), "strides": (2, 3)},
    "padded": {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    "ceil": {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1},
    "same": {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_LOWER"},
}


@pytest.mark.parametrize("counted", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", POOLS)
def test_averages_are_taken_before_the_convolution(kind: str, bias: bool, counted: int) -> None:
    b = Build()
    x = b.pointwise(b.input("x", 2, 16, 7, 7), 24, bias=bias)
    y = b.node("AveragePool", x, **POOLS[kind], count_include_pad=counted)
    if bias and counted and kind in ("padded", "ceil", "same"):
        stays(b, y)
    else:
        check(b, y, ["AveragePool", "Conv"], POOL)


@pytest.mark.parametrize("bias", [True, False])
def test_the_average_of_an_image_of_any_size(bias: bool) -> None:
    b = Build()
    y = b.node("GlobalAveragePool", b.pointwise(b.input("x", "n", 16, "h", "w"), 40, bias=bias))
    check(b, y, ["GlobalAveragePool", "Conv"], POOL)


def test_other_pools_stay() -> None:
    b = Build()
    x = b.pointwise(b.input("x", 1, 8, 6, 6), 8)
    stays(b, b.node("GlobalAveragePool", x), x)
    b = Build()
    stays(b, b.node("MaxPool", b.pointwise(b.input("x", 1, 8, 6, 6), 8), kernel_shape=(2, 2), strides=(2, 2)))
    b = Build()
    wide = b.node("Conv", b.input("x", 1, 8, 6, 6), b.weights(8, 8, 3, 3))
    stays(b, b.node("GlobalAveragePool", wide))
    b = Build()  # the averages of more channels at as many positions
    y = b.pointwise(b.input("x", 1, 64, 6, 6), 4)
    stays(b, b.node("AveragePool", y, kernel_shape=(3, 3), pads=(1, 1, 1, 1)))


# Both -----------------------------------------------------------------------------------------------------------------


def test_rewrites_enable_each_other() -> None:
    """The decoder of SegFormer: projections of tokens, enlarged, side by side, fused by a convolution."""
    b = Build()
    levels = []
    for k, size in enumerate((8, 4, 2)):
        x = b.dense(b.input(f"x{k}", "n", size * size, 16 << k), 32)
        x = b.node("Reshape", b.node("Transpose", x, perm=(0, 2, 1)), b.ints(0, 32, size, size))
        levels.append(resize(b, x, 1, 1, 2**k, 2**k, mode="linear") if k else x)
    y = b.node("Relu", b.pointwise(b.node("Concat", *levels, axis=1), 32))
    before = b.graph(y)
    after, fired = rewritten(before)
    assert fired[RESIZE] == 1 and fired["linear-of-linear"] >= 2
    assert "Concat" not in ops(after)
    same(before, after, SYMBOLS, terms=256)


def test_nan_reaches_the_same_results() -> None:
    b = Build()
    up = resize(b, b.input("x", 1, 32, 4, 4), 1, 1, 2, 2, mode="linear")
    y = b.pointwise(b.node("Concat", up, b.input("y", 1, 4, 8, 8), axis=1), 16)
    before = b.graph(b.node("AveragePool", b.pointwise(y, 24), kernel_shape=(2, 2), strides=(2, 2)))
    after, fired = rewritten(before, only(*RULES, "linear-of-linear"))
    assert fired.keys() >= {RESIZE}
    feeds = draw(before, np.random.default_rng(1))
    feeds["x"][0, 3, 1, 2] = feeds["y"][0, 0, 7, 0] = np.nan
    want, got = (np.isnan(run(g, feeds)[g.outputs[0]]) for g in (before, after))
    assert 0 < want.sum() < want.size
    np.testing.assert_array_equal(got, want)
