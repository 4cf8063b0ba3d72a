"""Bounds of index expressions are sound, and tight where loops need them; walking, substitution and strides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onnxfuse.ir.index import (
    ZERO,
    Atom,
    Axis,
    Entry,
    Index,
    IndexTable,
    Loaded,
    Symbol,
    atoms,
    axes_of,
    entry,
    floor_div,
    greatest,
    in_range,
    least,
    lower,
    modulo,
    nonnegative,
    symbols_of,
    upper,
)
from onnxfuse.ir.indexing import coefficient, evaluate, substitute, transform
from tests.index.twins import AXES, WORLDS, S, T, Twin, grid, number, twins, value_of

X, Y, Z, W = map(Index.of, AXES)
MANY = settings(max_examples=120, deadline=None)


@MANY
@given(twins())
def test_bounds_hold_for_every_value(e: Twin) -> None:
    low, high = lower(e.index), upper(e.index)
    for world, values in zip(WORLDS, e.values, strict=True):
        if low is not None:
            assert number(low, world) <= np.min(values)
        if high is not None:
            assert number(high, world) >= np.max(values)


EXTENTS = (1, 2, 6, 40, S, Index.of(S) * 6, Index.of(S) * T, Index.of(S) + T, Index.of(S) * 2 - 1)


@MANY
@given(twins(), st.sampled_from(EXTENTS))
def test_in_range_is_never_claimed_wrongly(e: Twin, extent: Index) -> None:
    extent = Index.of(extent)
    if in_range(e.index, extent):
        for world, values in zip(WORLDS, e.values, strict=True):
            assert np.min(values) >= 0 and np.max(values) < number(extent, world)
    if nonnegative(e.index):
        assert all(np.min(v) >= 0 for v in e.values)


def test_bounds_of_plain_loops_are_exact() -> None:
    assert (lower(X), upper(X)) == (0, 5)
    assert (lower(Y * 3 - 2), upper(Y * 3 - 2)) == (-2, Index.of(S) * 3 - 5)
    assert (lower(5 - X), upper(5 - X)) == (0, 5)
    assert upper(X * S + Y) == Index.of(S) * 6 - 1
    assert in_range(Y * T * 2 + Z, Index.of(S) * T * 2)
    assert in_range(modulo(X * Y, Index.of(T)), Index.of(T))
    assert in_range(floor_div(Y * T * 2 + Z, Index.of(T) * 2), Index.of(S))
    assert not in_range(Y * T * 2 + Z, Index.of(S) * T * 2 - 1)
    assert not in_range(X - 1, Index.of(6))


def test_an_axis_in_several_terms_has_one_factor() -> None:
    """Of (2*s - 1)*j the part -j alone is below 0; s - t has no known sign, so that each part counts."""
    s, t, more = Index.of(S), Index.of(T), Index.of(Axis("more", Index.of(S)))
    rows = (s * 2 - 1) * Y
    assert (lower(rows), upper(rows)) == (0, (s * 2 - 1) * (s - 1))
    assert (lower(-rows), upper(-rows)) == ((1 - s * 2) * (s - 1), 0)
    assert in_range(rows + more, (s * 2 - 1) * s) and not in_range(rows + more, (s * 2 - 1) * s - s)
    assert (lower((s - t) * Y), upper((s - t) * Y)) == (t - s * t, s * s - s)
    assert lower(s * (X - 3)) == s * -3 and lower(s * least(X - 3, Y - 5)) is not None
    assert lower((s - 1) * least(X - 3, Y - 5)) is not None and lower((X - 3) * Y) is not None


def test_a_quotient_and_what_is_added_to_it_are_bounded_as_one() -> None:
    """2*j + (k - j)//s is the quotient of 2*s*j + k - j, which is not negative where (k - j)//s may be -1."""
    s, more = Index.of(S), Index.of(Axis("more", Index.of(S)))
    place = Y * 2 + floor_div(more - Y, s)
    assert in_range(place, s * 2 - 1) and not in_range(place, s * 2 - 2) and not in_range(place - 1, s * 2)
    assert modulo(place, s * 2 - 1) == place


def test_bounds_of_minima_and_tables() -> None:
    clamped = greatest(ZERO, least(Y * 2 - 3, Index.of(S) - 1))
    assert in_range(clamped, Index.of(S)) and not in_range(clamped, Index.of(S) - 1)
    mirrored = least(Y, Index.of(S) * 2 - 1 - Y)
    assert mirrored == Y and in_range(least(Y * 2, Index.of(S) * 2 - 1 - Y * 2) + S, Index.of(S) * 3)
    padded = Index.of(Axis("v", Index.of(640)))
    assert in_range(least(padded, 1150 - padded), Index.of(576))  # 64 elements mirrored behind 576
    assert not in_range(least(padded, 1152 - padded), Index.of(576))
    table = IndexTable((2, -1, 4))
    e = entry(table, modulo(X, Index.of(3)))
    assert (lower(e), upper(e)) == (-1, 4) and in_range(e + 1, Index.of(6))


@MANY
@given(twins(6), twins(3), st.sampled_from(AXES))
def test_substitution_is_evaluation(e: Twin, by: Twin, axis: Axis) -> None:
    """Replacing an axis by a value inside its extent is the same as evaluating there."""
    inside = modulo(by.index, axis.extent)
    got = substitute(e.index, {axis: inside})
    assert axis not in axes_of(got) or axis in axes_of(inside)
    for world in WORLDS:
        points = dict(grid(AXES, world))
        points[axis] = value_of(inside, AXES, world)

        def value(atom: Atom, points: dict[Axis, object] = points, world: dict[Symbol, int] = world) -> object:
            if isinstance(atom, Entry):
                return np.asarray(atom.table.values)[evaluate(atom.at, value)]
            return world[atom] if isinstance(atom, Symbol) else points[atom]  # type: ignore[index]  # axes only

        want = evaluate(e.index, value)
        have = value_of(got, AXES, world)
        assert np.array_equal(*np.broadcast_arrays(have, want))


@MANY
@given(twins(6), st.sampled_from(AXES))
def test_a_stride_is_the_difference_of_neighbours(e: Twin, axis: Axis) -> None:
    stride = coefficient(e.index, axis)
    assume(stride is not None)
    assert stride is not None and axis not in axes_of(stride)
    moved = transform(e.index, lambda a: Index.of(axis) + 1 if a == axis else None)
    difference = moved - e.index
    for world in WORLDS:
        assert np.array_equal(*np.broadcast_arrays(value_of(difference, AXES, world), value_of(stride, AXES, world)))


@pytest.mark.parametrize(
    ("e", "stride"),
    [
        (X * 6 + Y, 6),
        (Y, 0),
        (X * S - X * 2 + 7, Index.of(S) - 2),
        (floor_div(Y, Index.of(4)) + X * 3, 3),
        (X * X, None),
        (floor_div(X, Index.of(4)), None),
        (X * modulo(X, Index.of(4)), None),
        (Index.of(Loaded("ids", (X,), Index.of(9))), None),
        (Index.of(Loaded("ids", (Y,), Index.of(9))) * 2 + X, 1),
    ],
)
def test_strides(e: Index, stride: Index | int | None) -> None:
    assert coefficient(e, AXES[0]) == stride


def test_walking_reaches_everything() -> None:
    e = floor_div(X + S, Index.of(T) * 7) + Index.of(Loaded("ids", (Y,), Index.of(9)))
    e = e + least(Z, X * 9) + entry(IndexTable((1, 2)), modulo(W, Index.of(2)))
    assert axes_of(e) == set(AXES)
    assert symbols_of(e) == {S, T}
    assert {type(a).__name__ for a in atoms(e)} == {"Axis", "Symbol", "Div", "Mod", "Least", "Entry", "Loaded"}
