"""Symbolic extents: canonical names for formulas, and what follows from known ones."""

from __future__ import annotations

import pytest

from onnxfuse.ir.extents import LONGEST, expanded, follows, named, solved
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    Symbol,
    common,
    divides,
    floor_div,
    greatest,
    least,
    modulo,
    symbols_of,
)
from onnxfuse.ir.indexing import evaluate, transform

H, W, PAST = (Index.of(Symbol(name)) for name in ("H", "W", "past"))


def halved(e: Index) -> Index:
    """The extent behind a convolution of stride 2, kernel 3, padding 1."""
    return named(floor_div(e - 1, Index.of(2)) + 1)


def only(e: Index) -> Symbol:
    (symbol,) = symbols_of(e)
    return symbol


def test_two_ways_to_an_extent_give_one_name():
    assert halved(halved(H)) == named(floor_div(H - 1, Index.of(4)) + 1)
    assert halved(halved(H)) != halved(H)
    assert repr(halved(halved(halved(H)))) == "(H + 7)//8"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 65])
def test_a_name_stands_for_its_formula(size: int):
    made = named(2 * floor_div(H + 1, Index.of(2)) + modulo(H, Index.of(3)) + least(H, Index.of(5)))
    value = evaluate(made, lambda s: {"H": size}[s.name])
    assert value == 2 * ((size + 1) // 2) + size % 3 + min(size, 5) == evaluate(expanded(made), lambda s: size)


def test_a_length_padded_to_a_multiple_is_a_number_of_parts():
    """Its own remainder is in the padding, that of the positions before it is in another."""
    parts = floor_div(H, Index.of(8)) - 1
    over = named(modulo(named(modulo(named(parts + 20), Index.of(20))) + 10, Index.of(20)))
    made = named(named(parts) + 30 - over)
    assert divides(Index.of(20), made) is not None
    for size in range(8, 400):
        n = size // 8 - 1
        assert evaluate(expanded(made), lambda s, size=size: size) == n + 30 - (n % 20 + 10) % 20


def test_extents_after_a_known_one_follow_from_it():
    half, eighth = halved(H), halved(halved(halved(H)))
    found = follows(only(eighth), [only(half)])
    assert found is not None and symbols_of(found) == {only(half)}
    plain = transform(found, lambda a: H if a == only(half) else None)
    assert [evaluate(plain, lambda s, n=n: (n + 1) // 2) for n in range(1, 70)] == [(n + 7) // 8 for n in range(1, 70)]
    assert follows(only(half), [only(eighth)]) is None
    assert follows(only(halved(W)), [only(half)]) is None


def test_symbols_are_solved_for():
    found = solved([H * W, PAST + H, H])
    assert list(found) == [only(H), only(PAST), only(W)] or set(found) == {only(H), only(PAST), only(W)}
    assert found[only(PAST)][1:] == (H, ONE) and found[only(W)][2] == H
    assert not solved([PAST + H])


@pytest.mark.parametrize(
    ("a", "b", "want"), [(1, 1, 1), (1, 7, 7), (7, 1, 7), (7, 7, 7), (0, 1, 0), (1, 0, 0), (0, 0, 0)]
)
def test_common_is_what_two_extents_broadcast_to(a: int, b: int, want: int):
    assert evaluate(common(H, W), lambda s: {"H": a, "W": b}[s.name]) == want


def test_common_of_what_is_known_is_simple():
    both = named(common(H, W))
    assert common(H, ONE) == common(ONE, H) == common(H, H) == H
    assert common(H, Index.of(3)) == common(Index.of(3), H) == 3
    assert common(both, H) == common(W, both) == both


def test_formulas_do_not_grow_without_end():
    """An extent and half of it, joined forty times: a formula that is written out would double each time."""
    extent = H
    for _ in range(40):
        extent = named(extent + floor_div(extent, Index.of(2)))
    assert all(len(s.name) <= LONGEST for s in symbols_of(extent))
    assert extent == named(extent) and any(s.formula is None and s != only(H) for s in symbols_of(extent))


def pooled(e: Index) -> Index:
    """The extent behind a pooling window of 2 that moves by 2, of which the runtime finds one place at least."""
    return named(floor_div(greatest(e - 2, ZERO), Index.of(2)) + 1)


def test_places_of_a_window_are_one_symbol():
    once, twice = pooled(H), pooled(pooled(H))
    assert len(once.terms) == len(twice.terms) == 1 and only(once).least == only(twice).least == 1
    assert named(once - 1 + 1) == once and named(once * W) == once * W
    found = follows(only(twice), [only(once)])
    assert found is not None and symbols_of(found) == {only(once)}
    plain = transform(found, lambda a: H if a == only(once) else None)
    assert [evaluate(plain, lambda s, n=n: n) for n in (1, 2, 3, 4, 9)] == [1, 1, 1, 2, 4]
    assert [evaluate(twice, lambda s, n=n: n) for n in (1, 2, 3, 4, 9)] == [1, 1, 1, 1, 2]


def test_extents_that_may_be_zero_are_marked():
    assert only(named(floor_div(H, Index.of(2)))).least == 0
    assert only(halved(H)).least == 1 and only(named(common(H, W))).least == 1


def test_symbols_are_never_negative():
    """What `greatest(2 - H, 0)` is made of is never positive; the symbol for it stands for its negative."""
    made = named(H + greatest(2 - H, ZERO) * 3)
    (symbol,) = symbols_of(made) - {only(H)}
    for size in (1, 2, 5):
        assert evaluate(Index.of(symbol), lambda s, n=size: n) == max(2 - size, 0)
        assert evaluate(made, lambda s, n=size: n) == size + 3 * max(2 - size, 0)
    open_ = named(H + least(H - 5, W - 5))
    assert symbols_of(open_) == {only(H), only(W)} and not all(s.formula for s in symbols_of(open_))


def test_indices_are_no_extents():
    """What runs with a loop is not named, with a number behind it neither."""
    axis = Index.of(Axis("i", H))
    for e in (floor_div(axis + 1, Index.of(2)) + 3, least(axis, H - 1), modulo(axis, Index.of(3))):
        assert named(e) == e


@pytest.mark.parametrize("stride", [2, 3])
def test_the_moves_of_a_pooling_window_follow_from_its_places(stride: int):
    """The places behind pooling are 1 + max(0, ..), and a window over them moves one time less."""
    moves = greatest(floor_div(H - stride, Index.of(stride)), ZERO)
    places, less = named(moves + 1), named(moves)
    assert follows(only(less), [only(places)]) == places - 1
