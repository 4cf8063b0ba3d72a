"""The laws of index expressions: what they simplify to, and that they never change a value."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    IndexTable,
    Loaded,
    divides,
    entry,
    floor_div,
    greatest,
    least,
    modulo,
)
from onnxfuse.ir.indexing import flatten, product, unflatten
from tests.index.twins import AXES, S, T, Twin, divisors, twin, twins

X, Y, Z, W = map(Index.of, AXES)  # extents 6, s, 2*t, s + t
MANY = settings(max_examples=120, deadline=None)


@MANY
@given(twins())
def test_every_simplification_keeps_the_value(e: Twin) -> None:
    e.check()


@MANY
@given(twins(), divisors())
def test_quotient_and_remainder_are_those_of_python(e: Twin, d: Twin) -> None:
    (e // d).check()
    (e % d).check()


@MANY
@given(twins(), divisors(), st.integers(-9, 9))
def test_quotient_and_remainder_make_the_whole(e: Twin, d: Twin, offset: int) -> None:
    e = e + twin(offset)
    (d * (e // d) + e % d).check()


@MANY
@given(twins(5), twins(5), twins(5))
def test_sums_and_products_have_one_form(a: Twin, b: Twin, c: Twin) -> None:
    (x, y, z) = (a.index, b.index, c.index)
    assert x * y == y * x
    assert x - x == ZERO and x * 0 == ZERO and x * ONE == x
    for e in (x + y + z, x + (y + z), z + y + x):
        Twin(e, (a + b + c).values).check()


@pytest.mark.parametrize("k", [1, 2, 5, 12, Index.of(S), Index.of(S) * 4, Index.of(S) * T * 3, Index.of(S) + T])
def test_multiples_leave_the_quotient_and_vanish_from_the_remainder(k: Index | int) -> None:
    k = Index.of(k)
    for whole in (X, X * Y + 3, ZERO, Index.of(-4)):
        assert floor_div(whole * k, k) == whole
        assert modulo(whole * k, k) == ZERO


@pytest.mark.parametrize(
    ("remainder", "k"),
    [
        (X, Index.of(6)),
        (Y, Index.of(S)),
        (Z, Index.of(T) * 2),
        (W, Index.of(S) + T),
        (X * S + Y, Index.of(S) * 6),
        (Y * T * 2 + Z, Index.of(S) * T * 2),
        (Index.of(5), Index.of(7)),
        (5 - X, Index.of(6)),
    ],
)
def test_a_bounded_remainder_makes_the_quotient_constant(remainder: Index, k: Index) -> None:
    assert floor_div(remainder, k) == ZERO
    assert modulo(remainder, k) == remainder
    assert floor_div(remainder - k, k) == -1
    assert modulo(remainder - k, k) == remainder
    high = Index.of(Axis("high", Index.of(9)))
    assert floor_div(high * k + remainder, k) == high
    assert modulo(high * k + remainder, k) == remainder


@pytest.mark.parametrize(
    ("low", "g"), [(X, Index.of(6)), (Y, Index.of(S)), (Z + 0, Index.of(T) * 2), (ZERO, Index.of(3))]
)
def test_low_digits_split_off(low: Index, g: Index) -> None:
    high = Index.of(Axis("a", Index.of(1000)))
    for k in (Index.of(5), Index.of(T)):
        assert floor_div(g * high + low, g * k) == floor_div(high, k)
        assert modulo(g * high + low, g * k) == g * modulo(high, k) + low


def test_a_split_index_recombines() -> None:
    e = Index.of(Axis("a", Index.of(1000)))
    for k in map(Index.of, (7, S, Index.of(S) * 3, Index.of(S) + T, Index.of(S) * 4 + Index.of(T) * 4)):
        assert k * floor_div(e, k) + modulo(e, k) == e
        assert X + k * floor_div(e, k) * 5 + modulo(e, k) * 5 == e * 5 + X
        assert S * k * floor_div(e, k) + S * modulo(e, k) == S * e


def test_a_split_index_recombines_in_part() -> None:
    e = Index.of(Axis("a", Index.of(1000)))
    for a, b in ((3, 5), (Index.of(S), 5), (3, Index.of(T)), (Index.of(S) * 2, Index.of(T))):
        a, b = Index.of(a), Index.of(b)
        middle, high = modulo(floor_div(e, a), b), floor_div(e, a * b)
        assert a * middle + modulo(e, a) == modulo(e, a * b)
        assert b * high + middle == floor_div(e, a)
        assert a * b * high + a * middle + modulo(e, a) == e


def test_a_sum_of_symbols_is_not_taken_for_one_of_its_terms() -> None:
    e, k = Index.of(Axis("a", Index.of(1000))), Index.of(S) + T
    for part in (S, T):
        assert part * floor_div(e, k) + modulo(e, k) != e


def test_nested_quotients_and_remainders_collapse() -> None:
    e = Index.of(Axis("a", Index.of(1000)))
    for a, b in ((3, 5), (Index.of(S), 5), (Index.of(S) * 2, Index.of(T))):
        a, b = Index.of(a), Index.of(b)
        assert floor_div(floor_div(e, a), b) == floor_div(e, a * b)
        assert floor_div(modulo(e, a * b), a) == modulo(floor_div(e, a), b)
        assert modulo(modulo(e, a * b), a) == modulo(e, a)


@MANY
@given(twins(5), divisors(), divisors())
def test_nested_divisions_keep_the_value(e: Twin, a: Twin, b: Twin) -> None:
    (e // a // b).check()
    ((e % (a * b)) // a).check()
    (e % (a * b) % a).check()


def test_division_by_zero_is_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        floor_div(X, ZERO)


@MANY
@given(twins(4), divisors())
def test_exact_quotients(e: Twin, d: Twin) -> None:
    assert divides(d.index, e.index * d.index) == e.index
    found = divides(d.index, e.index)
    if found is not None:
        assert found * d.index == e.index


@pytest.mark.parametrize(
    "shape",
    [(), (1,), (6,), (2, 3, 5), (1, 4, 1), (S, 3), (3, S), (S, T, 4), (Index.of(S) + T, 3), (2, Index.of(S) + T, T)],
)
def test_flattening_is_undone(shape: tuple[Index, ...]) -> None:
    shape = tuple(map(Index.of, shape))
    at = tuple(Index.of(Axis(f"x{i}", e)) if e != ONE else ZERO for i, e in enumerate(shape))
    assert unflatten(flatten(at, shape), shape) == at
    flat = Index.of(Axis("flat", product(shape)))
    assert flatten(unflatten(flat, shape), shape) == (flat if shape else ZERO)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 5), (0, S), (S, 0)])
def test_shapes_without_elements_have_indices_too(shape: tuple[Index, ...]) -> None:
    shape = tuple(map(Index.of, shape))
    flat = Index.of(Axis("flat", product(shape)))
    assert len(unflatten(flat, shape)) == len(shape)


def test_loaded_indices_are_bounded_by_their_extent() -> None:
    row = Index.of(Loaded("ids", (X,), Index.of(S)))
    assert floor_div(row + S * Y, Index.of(S)) == Y
    assert modulo(row + S * Y, Index.of(S)) == row


def test_minima_that_are_decided_vanish() -> None:
    assert least(X, X + 3) == X and least(X, Index.of(6)) == X and least(X - 6, ZERO) == X - 6
    assert greatest(X, ZERO) == X and greatest(Y + 2, Index.of(1)) == Y + 2
    open_ = least(X, Y)
    assert open_ == least(Y, X) and open_ != X and greatest(X, Y) == -least(-X, -Y)
    assert repr(least(X - 1, Index.of(3))) == "min(3, i - 1)"


def test_entries_that_are_decided_vanish() -> None:
    table = IndexTable((4, 4, 7))
    assert entry(table, Index.of(2)) == 7 and entry(IndexTable((5, 5)), modulo(X, Index.of(2))) == 5
    open_ = entry(table, modulo(X, Index.of(3)))
    assert open_.constant is None and open_ == entry(IndexTable((4, 4, 7)), modulo(X, Index.of(3)))
    assert open_ != entry(IndexTable((4, 4, 8)), modulo(X, Index.of(3)))


def test_text_is_readable_and_stable() -> None:
    assert repr(X * 3 + Y * S - 2) == "3*i + j*s - 2"
    assert repr(floor_div(X + Z, Index.of(4)) + modulo(Y + Z, Index.of(S) * 2)) == "(i + k)//4 + (j + k)%(2*s)"
    assert repr(ZERO) == "0"
