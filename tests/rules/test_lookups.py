"""Products with one-hot rows become lookups, and functions of looked-up rows are computed from the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.ir.dtype import I32, I64, DType
from onnxfuse.ir.graph import Graph
from tests.rules.build import Array, Build, only, ops, rewritten, run

DEPTH, WIDTH = 70, 24
OUTSIDE = (-(2**31), -DEPTH, -1, 0, 1, DEPTH - 1, DEPTH, DEPTH + 5, 2**31 - 1)  # indices at and beyond the limits


def one_hot(b: Build, depth: int, *, first: int = 0, dtype: DType = I32, swapped: bool = False) -> str:
    """Rows of floats that are 1 where an index equals first, first + 1, ..."""
    positions = b.constant(np.arange(first, first + depth, dtype=dtype.numpy).reshape(1, 1, depth))
    pair = (b.input("i", "n", len(OUTSIDE), 1, dtype=dtype), positions)
    return str(b.node("Cast", b.node("Equal", *(pair[::-1] if swapped else pair)), to=1))


def embedded(b: Build, rows: str) -> str:
    """Their product with a matrix."""
    return str(b.node("MatMul", rows, b.weights(DEPTH, WIDTH)))


def looked_up(b: Build, index: str, rows: int, *, axis: int = 0) -> str:
    """Rows of a table."""
    return str(b.node("Gather", b.weights(rows, 4), index, axis=axis))


def check(before: Graph, expected: list[str], index: Array, *rules: str) -> None:
    """The operators that are left, and equal results; signs of zeros aside."""
    after, fired = rewritten(before, only(*rules))
    assert ops(after) == expected and fired.keys() == set(rules)
    symbols = {"n": len(index)}
    want, got = (run(graph, {"i": index}, symbols)[graph.outputs[0]] for graph in (before, after))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [I32, I64])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_product_with_one_hot_rows_is_a_lookup_with_zeros_for_other_indices(dtype: DType, swapped: bool) -> None:
    b = Build()
    before = b.graph(embedded(b, one_hot(b, DEPTH, dtype=dtype, swapped=swapped)))
    index = np.asarray([OUTSIDE, OUTSIDE[::-1]], dtype.numpy).reshape(2, -1, 1)
    check(before, ["Reshape", "Min", "Max", "Gather"], index, "one-hot-product")


def test_no_indices_at_all() -> None:
    b = Build()
    before = b.graph(embedded(b, one_hot(b, DEPTH)))
    check(before, ["Reshape", "Min", "Max", "Gather"], np.zeros((0, len(OUTSIDE), 1), np.int32), "one-hot-product")


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_matrix_whose_product_with_zero_is_not_zero_is_multiplied(bad: float) -> None:
    b = Build()
    w = np.ones((DEPTH, WIDTH), np.float32)
    w[3, 5] = bad
    _, fired = rewritten(b.graph(b.node("MatMul", one_hot(b, DEPTH), b.constant(w))))
    assert not fired.keys() & {"one-hot-product"}


def test_before_opset_12_it_is_multiplied() -> None:
    b = Build(opset=11)
    _, fired = rewritten(b.graph(embedded(b, one_hot(b, DEPTH))))
    assert not fired.keys() & {"one-hot-product"}


def _gelu(b: Build, x: str) -> str:
    """By tanh, which reads its operand several times."""
    y = b.node("Add", x, b.weights(WIDTH))
    cube = b.node("Mul", y, b.node("Mul", y, y))
    inner = b.node("Add", y, b.node("Mul", cube, b.constant(0.044715)))
    tanh = b.node("Tanh", b.node("Mul", inner, b.constant(0.7978846)))
    return str(b.node("Mul", b.node("Mul", y, b.constant(0.5)), b.node("Add", tanh, b.constant(1.0))))


def test_an_activation_of_looked_up_rows_is_computed_for_the_table() -> None:
    b = Build()
    before = b.graph(_gelu(b, embedded(b, one_hot(b, DEPTH))))
    index = np.asarray([OUTSIDE] * 9, np.int32)[..., None]
    check(before, ["Reshape", "Min", "Max", "Gather"], index, "one-hot-product", "lookup-last")


ALIKE: dict[str, Callable[[Build, str], str]] = {
    "a scalar": lambda b, x: b.node("Mul", x, b.constant(2.0)),
    "a constant of columns": lambda b, x: b.node("Sub", b.weights(4), x),
    "a constant of more dimensions": lambda b, x: b.node("Add", x, b.weights(1, 1, 4)),
    "rows of another table": lambda b, x: b.node("Add", x, looked_up(b, "i", 6)),
}
APART: dict[str, Callable[[Build, str], str]] = {
    "a constant of places": lambda b, x: b.node("Mul", x, b.weights(9, 1)),
    "a value": lambda b, x: b.node("Mul", x, b.input("z", 4)),
    "rows of other indices": lambda b, x: b.node("Add", x, looked_up(b, b.input("k", 9, 9, dtype=I64), 6)),
    "rows of a table with fewer rows": lambda b, x: b.node("Add", x, looked_up(b, "i", 1)),
    "columns of a table": lambda b, x: b.node("Add", x, looked_up(b, b.input("m", 9, dtype=I64), 9, axis=1)),
    "a view of fewer axes": lambda b, x: b.node("Reshape", x, b.ints(9, 36)),
    "a view of more axes": lambda b, x: b.node("Unsqueeze", x, b.ints(0)),
    "a Transpose": lambda b, x: b.node("Transpose", x, perm=(1, 0, 2)),
    "a sum of rows": lambda b, x: b.node("ReduceSum", x, b.ints(2)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_alike_for_all_indices_is_computed_for_the_table(name: str) -> None:
    b = Build()
    before = b.graph(ALIKE[name](b, looked_up(b, b.input("i", 9, 9, dtype=I64), 6)))
    check(before, ["Gather"], np.random.default_rng(0).integers(-6, 6, (9, 9)), "lookup-last")


@pytest.mark.parametrize("name", APART)
def test_what_differs_between_places_is_not(name: str) -> None:
    b = Build()
    _, fired = rewritten(b.graph(APART[name](b, looked_up(b, b.input("i", 9, 9, dtype=I64), 6))), only("lookup-last"))
    assert not fired


def test_a_table_with_more_rows_than_are_looked_up_stays() -> None:
    b = Build()
    _, fired = rewritten(b.graph(b.node("Exp", looked_up(b, b.input("i", 9, 9, dtype=I64), 90))), only("lookup-last"))
    assert not fired
