"""Consecutive linear maps over channels become one, across movement of positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.ir.graph import Graph
from tests.rules.build import Build, only, ops, rewritten, same

LINEAR = "linear-of-linear"
SYMBOLS = {"n": 2, "s": 5}


def check(b: Build, out: str, expected: list[str]) -> Graph:
    before = b.graph(out)
    after, _ = rewritten(before, only(LINEAR))
    assert sorted(ops(after)) == sorted(expected)
    same(before, after, SYMBOLS, terms=64)
    return after


def stays(b: Build, *outputs: str) -> None:
    before = b.graph(*outputs)
    assert rewritten(before, only(LINEAR))[1] == {}


@pytest.mark.parametrize("shape", [(9,), (5, 9), (2, 5, 9), ("n", "s", 9), (1, 2, 1, 9)])
@pytest.mark.parametrize("columns", [8, 13])
@pytest.mark.parametrize("bias", [True, False])
def test_products_of_products(shape: tuple[int | str, ...], columns: int, bias: bool) -> None:
    b = Build()
    x = b.dense(b.input("x", *shape), 8, bias=bias)
    check(b, b.dense(x, columns, bias=False), ["MatMul", "Add"] if bias else ["MatMul"])


@pytest.mark.parametrize("value", [(1,), (1, 1, 1), (), (1, 1, 8)])
def test_a_bias_of_one_number_or_more_axes_and_on_the_left(value: tuple[int, ...]) -> None:
    b = Build()
    x = b.dense(b.input("x", 2, 5, 9), 8, bias=False)
    check(b, b.dense(b.node("Add", b.weights(*value), x), 7, bias=False), ["MatMul", "Add"])


def test_a_chain_of_three_is_one() -> None:
    b = Build()
    x = b.dense(b.dense(b.input("x", "n", 12), 12, bias=False), 12, bias=False)
    after = check(b, b.dense(x, 12, bias=False), ["MatMul"])
    assert after.nodes[0].origin == ("MatMul0", "MatMul1", "MatMul2")


@pytest.mark.parametrize("kernel", [3, 1])
@pytest.mark.parametrize("bias", ["", "first", "second", "added", "all"])
def test_convolutions_of_convolutions(bias: str, kernel: int) -> None:
    b = Build()
    w = b.weights(16, 5, kernel, kernel)
    first = [b.weights(16)] if bias in ("first", "all") else []
    x = b.node("Conv", b.input("x", "n", 5, 7, 9), w, *first, pads=(1, 0, 1, 2), strides=(2, 1))
    if bias in ("added", "all"):
        x = b.node("Add", x, b.weights(16, 1, 1))
    after = check(b, b.pointwise(x, 6, bias=bias in ("second", "all")), ["Conv"])
    assert len(after.nodes[0].inputs) == (3 if bias else 2)


@pytest.mark.parametrize("rows", [24, 10])
@pytest.mark.parametrize("batch", ["n", 2, 1])
def test_tokens_that_become_an_image(batch: str | int, rows: int) -> None:
    """As in the decoder of SegFormer; another number of channels takes another target of the Reshape."""
    b = Build()
    x = b.node("Transpose", b.dense(b.input("x", batch, 12, 9), 24), perm=(0, 2, 1))
    y = b.node("Reshape", x, b.ints(0, -1, 3, 4) if batch == "n" else b.ints(batch, 24, 3, 4))
    check(b, b.pointwise(y, rows), ["MatMul", "Add", "Transpose", "Reshape"])


@pytest.mark.parametrize("rows", [8, 5])
def test_an_image_that_becomes_tokens(rows: int) -> None:
    b = Build()
    x = b.node("Conv", b.input("x", "n", 3, 6, 8), b.weights(8, 3, 2, 2), b.weights(8), strides=(2, 2))
    y = b.node("Transpose", b.node("Reshape", x, b.ints(0, 8, -1)), perm=(0, 2, 1))
    check(b, b.dense(y, rows, bias=False), ["Conv", "Reshape", "Transpose"])


MOVES: dict[str, Callable[[Build, str], str]] = {
    "transpose": lambda b, x: b.node("Transpose", x, perm=(1, 0, 2)),
    "allowzero": lambda b, x: b.node("Reshape", x, b.ints(2, 1, 3, 8), allowzero=1),
    "copied": lambda b, x: b.node("Reshape", x, b.ints(0, 0, -1)),
    "inferred": lambda b, x: b.node("Reshape", x, b.ints(-1, 8)),
    "unsqueeze": lambda b, x: b.node("Unsqueeze", x, b.ints(0, -2)),
    "squeeze": lambda b, x: b.node("Squeeze", b.node("Unsqueeze", x, b.ints(1)), b.ints(1)),
    "flatten": lambda b, x: b.node("Flatten", x, axis=-1),
    "back": lambda b, x: b.node("Transpose", b.node("Transpose", x)),
    "ones": lambda b, x: b.node("Reshape", x, b.ints(1, 2, 1, 3, 1, 8)),
}


@pytest.mark.parametrize("columns", [8, 7])
@pytest.mark.parametrize("kind", MOVES)
def test_moves_that_keep_the_channels_whole(kind: str, columns: int) -> None:
    b = Build()
    x = MOVES[kind](b, b.dense(b.input("x", 2, 3, 9), 8))
    before = b.graph(b.dense(x, columns, bias=False))
    after, fired = rewritten(before, only(LINEAR))
    assert fired == {LINEAR: 1}
    assert ops(after)[:2] == ["MatMul", "Add"]
    same(before, after, terms=64)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 6, 1), (6, 1, 1)])
def test_one_channel_among_axes_of_one_element(shape: tuple[int, ...]) -> None:
    """Which of them are the channels does not matter to what is computed."""
    b = Build()
    x = b.dense(b.input("x", *shape), 1)
    y = b.node("Reshape", x, b.ints(1, *shape[::-1], 1))
    before = b.graph(b.dense(y, 3, bias=False))
    after, _ = rewritten(before, only(LINEAR))
    same(before, after, terms=64)
    assert ops(after).count("MatMul") == 1


MIXED: dict[str, Callable[[Build, str], str]] = {
    "merged": lambda b, x: b.node("Reshape", x, b.ints(2, 48)),
    "split": lambda b, x: b.node("Reshape", x, b.ints(2, 6, 2, 4)),
    "regrouped": lambda b, x: b.node("Reshape", x, b.ints(2, 8, 6)),
    "cut": lambda b, x: b.node("Reshape", x, b.ints(4, 3, 8)),
    "turned": lambda b, x: b.node("Transpose", x, perm=(0, 2, 1)),
    "turned-square": lambda b, x: b.node("Reshape", b.node("Transpose", x, perm=(0, 2, 1)), b.ints(2, 6, 8)),
    "default": lambda b, x: b.node("Transpose", x),
    "flat": lambda b, x: b.node("Flatten", x),
}


@pytest.mark.parametrize("kind", MIXED)
def test_channels_that_are_mixed_with_positions_stay(kind: str) -> None:
    b = Build()
    x = MIXED[kind](b, b.dense(b.input("x", 2, 6, 9), 8))
    if kind == "cut":  # positions alone are divided otherwise: the channels are whole
        check(b, b.dense(x, 8, bias=False), ["MatMul", "Add", "Reshape"])
    else:
        stays(b, b.dense(x, 8, bias=False))


def test_a_convolution_of_tokens_as_they_lie_stays() -> None:
    """(n, tokens, channels) read as an image whose channels are the tokens."""
    b = Build()
    y = b.node("Reshape", b.dense(b.input("x", 2, 24, 9), 24), b.ints(2, 24, 6, 4))
    stays(b, b.pointwise(y, 8))


def test_what_would_take_more_products_stays() -> None:
    b = Build()  # a matrix of low rank
    stays(b, b.dense(b.dense(b.input("x", 32, 64), 4), 64))
    b = Build()  # a bottleneck
    stays(b, b.pointwise(b.pointwise(b.input("x", 1, 64, 16, 16), 8), 64))
    b = Build()  # few channels made of an image by large windows
    x = b.node("Conv", b.input("x", 1, 16, 16, 16), b.weights(4, 16, 3, 3))
    stays(b, b.pointwise(x, 64))


@pytest.mark.parametrize("bias", [(2, 1, 1), (3, 1), (4, 2, 3, 8), (1, 2, 3, 8), (3, 8), (1, 1, 1, 8)])
def test_a_bias_that_varies_over_positions_or_adds_axes_stays(bias: tuple[int, ...]) -> None:
    b = Build()
    x = b.node("Add", b.dense(b.input("x", 2, 3, 9), 8, bias=False), b.weights(*bias))
    stays(b, b.dense(x, 8, bias=False))


def test_a_bias_over_which_the_channels_are_broadcast_stays() -> None:
    b = Build()
    x = b.node("Add", b.dense(b.input("x", 64, 2), 1, bias=False), b.weights(8))
    stays(b, b.dense(x, 2, bias=False))
    b = Build()
    x = b.node("Conv", b.input("x", 1, 2, 6, 6), b.weights(1, 2, 3, 3))
    stays(b, b.pointwise(b.node("Add", x, b.weights(8, 1, 1)), 2))


def test_other_sums_stay() -> None:
    b = Build()
    x = b.dense(b.input("x", 3, 8), 8, bias=False)
    stays(b, b.dense(b.node("Add", x, x), 8, bias=False))
    b = Build()
    x = b.dense(b.input("x", 3, 8), 8, bias=False)
    stays(b, b.dense(b.node("Add", x, b.input("y", 8)), 8, bias=False))
    b = Build()
    c = b.weights(4, 8)
    stays(b, b.node("Neg", b.dense(b.node("Add", c, c), 8, bias=False)))
    b = Build()
    x = b.dense(b.input("x", 3, 8), 8, bias=False)
    stays(b, b.dense(b.node("Add", x, b.constant(np.full(8, np.inf, np.float32))), 8, bias=False))


def test_other_products_stay() -> None:
    b = Build()
    stays(b, b.node("MatMul", b.dense(b.input("x", 2, 3, 8), 8), b.weights(2, 8, 8)))
    b = Build()
    stays(b, b.dense(b.node("MatMul", b.input("x", 2, 3, 8), b.weights(2, 8, 8)), 8))
    b = Build()
    stays(b, b.node("MatMul", b.weights(8, 3), b.dense(b.input("x", 3, 8), 8, bias=False)))
    b = Build()
    stays(b, b.dense(b.node("Gemm", b.input("x", 3, 8), b.weights(8, 8)), 8, bias=False))
    b = Build()
    stays(b, b.node("Gemm", b.dense(b.input("x", 3, 8), 8, bias=False), b.weights(8, 8)))
    b = Build()
    x = b.node("Conv", b.input("x", 1, 8, 6, 6), b.weights(8, 2, 3, 3), group=4)
    stays(b, b.pointwise(x, 4))
    b = Build()
    stays(b, b.node("Conv", b.pointwise(b.input("x", 1, 8, 6, 6), 8), b.weights(4, 8, 1, 1), b.input("bias", 4)))
    b = Build()
    stays(b, b.dense(b.node("Relu", b.dense(b.input("x", 3, 8), 8)), 8))
    b = Build()
    stays(b, b.node("Neg", b.dense(b.dense(b.weights(3, 8), 8, bias=False), 8, bias=False)))


@pytest.mark.parametrize("which", range(3))
def test_a_head_that_is_also_used_elsewhere_stays(which: int) -> None:
    for wrap in (lambda b, v: b.node("Exp", v), lambda b, v: v):
        b = Build()
        product = b.dense(b.input("x", 3, 8), 8, bias=False)
        total = b.node("Add", product, b.weights(8))
        moved = b.node("Unsqueeze", total, b.ints(0))
        stays(b, b.dense(moved, 8, bias=False), wrap(b, (product, total, moved)[which]))


@pytest.mark.parametrize("which", [0, 1])
def test_a_large_matrix_with_other_readers_is_not_multiplied(which: int) -> None:
    b = Build()
    w = (b.weights(72, 72), b.weights(72, 72))
    y = b.node("MatMul", b.node("MatMul", b.input("x", 8, 72), w[0]), w[1])
    stays(b, y, b.node("MatMul", b.input("y", 8, 72), w[which]))


def test_the_output_keeps_its_name_and_matrices_wait_to_be_loaded() -> None:
    b = Build()
    y = b.dense(b.dense(b.input("x", 3, 40), 40, bias=False), 40, bias=False)
    before = b.graph(y)
    loads: list[str] = []
    for name, c in list(before.constants.items()):
        before.constants[name] = type(c)(c.dtype, c.shape, lambda c=c, name=name: loads.append(name) or c.load())  # type: ignore[misc, attr-defined]
    after, _ = rewritten(before)
    assert after.nodes[0].outputs == (y,) and not loads
    (weight,) = after.constants.values()
    assert weight.load().dtype == np.float32 and sorted(loads) == sorted(before.constants)


def test_matrices_are_multiplied_in_double_precision() -> None:
    b = Build()
    first, second = (np.float32([[1, 1e4, -1e4]] * 3), np.float32([[1e-5] * 3, [3e3] * 3, [3e3] * 3]))
    y = b.node("MatMul", b.node("MatMul", b.input("x", 4, 3), b.constant(first)), b.constant(second))
    after, _ = rewritten(b.graph(y), only(LINEAR))
    (weight,) = after.constants.values()
    np.testing.assert_array_equal(weight.load(), (first.astype(float) @ second).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_element_types_stay(dtype: type) -> None:
    b = Build()
    x = b.node("Cast", b.input("x", 3, 40), to={np.float16: 10, np.float64: 11}[dtype])  # type: ignore[index]
    w = b.constant(b.rng.normal(size=(40, 40)).astype(dtype))
    stays(b, b.node("MatMul", b.node("MatMul", x, w), w))


def test_a_variable_weight_stays() -> None:
    b = Build()
    stays(b, b.node("MatMul", b.dense(b.input("x", 3, 8), 8), b.input("k", 8, 8)))
    b = Build()
    stays(b, b.dense(b.node("MatMul", b.input("x", 3, 8), b.input("k", 8, 8)), 8))
