"""Split and Concat that cancel, and inverse movement around elementwise operators, are removed."""

from __future__ import annotations

import pytest

from tests.rules.build import Build, only, ops, rewritten, same


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_concat_of_all_parts_of_a_split_is_removed(opset: int, axis: int) -> None:
    b = Build(opset)
    x = b.input("x", "n", 6)
    sizes = {"split": (1, 2, 3)} if opset < 13 else {}
    parts = b.node("Split", x, *([b.ints(1, 2, 3)] if opset >= 13 else []), count=3, axis=axis, **sizes)
    before = b.graph(b.node("Neg", b.node("Concat", *parts, axis=axis)))
    after, fired = rewritten(before, only("concat-of-parts"))
    assert fired == {"concat-of-parts": 1} and ops(after) == ["Neg"]
    same(before, after, {"n": 3})


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0,)])
def test_parts_in_another_order_stay(order: tuple[int, ...]) -> None:
    b = Build()
    parts = b.node("Split", b.input("x", 4, 6), b.ints(3, 3), count=2, axis=1)
    before = b.graph(b.node("Concat", *(parts[k] for k in order), axis=1))
    assert rewritten(before, only("concat-of-parts"))[1] == {}


def test_slices_that_cover_a_value_are_the_value() -> None:
    for end, count in ((9, 1), (5, 0)):
        b = Build()
        x = b.input("x", 4, 6)
        cut = [b.node("Slice", x, b.ints(a), b.ints(e), b.ints(1)) for a, e in ((0, 2), (2, end))]
        before = b.graph(b.node("Neg", b.node("Concat", *cut, axis=1)))
        after, fired = rewritten(before, only("concat-of-parts"))
        assert fired.get("concat-of-parts", 0) == count
        same(before, after)


def test_a_concat_along_another_axis_stays() -> None:
    b = Build()
    parts = b.node("Split", b.input("x", 4, 6), b.ints(3, 3), count=2, axis=1)
    before = b.graph(b.node("Concat", *parts, axis=0))
    assert rewritten(before, only("concat-of-parts"))[1] == {}


def test_inverse_transposes_around_elementwise_operators_cancel() -> None:
    b = Build()
    y = b.node("Transpose", b.input("x", "n", 3, "s"), perm=(1, 2, 0))
    y = b.node("Mul", b.node("Relu", y), b.constant(2.0))
    before = b.graph(b.node("Neg", b.node("Transpose", y, perm=(2, 0, 1))))
    after, fired = rewritten(before, only("inverse-movement"))
    assert fired == {"inverse-movement": 1} and ops(after) == ["Relu", "Mul", "Neg"]
    for n, s in ((2, 5), (1, 1)):
        same(before, after, {"n": n, "s": s})


def test_a_reshape_is_undone_too() -> None:
    b = Build()
    y = b.node("Sigmoid", b.node("Reshape", b.input("x", 4, 6), b.ints(2, 12)))
    before = b.graph(b.node("Neg", b.node("Reshape", y, b.ints(4, 6))))
    after, _ = rewritten(before, only("inverse-movement"))
    assert ops(after) == ["Sigmoid", "Neg"]
    same(before, after)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (5, 1, 1), (5, 4, 3)])
def test_constants_between_inverse_transposes_are_transposed(shape: tuple[int, ...]) -> None:
    b = Build()
    y = b.node("Transpose", b.input("x", 3, 5, 4), perm=(1, 2, 0))
    y = b.node("Mul", b.node("Relu", y), b.weights(*shape))
    before = b.graph(b.node("Neg", b.node("Transpose", y, perm=(2, 0, 1))))
    after, fired = rewritten(before, only("inverse-movement"))
    assert fired == {"inverse-movement": 1} and ops(after) == ["Relu", "Mul", "Neg"]
    same(before, after)


@pytest.mark.parametrize("shape", [(10, 1, 1), (1, 10, 3, 1), (3, 1), (1, 1, 1, 4)])
def test_constants_between_inverse_reshapes_are_repeated(shape: tuple[int, ...]) -> None:
    """Channels that are parts of a spectrum: 2 x 15 frequencies become 10 x 3, of 4 frames."""
    b = Build()
    y = b.node("Reshape", b.input("x", "n", 2, 15, 4), b.ints(0, 10, 3, 4))
    y = b.node("Relu", b.node("Mul", y, b.weights(*shape)))
    before = b.graph(b.node("Neg", b.node("Reshape", y, b.ints(0, 2, 15, 4))))
    after, fired = rewritten(before, only("inverse-movement"))
    assert fired == {"inverse-movement": 1} and ops(after) == ["Mul", "Relu", "Neg"]
    same(before, after, {"n": 3})


@pytest.mark.parametrize("frames", ["t", 70])
def test_normalization_of_parts_of_a_spectrum_is_elementwise(frames: str | int) -> None:
    b = Build()
    x = b.input("x", 2, 4, 15, frames)
    y = b.node("Reshape", x, b.ints(2, 20, 3, -1))
    statistics = (*(b.weights(20) for _ in range(3)), b.constant(b.rng.uniform(0.5, 2.0, 20).astype("f4")))
    y = b.node("BatchNormalization", y, *statistics, epsilon=1e-3)
    before = b.graph(b.node("Neg", b.node("Reshape", y, b.ints(2, 4, 15, -1))))
    after, fired = rewritten(before, only("normalization-between"))
    assert fired == {"normalization-between": 1} and ops(after) == ["Mul", "Add", "Neg"]
    same(before, after, {"t": 5})


def test_constants_along_axes_of_unknown_size_stay() -> None:
    b = Build()
    y = b.node("Reshape", b.input("x", "n", "s", 4), b.ints(-1, 4))
    y = b.node("Mul", y, b.weights(7, 4))
    before = b.graph(b.node("Neg", b.node("Reshape", y, b.ints(2, -1, 4))))
    assert rewritten(before, only("inverse-movement"))[1] == {}


@pytest.mark.parametrize("case", ["another order", "another reader", "a softmax"])
def test_what_is_not_undone_stays(case: str) -> None:
    b = Build()
    moved = b.node("Transpose", b.input("x", 3, 3), perm=(1, 0))
    y = b.node("Softmax", moved, axis=-1) if case == "a softmax" else b.node("Relu", moved)
    outputs = [b.node("Transpose", y, perm=(0, 1) if case == "another order" else (1, 0))]
    if case == "another reader":
        outputs.append(b.node("Neg", y))
    before = b.graph(*outputs)
    assert rewritten(before, only("inverse-movement"))[1] == {}
