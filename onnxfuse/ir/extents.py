"""Symbolic extents: a symbol for each compound formula, and the solution for symbols of known extents.

A quotient, remainder, minimum or broadcast extent becomes a symbol with a `formula`. So extents stay polynomials over
symbols, and those with equal formulas are equal values, however they were computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2s
from math import gcd

from onnxfuse.ir.index import (
    ZERO,
    Atom,
    Common,
    Div,
    Index,
    Least,
    Mod,
    Symbol,
    atoms,
    divides,
    exact_quotient,
    floor_div,
    least,
    lower,
    never_below_zero,
    nonnegative,
    symbols_of,
    without_remainders,
)
from onnxfuse.ir.indexing import transform

LONGEST = (
    600  # characters of a formula; an extent with a longer one is an opaque symbol, which is only read off a shape
)
_COMPOUND = (Div, Mod, Least, Common)


def expanded(e: Index) -> Index:
    """e over symbols that have no formula."""
    return transform(e, lambda a: a.formula if isinstance(a, Symbol) else None)


@lru_cache(1 << 14)
def named(e: Index) -> Index:
    """The extent e as a polynomial over symbols: every quotient, remainder or minimum of extents becomes a symbol.

    Symbols are never negative: a part that may be negative is kept as it is, unless it is all of e, an extent.

    >>> h = Index.of(Symbol("H"))
    >>> half = named((h + 1) // 2)
    >>> half, named((half + 1) // 2)
    ((H + 1)//2, (H + 3)//4)
    """
    if _is_named(e):
        return e
    made = _whole(transform(e, _name))
    ((mono, c), *rest) = made.terms or (((), 0),)
    alone = len(mono) == 1 and c > 0 and not rest and isinstance(mono[0], _COMPOUND) and _closed(mono[0])
    return Index.of(_symbol(expanded(Index.of(mono[0])))) * c if alone else made


@lru_cache(1 << 14)
def parts_named(e: Index) -> Index:
    """The same for a number that may be negative, such as a bound: only its parts become symbols.

    >>> n = Index.of(Symbol("n"))
    >>> len(parts_named(n // 4 - 1).terms), len(named(n // 4 - 1).terms)
    (2, 1)
    """
    return e if _is_named(e) else transform(e, _name)


def _is_named(e: Index) -> bool:
    plain = all(isinstance(a, Symbol) for mono, _ in e.terms for a in mono)
    return plain and (len(e.terms) < 2 or all(a.formula is None for a in symbols_of(e)))


def _whole(e: Index) -> Index:
    """The sum of a compound symbol and a number becomes a symbol too, e.g. (H - 2)//2 + 1 positions of a window.

    So does a sum of such symbols that comes to one: 2*q - 3, for q - 1 and q - 2 of one quotient q.
    """
    made = _multiples(expanded(e)) if len(e.terms) > 1 and all(len(mono) < 2 for mono, _ in e.terms) else ZERO
    (mono, c), *rest = made.terms or (((), 0),)
    if len(mono) != 1 or not isinstance(mono[0], _COMPOUND) or not _closed(mono[0]) or any(m for m, _ in rest):
        return e
    shared = gcd(c, *(k for _, k in rest))
    part = Index(((mono, c // shared), *(((), k // shared) for _, k in rest)))
    return Index.of(_symbol(part)) * shared


def _multiples(e: Index) -> Index:
    """A sum without a remainder whose dividend is also in it: n - n%k is k*(n//k), as of lengths padded to a multiple.

    >>> n = Index.of(Symbol("n"))
    >>> _multiples(n + 30 - (n % 20 + 10) % 20)
    20*(n + 10)//20 + 20
    """
    for mono, c in e.terms:
        low = mono[0] if len(mono) == 1 else None
        if isinstance(low, Mod) and c < 0:
            whole = without_remainders(low.num, low.den)
            made = e - (Index.of(low) - whole + low.den * floor_div(whole, low.den)) * c
            if len(made.terms) < len(e.terms):
                return made
    return e


@lru_cache(1 << 14)
def _name(atom: Atom) -> Index | None:
    """The symbol for a closed compound atom; a sum of symbols where its formula simplifies to a sum."""
    if not isinstance(atom, _COMPOUND) or not _closed(atom):
        return None
    text = repr(Index.of(atom))
    if len(text) > LONGEST:
        return Index.of(Symbol(f"extent_{blake2s(text.encode(), digest_size=8).hexdigest()}", 0))
    total = ZERO
    for mono, c in expanded(Index.of(atom)).terms:
        part = Index.of(c)
        for a in mono:
            part = part * (_part(Index.of(a)) if isinstance(a, _COMPOUND) else a)
        total = total + part
    return total


def _part(formula: Index) -> Index:
    """The symbol of a nonnegative formula, or minus the symbol of a nonpositive one."""
    if never_below_zero(formula):
        return Index.of(_symbol(formula))
    if not _at_least_zero(-formula):
        return formula
    base, rest = _from_zero(formula)
    return named(base) - Index.of(_symbol(-rest))


def _from_zero(formula: Index) -> tuple[Index, Index]:
    """(b, min(0, a - b)) for min(a, b), so that min(a, b) and max(a, b) share one symbol."""
    (((atom,), _),) = formula.terms
    assert isinstance(atom, Least)
    base, other = (atom.one, atom.two) if atom.two.constant is not None else (atom.two, atom.one)
    return (ZERO, formula) if ZERO in (base, other) else (base, least(ZERO, other - base))


def _symbol(formula: Index) -> Symbol:
    """The symbol that stands for an expanded formula."""
    return Symbol(repr(formula), int(_positive(formula)), formula)


def never_empty(extent: Index) -> bool:
    """Whether an extent is at least 1 in every run, in which symbols of inputs may be 0, too."""
    low = lower(perhaps_empty(extent) - 1)
    return low is not None and nonnegative(low)


def perhaps_empty(e: Index) -> Index:
    """The same expression over symbols each of which may be 0."""
    return transform(e, lambda a: Index.of(replace(a, least=0)) if isinstance(a, Symbol) else None)


def _positive(e: Index) -> bool:
    """Whether e >= 1 is proven."""
    low = lower(e)
    if low is not None and nonnegative(low - 1):
        return True
    mono, c = e.terms[0]
    atom, more = (mono[0] if c == 1 and len(mono) == 1 else None), e.terms[1][1] if len(e.terms) == 2 else 0
    if not isinstance(atom, Div) or any(m for m, _ in e.terms[1:]):
        return False
    high = lower(atom.num - atom.den)
    return (high is not None and nonnegative(high) and more >= 0) or (more > 0 and _at_least_zero(atom.num))


def _at_least_zero(e: Index) -> bool:
    """Whether e is -min(.., n) for a constant n <= 0, the result of `greatest(.., 0)`."""
    mono, c = e.terms[0] if len(e.terms) == 1 else ((), 0)
    sides = (mono[0].one, mono[0].two) if len(mono) == 1 and isinstance(mono[0], Least) else ()
    return c < 0 and any(n is not None and n <= 0 for n in (s.constant for s in sides))


def _closed(atom: Atom) -> bool:
    """Whether an atom contains symbols only: no axes, no loaded indices."""
    return all(isinstance(a, (Symbol, *_COMPOUND)) for a in atoms(Index.of(atom)))


def over(e: Index, values: Mapping[Symbol, Index]) -> Index:
    """e with symbols substituted, also inside formulas."""

    def go(atom: Atom) -> Index | None:
        if isinstance(atom, Symbol) and atom in values:
            return values[atom]
        if isinstance(atom, Symbol) and atom.formula is not None and symbols_of(atom.formula) & values.keys():
            return transform(atom.formula, go)
        return None

    return named(transform(e, go))


# Solving for symbols --------------------------------------------------------------------------------------------------

Solved = tuple[Index, Index, Index]


def solved(extents: Iterable[Index]) -> dict[Symbol, Solved]:
    """Symbols that known extents determine, as (extent, rest, factor): the symbol is (extent - rest) / factor.

    Rest and factor are over symbols that precede it in the result. Simple extents are used first: single symbols, then
    those of few factors.
    """
    found: dict[Symbol, Solved] = {}
    simple = sorted((e for e in extents if e.constant is None), key=_simplicity)
    for _ in simple:
        before = len(found)
        for e in simple:
            unknown = symbols_of(e) - found.keys()
            symbol = next(iter(unknown)) if len(unknown) == 1 else None
            parts = linear(e, symbol) if symbol is not None else None
            if symbol is not None and parts is not None:
                found[symbol] = (e, *parts)
        if len(found) == before:
            break
    return found


def _simplicity(e: Index) -> tuple[int, int]:
    mono, c = e.terms[0]
    return (len(e.terms), len(mono) + (c != 1))


def linear(e: Index, symbol: Symbol) -> tuple[Index, Index] | None:
    """(rest, factor) with e = factor * symbol + rest and neither mentioning it, None where e is not of that form."""
    inside = tuple((m, c) for m, c in e.terms if symbol in m)
    rest = Index(tuple(t for t in e.terms if t not in inside))
    factor = ZERO
    for mono, c in inside:
        part = exact_quotient(mono, c, ((symbol,), 1))
        assert part is not None
        factor = factor + part
    if not factor.terms or symbol in symbols_of(factor) | symbols_of(rest):
        return None
    return rest, factor


def follows(symbol: Symbol, known: Collection[Symbol]) -> Index | None:
    """A symbol as an expression over known symbols, by their formulas; None where it does not follow from them.

    >>> h = Index.of(Symbol("H"))
    >>> half, fourth = named((h + 1) // 2), named((h + 3) // 4)
    >>> (one,), _ = half.terms[0]
    >>> (two,), _ = fourth.terms[0]
    >>> follows(two, [one])
    ((H + 1)//2 + 1)//2
    """
    return None if symbol.formula is None else _over(symbol.formula, known)


def _over(e: Index, known: Collection[Symbol]) -> Index | None:
    """An expanded extent over known symbols."""
    total = ZERO
    for mono, c in e.terms:
        part = Index.of(c)
        for atom in mono:
            made = _atom_over(atom, known)
            if made is None:
                return None
            part = part * made
        total = total + part
    return total


def _atom_over(atom: Atom, known: Collection[Symbol]) -> Index | None:
    if isinstance(atom, Symbol):
        return Index.of(atom) if atom in known else None
    for symbol in known:
        if (found := offset_of(symbol)) is not None and found[0] == atom:
            return (Index.of(symbol) - found[1]) * found[2]
    if isinstance(atom, (Div, Mod)):
        num, den = _over(atom.num, known), _over(atom.den, known)
        if num is not None and den is not None:
            return Index.of(type(atom)(num, den))
        return _from_quotient(atom, known) if isinstance(atom, Div) else None
    assert isinstance(atom, (Least, Common))
    one, two = _over(atom.one, known), _over(atom.two, known)
    return Index.of(type(atom)(one, two)) if one is not None and two is not None else None


def _from_quotient(atom: Div, known: Collection[Symbol]) -> Index | None:
    """n//(k*d) as (n//k)//d where a known symbol is n//k plus a constant: law (5) of `ir/index.py` in reverse."""
    for symbol in known:
        inner, offset, sign = offset_of(symbol) or (None, 0, 1)
        if not isinstance(inner, Div) or sign < 0:
            continue
        deeper = divides(inner.den, atom.den)
        if deeper is None:
            continue
        more = divides(inner.den, atom.num - inner.num)
        over = _over(more, known) if more is not None else None
        if over is not None:
            return floor_div(Index.of(symbol) - offset + over, deeper)
    return None


def offset_of(symbol: Symbol) -> tuple[Atom, int, int] | None:
    """(atom, n, sign) where a symbol stands for sign * atom + n, such as the 1 - min(..) places of a pooling window.

    >>> (places,), _ = named(1 - least(ZERO, 1 - Index.of(Symbol("n")) // 2)).terms[0]
    >>> offset_of(places)
    (min(-1*(n)//2 + 1, 0), 1, -1)
    """
    terms = symbol.formula.terms if symbol.formula is not None else ()
    if not terms or len(terms[0][0]) != 1 or abs(terms[0][1]) != 1 or any(mono for mono, _ in terms[1:]):
        return None
    return terms[0][0][0], terms[1][1] if len(terms) == 2 else 0, terms[0][1]


_ANONYMOUS = "?"  # begins the names of dimensions that a model leaves without one


def anonymous(value: str, axis: int) -> str:
    """The name of a dimension that has none in the model.

    >>> anonymous("x", 2), place_of(anonymous("x", 2)), place_of("batch")
    ('?x_2', ('x', 2), None)
    """
    return f"{_ANONYMOUS}{value}_{axis}"


def place_of(name: str) -> tuple[str, int] | None:
    """The value and axis of a dimension that has no name in the model; None for the name of another."""
    if not name.startswith(_ANONYMOUS):
        return None
    value, _, axis = name.removeprefix(_ANONYMOUS).rpartition("_")
    return value, int(axis)


def sizing(extents: Iterable[Index]) -> str:
    """Advice for making extents static: options that fix their named symbols; empty without such symbols."""
    names = sorted({s.name for e in extents for s in symbols_of(expanded(e))})
    given = all(place_of(name) is None for name in names)
    flags = [f"--dim {name}=N" for name in names] if given else ["--input-shape"]
    return f"give {' '.join(flags)}" if names else ""
