"""Proofs about extents: that a formula is never negative, and that equal products have equal factors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from math import gcd

from onnxfuse.ir.extents import expanded, offset_of, perhaps_empty
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Atom,
    Div,
    Index,
    Least,
    Symbol,
    divides,
    floor_div,
    lower,
    never_below_zero,
    nonnegative,
    symbols_of,
)
from onnxfuse.ir.indexing import transform


def never_negative(e: Index) -> bool:
    """Whether e >= 0 is proven: quotients by a number lie between two bounds, minima are no more than either side.

    >>> n = Index.of(Symbol("n"))
    >>> never_negative(2 * ((n + 1) // 2) - n), never_negative(n - 2 * ((n + 1) // 2))
    (True, False)
    >>> half = (n + 1) // 2
    >>> never_negative(4 * ((half + 3) // 4) - half)
    True
    """
    if never_below_zero(e):
        return True
    whole = expanded(e)
    minima = [(c, m[0]) for m, c in whole.terms if len(m) == 1 and isinstance(m[0], Least)]
    for c, least_ in minima[:1]:  # either side is no less than the minimum, which is one of both
        assert isinstance(least_, Least)
        sides = (never_negative(whole + (side - least_) * c) for side in (least_.one, least_.two))
        return any(sides) if c < 0 else all(sides)
    found = [(c, m[0]) for m, c in whole.terms if len(m) == 1 and isinstance(m[0], Div)]
    for c, atom in sorted(found, key=lambda t: t[0]):
        assert isinstance(atom, Div)
        k = atom.den.constant
        if k is not None and never_negative((whole - Index.of(atom) * c) * k + atom.num * c - max(c, 0) * (k - 1)):
            return True
        finer = _of_quotient(whole, atom) if c < 0 else whole
        if k is not None:
            return finer != whole and never_negative(finer)
    return False


@lru_cache(1 << 14)
def never_negative_from_zero(e: Index) -> bool:
    """The same where every symbol may be 0; False without more ado for a sum of products of symbols.

    >>> n = Index.of(Symbol("n"))
    >>> never_negative_from_zero(2 * (n // 2) - n + 1), never_negative_from_zero((n - 1) // 2)
    (True, False)
    """
    whole = expanded(e)
    if all(isinstance(a, Symbol) for mono, _ in whole.terms for a in mono):
        return False
    return never_negative(perhaps_empty(whole))


def _of_quotient(e: Index, inner: Div) -> Index:
    """e with quotients made of another one, law (5) backwards, and a symbol in the place of that one."""
    whole = Index.of(Symbol(f"%{inner!r}", 0))
    low = lower(inner.num)
    if low is None or not nonnegative(low):
        return e

    def made(atom: Atom) -> Index | None:
        if not isinstance(atom, Div) or atom == inner:
            return whole if atom == inner else None
        rest, den = divides(inner.den, atom.num - inner.num), divides(inner.den, atom.den)
        return floor_div(whole + rest, den) if rest is not None and den is not None else None

    return transform(e, made)


def apart(one: Index, two: Index) -> tuple[Index, Index]:
    """Two products without the factors that they share.

    >>> h, w = Index.of(Symbol("H")), Index.of(Symbol("W"))
    >>> apart(6 * h * w, 4 * w)
    (3*H, 2)
    """
    if len(one.terms) != 1 or len(two.terms) != 1:
        return one, two
    ((left, a),), ((right, b),) = one.terms, two.terms
    rest, kept = list(right), list(left)
    for atom in left:
        if atom in rest:
            rest.remove(atom)
            kept.remove(atom)
    shared = gcd(a, b)
    return Index(((tuple(kept), a // shared),)), Index(((tuple(rest), b // shared),))


def equated(one: Index, two: Index) -> dict[Symbol, Index]:
    """Substitutions of symbols that follow from the equality of two coprime products; empty where none is found.

    If one side is a single symbol, it is the other side. If H//7 is a factor of one side and H one of the other, then
    H = 7 * (H//7): all factors of that kind are at most those they were divided from, so that equal products have
    equal factors. The same holds where all are rounded up, as for windows that an image was padded for.

    >>> from onnxfuse.ir.extents import named
    >>> h, w = Index.of(Symbol("H")), Index.of(Symbol("W"))
    >>> equated(h * w, 49 * named(h // 7) * named(w // 7))
    {H: 7*(H)//7, W: 7*(W)//7}
    >>> equated(h * w, 49 * named((h + 6) // 7) * named((w + 6) // 7))
    {H: 7*(H + 6)//7, W: 7*(W + 6)//7}
    >>> equated(h * w, 49 * named((h + 6) // 7) * named(w // 7))
    {}
    """
    for e, other in ((one, two), (two, one)):
        symbol = _lone(e)
        if symbol is not None and symbol not in symbols_of(expanded(other)):
            return {symbol: other}
    for sign in (1, -1):
        values: dict[Symbol, Index] = {}
        for whole, parts in ((one, two), (two, one)):
            for symbol, part in product(_by_name(whole), _by_name(parts)):
                made = _multiple(part, symbol)
                if made is not None and never_negative((Index.of(symbol) - made) * sign):
                    values[symbol] = made
        if values and over_flat(one, values) == over_flat(two, values):
            return values
    return {}


def _by_name(e: Index) -> list[Symbol]:
    return sorted(symbols_of(e), key=lambda s: s.name)


def _multiple(part: Symbol, symbol: Symbol) -> Index | None:
    """A quotient symbol times its divisor, over another symbol: 4 * ((n//2 + 3)//4) for n//2."""
    quotient, offset, sign = offset_of(part) or (None, 0, 1)
    if part == symbol or offset or sign < 0 or not isinstance(quotient, Div):
        return None
    inner, _, sign = offset_of(symbol) or (None, 0, 1)
    times = divides(inner.den if isinstance(inner, Div) and sign > 0 else ONE, quotient.den)
    return None if times is None else Index.of(part) * times


def unclamped(e: Index) -> tuple[Index, tuple[Index, ...]]:
    """e with x in the place of every max(x, 0), and these x: no pooling window is larger than its image, say.

    >>> from onnxfuse.ir.index import greatest
    >>> n = Index.of(Symbol("n", 0))
    >>> unclamped(greatest(n // 2 - 1, ZERO) + 1)
    ((n)//2, ((n)//2 - 1,))
    """
    found: dict[Index, None] = {}

    def inner(atom: Atom) -> Index | None:
        if not isinstance(atom, Least) or ZERO not in (atom.one, atom.two):
            return None
        negative = transform(atom.one + atom.two, inner)
        found[-negative] = None
        return negative

    made = transform(expanded(e), inner)
    return made, tuple(found)


def over_flat(e: Index, values: Mapping[Symbol, Index]) -> Index:
    """e with symbols substituted, except inside the formulas of other symbols."""
    return transform(e, lambda a: values.get(a) if isinstance(a, Symbol) else None)


def _lone(e: Index) -> Symbol | None:
    """e as a single symbol, None where it is none."""
    mono, c = e.terms[0] if len(e.terms) == 1 else ((), 0)
    return mono[0] if c == 1 and len(mono) == 1 and isinstance(mono[0], Symbol) else None
