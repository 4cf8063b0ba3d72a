"""Quasi-affine index expressions: polynomials over axes, symbols, `//`, `%`, minima and loaded indices, simplified.

An `Index` is a sum of integer multiples of products of atoms. Nine kinds of atom or operation exist: integers and
sums (the polynomial itself), `Axis` (a loop variable), `Symbol` (an extent known when the kernel runs), `Div`, `Mod`,
`Least` (the smaller of two), `Common` (what two extents broadcast to), `Entry` (an integer of a constant table) and
`Loaded` (an index read from a tensor). Symbols are at least 1, or 0 where they say so; a loop over a zero extent is
never entered.

The laws, applied when a `//` or `%` is built (after Halide's simplifier and "law 4" of tinygrad's movement ops):
    (1) multiples of k leave `//k` and vanish from `%k`
    (2) a remainder r with 0 <= r < k makes `//k` constant and `%k` the identity
    (3) (g*A + r)//(g*k) = A//k and (g*A + r)%(g*k) = g*(A%k) + r, when 0 <= r < g
    (4) k*(e//k) + e%k = e, and a*((e//a)%b) + e%a = e%(a*b)
    (5) (x + e//a)//b = (a*x + e)//(a*b), (e%(a*b))//a = (e//a)%b, (e%(a*b))%a = e%a
    (6) of extents: (-e)//k = -((e + k - 1)//k), (-e)%k = k*((e + k - 1)//k) - e, and (x + c*(e%k))%k = (x + c*e)%k
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2s
from math import gcd
from typing import Any

Monomial = tuple["Atom", ...]


class _Reference(weakref.ref[Any]):
    __slots__ = ("key",)
    key: tuple[object, ...]  # class and fields of the object


_KNOWN: dict[tuple[object, ...], _Reference] = {}


def _forget(gone: _Reference, known: dict[tuple[object, ...], _Reference] = _KNOWN) -> None:
    if known.get(gone.key) is gone:
        del known[gone.key]


class _Interned(type):
    """A class of which there is one object for equal fields: objects are compared and hashed by identity."""

    def __call__(cls, *fields: Any, **named: Any) -> Any:
        known = _KNOWN.get((cls, *fields))
        return (known and known()) or cls._made(fields, named)

    def _made(cls, fields: tuple[Any, ...], named: dict[str, Any]) -> Any:
        made = super().__call__(*fields, **named)
        known = _Reference(made, _forget)
        known.key = (cls, *(getattr(made, each) for each in cls.__match_args__))  # type: ignore[attr-defined]
        found = _KNOWN.setdefault(known.key, known)()  # another one where fields were left out, or by another thread
        if found is None:
            _KNOWN[known.key] = known
        return found or made


class _Value(metaclass=_Interned):
    __slots__ = ("__weakref__",)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(getattr(self, each) for each in type(self).__match_args__)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, eq=False)
class Symbol(_Value):
    """An extent that is known when the kernel runs; at least `least` wherever a loop over it is entered.

    One with a `formula`, over symbols that have none, stands for it: its name is the formula's text (`ir/extents.py`).
    It may be a part of an extent (q of q + 1) and 0 where that is none.
    """

    name: str
    least: int = 1
    formula: Index | None = None

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Axis(_Value):
    """A loop variable with 0 <= value < extent."""

    name: str
    extent: Index

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Div(_Value):
    """num // den, rounded down; den is a positive polynomial over symbols."""

    num: Index
    den: Index

    def __repr__(self) -> str:
        return f"({self.num})//{_paren(self.den)}"


@dataclass(frozen=True, slots=True, eq=False)
class Mod(_Value):
    """num % den with the sign of den; den is a positive polynomial over symbols."""

    num: Index
    den: Index

    def __repr__(self) -> str:
        return f"({self.num})%{_paren(self.den)}"


@dataclass(frozen=True, slots=True, eq=False)
class Loaded(_Value):
    """An index read from an integer tensor: negative values count from the end, 0 <= value < extent afterwards."""

    source: str
    at: tuple[Index, ...]
    extent: Index
    inside: bool = False  # of an intermediate value that is clamped to 0 <= value < extent: kernels do not check it

    def __repr__(self) -> str:
        return f"{self.source}{'!' * self.inside}[{', '.join(map(repr, self.at))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Least(_Value):
    """The smaller of two."""

    one: Index
    two: Index

    def __repr__(self) -> str:
        return f"min({self.one!r}, {self.two!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Common(_Value):
    """The broadcast of two extents: the other one where one is 1. Otherwise they are equal, or the model is invalid."""

    one: Index
    two: Index

    def __repr__(self) -> str:
        return f"common({self.one!r}, {self.two!r})"


@dataclass(frozen=True, slots=True, eq=False)
class IndexTable(_Value):
    """A table of integer constants; equal tables have equal names."""

    values: tuple[int, ...]
    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        digest = blake2s(repr(self.values).encode(), digest_size=5).hexdigest()
        object.__setattr__(self, "name", f"T{len(self.values)}_{digest}")

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Entry(_Value):
    """Element `at` of a table, which is in range for all values of `at`."""

    table: IndexTable
    at: Index

    def __repr__(self) -> str:
        return f"{self.table}[{self.at!r}]"


Atom = Symbol | Axis | Div | Mod | Least | Common | Entry | Loaded


@dataclass(frozen=True, slots=True, eq=False)
class Index(_Value):
    """A polynomial: sorted pairs of a product of atoms and its integer coefficient."""

    terms: tuple[tuple[Monomial, int], ...]
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and self is Index.of(other))

    @staticmethod
    def of(value: Index | Atom | int) -> Index:
        """The polynomial of an integer or an atom."""
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return _integer(value)
        return Index((((value,), 1),))

    def __add__(self, other: Index | Atom | int) -> Index:
        right = Index.of(other)
        if not self.terms or not right.terms:
            return right if not self.terms else self
        return _sum(self, right)

    def __radd__(self, other: Atom | int) -> Index:
        return self + other

    def __neg__(self) -> Index:
        return Index(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Index | Atom | int) -> Index:
        return self + (-other if isinstance(other, int) else -Index.of(other))

    def __rsub__(self, other: Atom | int) -> Index:
        return Index.of(other) + (-self)

    def __mul__(self, other: Index | Atom | int) -> Index:
        right = Index.of(other)
        if self is ONE or right is ONE:
            return right if self is ONE else self
        return _multiplied(self, right)

    def __rmul__(self, other: Atom | int) -> Index:
        return self * other

    def __floordiv__(self, other: Index | Atom | int) -> Index:
        return floor_div(self, Index.of(other))

    def __mod__(self, other: Index | Atom | int) -> Index:
        return modulo(self, Index.of(other))

    @property
    def constant(self) -> int | None:
        """Its value when it is one integer."""
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None if self.terms else 0

    def __repr__(self) -> str:
        text = " + ".join(_term_text(m, c) for m, c in self.terms)
        return text.replace("+ -", "- ") or "0"


@lru_cache(1 << 12)
def _integer(value: int) -> Index:
    return Index((((), int(value)),) if value else ())


ZERO, ONE = Index.of(0), Index.of(1)


def _term_text(mono: Monomial, coefficient: int) -> str:
    factors = "*".join(repr(a) for a in mono)
    if not mono:
        return str(coefficient)
    return factors if coefficient == 1 else f"{coefficient}*{factors}"


def _paren(e: Index) -> str:
    return repr(e) if (len(e.terms) == 1 and e.terms[0][1] == 1) or e.constant is not None else f"({e!r})"


@lru_cache(1 << 14)
def _rank(atom: Atom) -> tuple[int, str]:
    order = {Axis: 0, Loaded: 1, Entry: 2, Least: 3, Common: 3, Div: 4, Mod: 5, Symbol: 6}
    return order[type(atom)], repr(atom)


def _product(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=_rank))


@lru_cache(1 << 14)
def _sum(a: Index, b: Index) -> Index:
    """a + b, where neither is zero."""
    if len(b.terms) == 1 and not b.terms[0][0]:
        return _shifted(a, b.terms[0][1])
    return collect([*a.terms, *b.terms])


@lru_cache(1 << 14)
def _multiplied(a: Index, b: Index) -> Index:
    """a * b."""
    if len(b.terms) == 1 and not b.terms[0][0]:
        return Index(tuple((m, c * b.terms[0][1]) for m, c in a.terms))
    return collect([(_product(m, n), c * d) for m, c in a.terms for n, d in b.terms])


def _shifted(e: Index, by: int) -> Index:
    """e plus a constant."""
    rest, last = (e.terms[:-1], e.terms[-1][1]) if not e.terms[-1][0] else (e.terms, 0)
    return Index((*rest, ((), last + by))) if last + by else Index(rest)


def collect(terms: Iterable[tuple[Monomial, int]]) -> Index:
    """The sum of these terms, in canonical order."""
    total: dict[Monomial, int] = {}
    for mono, c in terms:
        total[mono] = total.get(mono, 0) + c
    total = {m: c for m, c in total.items() if c}
    if len(total) < 2:
        return Index(tuple(total.items()))
    if sum(any(type(atom) in (Div, Mod) for atom in mono) for mono in total) > 1:
        while _recombine(total):
            pass
    # The constant comes last, the rest in the order of their text: equal sums are equal values.
    return Index(tuple(sorted(total.items(), key=lambda t: (not t[0], [_rank(a) for a in t[0]]))))


def _recombine(total: dict[Monomial, int]) -> bool:
    """Apply law (4) once: replace a quotient and its remainder by the dividend."""
    for mono, c in list(total.items()):
        for at, atom in enumerate(mono):
            if not isinstance(atom, Mod):
                continue
            rest = mono[:at] + mono[at + 1 :]
            whole = _partner(total, rest, c, atom)
            if whole is None:
                continue
            keys, replacement = whole
            for key in (mono, *keys):
                del total[key]
            for m, k in replacement.terms:
                joined = _product(rest, m)
                total[joined] = total.get(joined, 0) + c * k
                if not total[joined]:
                    del total[joined]
            return True
    return False


def _partner(total: dict[Monomial, int], rest: Monomial, c: int, low: Mod) -> tuple[list[Monomial], Index] | None:
    """The terms of c*rest*den*q for a quotient q that matches the remainder `low`, and the sum den*q + low."""
    for quotient, whole in _quotients(total, low):
        parts = {_product(_product(rest, mono), (quotient,)): c * k for mono, k in low.den.terms}
        if all(total.get(mono) == k for mono, k in parts.items()):
            return list(parts), whole
    return None


def _quotients(total: dict[Monomial, int], low: Mod) -> Iterator[tuple[Atom, Index]]:
    """Atoms q for which den*q + low simplifies, with the simplified sum."""
    e, k = low.num, low.den
    quotient = floor_div(e, k)
    for atom in dict.fromkeys(atom for mono in total for atom in mono):
        if not isinstance(atom, Symbol) and quotient == Index.of(atom):
            yield atom, e
        elif isinstance(atom, Mod) and atom.num == quotient:
            yield atom, modulo(e, k * atom.den)


def _single(e: Index) -> Atom | None:
    if len(e.terms) == 1 and e.terms[0][1] == 1 and len(e.terms[0][0]) == 1:
        return e.terms[0][0][0]
    return None


# Division -------------------------------------------------------------------------------------------------------------


def exact_quotient(mono: Monomial, c: int, den: tuple[Monomial, int]) -> Index | None:
    """c*mono / den when den divides it as a monomial, else None."""
    symbols, k = den
    if c % k:
        return None
    left = list(mono)
    for s in symbols:
        if s not in left:
            return None
        left.remove(s)
    return collect([(tuple(left), c // k)])


def _monomial(e: Index) -> tuple[Monomial, int] | None:
    return e.terms[0] if len(e.terms) == 1 else None


def divides(den: Index, e: Index) -> Index | None:
    """e / den when den divides it as a polynomial, else None."""
    d = _monomial(den)
    if d is None:
        quotient, rest = _cancel(e, den, shrink=False)
        return None if rest.terms else quotient
    parts = [exact_quotient(m, c, d) for m, c in e.terms]
    if any(p is None for p in parts):
        return None
    return sum((p for p in parts if p is not None), ZERO)


def _cancel(e: Index, den: Index, *, shrink: bool) -> tuple[Index, Index]:
    """e = den*quotient + remainder by the leading term of a sum, each step leaving fewer terms when `shrink`."""
    if not den.terms:
        return ZERO, e
    lead, quotient = max(den.terms, key=_degree), ZERO
    for _ in range(_LONGEST_DIVISION):
        for mono, c in sorted(e.terms, key=_degree, reverse=True):
            q = exact_quotient(mono, c, lead)
            rest = e if q is None else e - q * den
            if q is not None and (len(rest.terms) < len(e.terms) or not shrink):
                quotient, e = quotient + q, rest
                break
        else:
            break
    return quotient, e


_LONGEST_DIVISION = 64


def _degree(term: tuple[Monomial, int]) -> tuple[int, list[tuple[int, str]]]:
    return len(term[0]), [_rank(a) for a in term[0]]


def _split(e: Index, den: Index) -> tuple[Index, Index]:
    """e = den*quotient + remainder, by whole terms; a constant is split by integer division."""
    d = _monomial(den)
    if d is None:
        return _cancel(e, den, shrink=True)
    quotient, remainder = ZERO, ZERO
    for mono, c in e.terms:
        q = exact_quotient(mono, c, d)
        if q is not None:
            quotient = quotient + q
        elif not mono and not d[0]:
            quotient, remainder = quotient + c // d[1], remainder + c % d[1]
        else:
            remainder = remainder + Index(((mono, c),))
    return quotient, remainder


def _low_digits(e: Index, den: Index) -> list[Index]:
    """Candidates g for law (3), largest first: common factors of den and a term of e, and extents that divide den."""
    symbols, k = _content(den)
    found: dict[Index, None] = {}
    for mono, c in e.terms:
        found[Index(((_common(symbols, mono), gcd(c, k)),))] = None
        if len(den.terms) > 1:
            for atom in mono:
                extent = atom.den if isinstance(atom, Mod) else getattr(atom, "extent", ONE)
                if len(extent.terms) > 1 and divides(extent, den) is not None:
                    found[extent] = None
    found.pop(ONE, None)
    found.pop(den, None)
    return sorted(found, key=lambda i: (-max(len(m) for m, _ in i.terms), -max(c for _, c in i.terms), repr(i)))


def _content(e: Index) -> tuple[Monomial, int]:
    """The largest monomial that divides every term of e, its coefficient positive."""
    shared: Monomial = e.terms[0][0]
    for mono, _ in e.terms[1:]:
        shared = _common(shared, mono)
    return shared, gcd(*(c for _, c in e.terms))


def _common(a: Monomial, b: Monomial) -> Monomial:
    left, shared = list(b), []
    for atom in a:
        if atom in left:
            left.remove(atom)
            shared.append(atom)
    return tuple(shared)


@lru_cache(1 << 14)
def floor_div(num: Index, den: Index) -> Index:
    """num // den, simplified."""
    if den == ZERO:
        raise ZeroDivisionError("index division by zero")
    if den == ONE or not num.terms:
        return num
    quotient, rest = _split(num, den)
    if not rest.terms or in_range(rest, den):
        return quotient
    if in_range(rest + den, den):
        return quotient - 1
    for g in _low_digits(rest, den):
        high, low = _split(rest, g)
        if high.terms and in_range(low, g):
            reduced = divides(g, den)
            assert reduced is not None
            return quotient + floor_div(high, reduced)
    for mono, c in rest.terms:
        if c == 1 and len(mono) == 1 and isinstance(inner := mono[0], Div):  # law (5)
            return quotient + floor_div((rest - inner) * inner.den + inner.num, inner.den * den)
    atom = _single(rest)
    if isinstance(atom, Mod) and (b := divides(den, atom.den)) is not None:
        return quotient + modulo(floor_div(atom.num, den), b)
    if _falls(rest) and den.constant is not None:
        return quotient - floor_div(den - 1 - rest, den)
    return quotient + Index.of(Div(rest, den))


def _falls(e: Index) -> bool:
    """Whether e is a sum of extents and their quotients with negative coefficients only."""
    plain = all(isinstance(a, (Symbol, Div, Mod)) for mono, _ in e.terms for a in mono)
    return plain and all(c < 0 or not mono for mono, c in e.terms) and not axes_of(e)


@lru_cache(1 << 14)
def modulo(num: Index, den: Index) -> Index:
    """num % den, simplified."""
    if den == ZERO:
        raise ZeroDivisionError("index division by zero")
    if den == ONE or not num.terms:
        return ZERO
    _, rest = _split(num, den)
    if not rest.terms or in_range(rest, den):
        return rest
    if in_range(rest + den, den):
        return rest + den
    for g in _low_digits(rest, den):
        high, low = _split(rest, g)
        if high.terms and in_range(low, g):
            reduced = divides(g, den)
            assert reduced is not None
            return g * modulo(high, reduced) + low
    atom = _single(rest)
    if isinstance(atom, Mod) and divides(den, atom.den) is not None:
        return modulo(atom.num, den)
    if _falls(rest) and den.constant is not None:
        whole = without_remainders(rest, den)
        return modulo(whole, den) if whole != rest else rest + den * floor_div(den - 1 - rest, den)
    return Index.of(Mod(rest, den))


def without_remainders(e: Index, den: Index) -> Index:
    """e with remainders by multiples of den replaced by their dividends: equal modulo den."""
    total = ZERO
    for mono, c in e.terms:
        part = Index(((mono, c),))
        atom = _single(Index(((mono, 1),)))
        inner = _single(atom.formula) if isinstance(atom, Symbol) and atom.formula is not None else atom
        total = total + (inner.num * c if isinstance(inner, Mod) and divides(den, inner.den) is not None else part)
    return total


def least(a: Index, b: Index) -> Index:
    """The smaller of a and b, simplified."""
    if never_below_zero(b - a):
        return a
    if never_below_zero(a - b):
        return b
    return Index.of(Least(*sorted((a, b), key=repr)))


def greatest(a: Index, b: Index) -> Index:
    """The larger of a and b, simplified."""
    return -least(-a, -b)


def common(a: Index, b: Index) -> Index:
    """The broadcast of extents a and b, simplified: a constant other than 1 decides it.

    >>> n = Index.of(Symbol("n"))
    >>> common(n, ONE), common(n, Index.of(3)), common(n, 2 * Index.of(Symbol("m")))
    (n, 3, 2*m)
    """
    for e, other in ((a, b), (b, a)):
        # a multiple of a number above 1 is never 1
        more = len(e.terms) == 1 and e.terms[0][1] > 1 and nonnegative(e - 2)
        if other in (e, ONE) or more or e == ZERO:
            return e
        atom = _single(e)
        inner = _single(atom.formula) if isinstance(atom, Symbol) and atom.formula is not None else atom
        if isinstance(inner, Common) and other in (inner.one, inner.two):
            return e
    return Index.of(Common(*sorted((a, b), key=repr)))


def entry(table: IndexTable, at: Index) -> Index:
    """Element `at` of a table, simplified."""
    n = at.constant
    varies = n is None and len(set(table.values)) > 1
    return Index.of(Entry(table, at)) if varies else Index.of(table.values[n or 0])


# Bounds ---------------------------------------------------------------------------------------------------------------


def lower(e: Index) -> Index | None:
    """A lower bound of e as a polynomial over symbols, or None."""
    return _bound(e, upper_side=False)


def upper(e: Index) -> Index | None:
    """An upper bound of e as a polynomial over symbols, or None."""
    return _bound(e, upper_side=True)


def never_below_zero(e: Index) -> bool:
    """Whether e >= 0 is proven for all values of its axes, so that C's truncating division rounds down."""
    return (low := lower(e)) is not None and nonnegative(low)


@lru_cache(1 << 14)
def _bound(e: Index, *, upper_side: bool) -> Index | None:
    total = ZERO
    for varying, factor, rises in _by_varying(e):
        part = factor
        for atom in varying:
            low, high = _atom_range(atom)
            if len(varying) > 1 and (low is None or not nonnegative(low)):
                return None
            side = high if rises == upper_side else low
            if side is None:
                return None
            part = part * side
        total = total + part
    return total


def _by_varying(e: Index) -> Iterator[tuple[Monomial, Index, bool]]:
    """e as a sum of products of atoms that are no symbols, each times a polynomial over symbols of a known sign.

    The 2*n - 1 of 2*n*i - i has one for n >= 1: together these are at least 0, where -i alone is not.
    """
    found: dict[Monomial, list[tuple[Monomial, int]]] = {}
    for mono, c in e.terms:
        varying: Monomial = tuple(a for a in mono if not isinstance(a, Symbol))
        found.setdefault(varying, []).append((tuple(a for a in mono if isinstance(a, Symbol)), c))
    for varying, terms in found.items():
        factor = collect(terms)
        up = len(terms) == 1 or not varying or nonnegative(factor)
        if up or nonnegative(-factor):
            yield varying, factor, terms[0][1] > 0 if len(terms) == 1 else up
        else:
            yield from ((varying, Index((term,)), term[1] > 0) for term in terms)


def _atom_range(atom: Atom) -> tuple[Index | None, Index | None]:
    if isinstance(atom, Symbol):
        return Index.of(atom), Index.of(atom)
    if isinstance(atom, (Axis, Loaded)):
        return ZERO, atom.extent - 1
    if isinstance(atom, Mod):
        return ZERO, atom.den - 1
    if isinstance(atom, Entry):
        return Index.of(min(atom.table.values)), Index.of(max(atom.table.values))
    if isinstance(atom, Least):
        return _least_range(atom)
    if isinstance(atom, Common):
        lows = [b for b in (lower(atom.one), lower(atom.two)) if b is not None]
        return next((n for n in (ONE, ZERO) if len(lows) == 2 and all(nonnegative(b - n) for b in lows)), None), None
    low = ZERO if never_below_zero(atom.num) else None
    high = upper(atom.num)
    if high is not None:  # a symbol-valued quotient bound must stay free of atoms that need a bound of their own
        high = floor_div(high, atom.den)
        if any(isinstance(a, Div) for m, _ in high.terms for a in m):
            high = None
    return low, high


def _least_range(atom: Least) -> tuple[Index | None, Index | None]:
    """Bounds of a minimum: the smaller of two lower bounds, and any upper bound.

    The minimum of two expressions that vary in opposite directions (a reflection) is at most half of their sum.
    """
    lows = [b for b in (lower(atom.one), lower(atom.two)) if b is not None]
    fits = (a for a in (*lows, ONE, ZERO) if len(lows) == 2 and all(a is b or nonnegative(b - a) for b in lows))
    low = next(fits, None)
    highs = [h for h in (upper(atom.one), upper(atom.two)) if h is not None]
    if len(highs) == 2:
        apart = highs[1] - highs[0]
        more = max(apart.terms, key=_degree, default=((), 0))[1] < 0  # asymptotically the second is smaller
        highs = highs[1:] if more else highs
    both = upper(atom.one + atom.two)
    half = [floor_div(both, Index.of(2))] if both is not None else []
    return low, next(iter([h for h in half if not highs or nonnegative(highs[0] - h)] or highs), None)


@lru_cache(1 << 14)
def nonnegative(e: Index) -> bool:
    """Whether e >= 0 is proven: with each atom written as its minimum plus a rest, all coefficients are nonnegative."""
    if all(c <= 0 for _, c in e.terms) and e.terms:
        return False
    least = {atom: _least(atom) for mono, _ in e.terms for atom in mono}
    if None in least.values():
        return False
    if all(c >= 0 for _, c in e.terms):
        return True
    shifted = ZERO
    for mono, c in e.terms:
        part = Index.of(c)
        for atom in mono:
            part = part * (Index.of(atom) + (least[atom] or 0))
        shifted = shifted + part
    return all(c >= 0 for _, c in shifted.terms)


def _least(atom: Atom) -> int | None:
    """The minimum of a symbol, or of a quotient of a nonnegative dividend; axes are left to the caller."""
    if isinstance(atom, Symbol):
        return atom.least
    return 0 if isinstance(atom, Div) and not axes_of(atom.num) and never_below_zero(atom.num) else None


@lru_cache(1 << 14)
def in_range(e: Index, extent: Index) -> bool:
    """Whether 0 <= e < extent is proven, of e or, as rounding down keeps integer bounds, of e as one quotient."""
    low, high = lower(e), upper(e)
    if low is not None and high is not None and nonnegative(low) and nonnegative(extent - 1 - high):
        return True
    for mono, c in e.terms:
        if c == 1 and len(mono) == 1 and isinstance(q := mono[0], Div):
            return in_range((e - q) * q.den + q.num, extent * q.den)
    return False


def atoms(e: Index) -> Iterator[Atom]:
    """Every atom in e, those inside `//`, `%` and loaded indices too."""
    for mono, _ in e.terms:
        for atom in mono:
            yield atom
            for part in operands_of(atom):
                yield from atoms(part)


def operands_of(atom: Atom) -> tuple[Index, ...]:
    """The operands of an atom, without the extents of axes and of loaded indices."""
    if isinstance(atom, (Div, Mod)):
        return (atom.num, atom.den)
    if isinstance(atom, (Least, Common)):
        return (atom.one, atom.two)
    if isinstance(atom, Entry):
        return (atom.at,)
    return atom.at if isinstance(atom, Loaded) else ()


@lru_cache(1 << 14)
def axes_of(e: Index) -> frozenset[Axis]:
    """The axes that e mentions."""
    return frozenset(a for a in atoms(e) if isinstance(a, Axis))


@lru_cache(1 << 14)
def symbols_of(e: Index) -> frozenset[Symbol]:
    """The symbols that e mentions, those in the extents of its axes not counted."""
    return frozenset(a for a in atoms(e) if isinstance(a, Symbol))
