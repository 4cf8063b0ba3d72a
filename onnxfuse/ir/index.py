"""Quasi-affine integers: polynomials over axes, symbols, `//`, `%` and loaded indices, always in simplified form.

An `Index` is a sum of integer multiples of products of atoms. Six kinds of atom or operation exist: integers and sums
(the polynomial itself), `Axis` (a loop variable), `Symbol` (an extent known when the kernel runs), `Div`, `Mod` and
`Loaded` (an index read from a tensor). Symbols are at least 1; a loop over a zero extent is never entered.

The laws, applied when a `//` or `%` is built (after Halide's simplifier and "law 4" of tinygrad's movement ops):
    (1) multiples of k leave `//k` and vanish from `%k`
    (2) a remainder r with 0 <= r < k makes `//k` constant and `%k` the identity
    (3) (g*A + r)//(g*k) = A//k and (g*A + r)%(g*k) = g*(A%k) + r, when 0 <= r < g
    (4) k*(e//k) + e%k = e, and a*((e//a)%b) + e%a = e%(a*b)
    (5) (e//a)//b = e//(a*b), (e%(a*b))//a = (e//a)%b, (e%(a*b))%a = e%a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import Any

Monomial = tuple["Atom", ...]


@dataclass(frozen=True, slots=True)
class Symbol:
    """An extent that is known when the kernel runs; at least 1 wherever a loop over it is entered."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable with 0 <= value < extent."""

    name: str
    extent: Index

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Div:
    """num // den, rounded down; den is a positive product of an integer and symbols."""

    num: Index
    den: Index
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("//", self.num, self.den)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"({self.num})//{_paren(self.den)}"


@dataclass(frozen=True, slots=True)
class Mod:
    """num % den with the sign of den; den is a positive product of an integer and symbols."""

    num: Index
    den: Index
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(("%", self.num, self.den)))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"({self.num})%{_paren(self.den)}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """An index read from an integer tensor: negative values count from the end, 0 <= value < extent afterwards."""

    source: str
    at: tuple[Index, ...]
    extent: Index

    def __repr__(self) -> str:
        return f"{self.source}[{', '.join(map(repr, self.at))}]"


Atom = Symbol | Axis | Div | Mod | Loaded
IndexLike = "Index | Atom | int"


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """A polynomial: sorted pairs of a product of atoms and its integer coefficient."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            other = Index.of(other)
        if not isinstance(other, Index):
            return NotImplemented
        return self is other or (self._hash == other._hash and self.terms == other.terms)

    @staticmethod
    def of(value: Index | Atom | int) -> Index:
        """The polynomial of an integer or an atom."""
        if isinstance(value, Index):
            return value
        if isinstance(value, int):
            return Index((((), value),) if value else ())
        return Index((((value,), 1),))

    def __add__(self, other: Index | Atom | int) -> Index:
        return _collect([*self.terms, *Index.of(other).terms])

    def __radd__(self, other: Atom | int) -> Index:
        return self + other

    def __neg__(self) -> Index:
        return Index(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Index | Atom | int) -> Index:
        return self + (-Index.of(other))

    def __rsub__(self, other: Atom | int) -> Index:
        return Index.of(other) + (-self)

    def __mul__(self, other: Index | Atom | int) -> Index:
        right = Index.of(other)
        return _collect([(_product(a, b), c * d) for a, c in self.terms for b, d in right.terms])

    def __rmul__(self, other: Atom | int) -> Index:
        return self * other

    def __floordiv__(self, other: Index | Atom | int) -> Index:
        return floor_div(self, Index.of(other))

    def __mod__(self, other: Index | Atom | int) -> Index:
        return modulo(self, Index.of(other))

    @property
    def constant(self) -> int | None:
        """Its value when it is one integer."""
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    def __repr__(self) -> str:
        text = " + ".join(_term_text(m, c) for m, c in self.terms)
        return text.replace("+ -", "- ") or "0"


ZERO, ONE = Index.of(0), Index.of(1)


def _term_text(mono: Monomial, coefficient: int) -> str:
    factors = "*".join(repr(a) for a in mono)
    if not mono:
        return str(coefficient)
    return factors if coefficient == 1 else f"{coefficient}*{factors}"


def _paren(e: Index) -> str:
    return repr(e) if len(e.terms) == 1 and e.terms[0][1] == 1 or e.constant is not None else f"({e!r})"


def _rank(atom: Atom) -> tuple[int, str]:
    order = {Axis: 0, Loaded: 1, Div: 2, Mod: 3, Symbol: 4}
    return order[type(atom)], repr(atom)


def _product(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    return tuple(sorted(a + b, key=_rank))


def _collect(terms: list[tuple[Monomial, int]]) -> Index:
    total: dict[Monomial, int] = {}
    for mono, c in terms:
        total[mono] = total.get(mono, 0) + c
    total = {m: c for m, c in total.items() if c}
    if sum(any(isinstance(a, (Mod, Div)) for a in m) for m in total) > 1:
        while _recombine(total):
            pass
    # The constant comes last, the rest in the order of their text: equal sums are equal values.
    return Index(tuple(sorted(total.items(), key=lambda t: (not t[0], [_rank(a) for a in t[0]]))))


def _recombine(total: dict[Monomial, int]) -> bool:
    """Law (4) once: replace a quotient and its remainder by what they were split from."""
    for mono, c in list(total.items()):
        for at, atom in enumerate(mono):
            if not isinstance(atom, Mod):
                continue
            rest = mono[:at] + mono[at + 1 :]
            whole = _partner(total, rest, c, atom)
            if whole is None:
                continue
            key, replacement = whole
            del total[mono], total[key]
            for m, k in replacement.terms:
                joined = _product(rest, m)
                total[joined] = total.get(joined, 0) + c * k
                if not total[joined]:
                    del total[joined]
            return True
    return False


def _partner(total: dict[Monomial, int], rest: Monomial, c: int, low: Mod) -> tuple[Monomial, Index] | None:
    den = low.den.terms[0]
    for quotient, whole in _quotients(total, low):
        key = _product(_product(rest, den[0]), (quotient,))
        if total.get(key) == c * den[1]:
            return key, whole
    return None


def _quotients(total: dict[Monomial, int], low: Mod) -> Iterator[tuple[Atom, Index]]:
    """Atoms q with den*q + low equal to something simpler."""
    e, k = low.num, low.den
    for mono in list(total):
        for atom in mono:
            if isinstance(atom, Div) and atom.num == e and atom.den == k:
                yield atom, e
            elif isinstance(atom, Mod) and _as_div(atom.num) == (e, k):
                yield atom, modulo(e, k * atom.den)
            elif isinstance(atom, (Axis, Loaded)) or isinstance(atom, Mod):
                # e//k may have been simplified to a plain atom: compare with what it would be
                q = floor_div(e, k)
                if q == Index.of(atom):
                    yield atom, e


def _as_div(e: Index) -> tuple[Index, Index] | None:
    if len(e.terms) == 1 and e.terms[0][1] == 1 and len(e.terms[0][0]) == 1:
        atom = e.terms[0][0][0]
        if isinstance(atom, Div):
            return atom.num, atom.den
    return None


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
    return _collect([(tuple(left), c // k)])


def _monomial(e: Index) -> tuple[Monomial, int] | None:
    return e.terms[0] if len(e.terms) == 1 else None


def divides(den: Index, e: Index) -> Index | None:
    """e / den when den is one monomial that divides every term of e, else None."""
    d = _monomial(den)
    if d is None:
        return ONE if e == den else None
    parts = [exact_quotient(m, c, d) for m, c in e.terms]
    if any(p is None for p in parts):
        return None
    return sum((p for p in parts if p is not None), ZERO)


def _split(e: Index, d: tuple[Monomial, int]) -> tuple[Index, Index]:
    """e = den*quotient + remainder, by whole terms; a constant is split by integer division."""
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


def _common_factors(e: Index, d: tuple[Monomial, int]) -> list[Index]:
    """Candidates g for law (3): common factors of den with single terms of e, largest coefficient first."""
    found: dict[Index, None] = {}
    for mono, c in e.terms:
        g = gcd(c, d[1])
        shared = []
        left = list(mono)
        for s in d[0]:
            if s in left:
                left.remove(s)
                shared.append(s)
        candidate = Index(((tuple(shared), g),))
        if candidate != ONE and candidate != Index((d,)):
            found[candidate] = None
    return sorted(found, key=lambda i: (-len(i.terms[0][0]), -i.terms[0][1], repr(i)))


def floor_div(num: Index, den: Index) -> Index:
    """num // den, simplified. A den that is a sum must cancel exactly."""
    if den == ONE:
        return num
    if num == den:
        return ONE
    if den.constant == 0:
        raise ZeroDivisionError("index division by zero")
    d = _monomial(den)
    if d is None:
        return Index.of(Div(num, den)) if num.terms else ZERO
    quotient, rest = _split(num, d)
    if in_range(rest, den):
        return quotient
    if in_range(rest + den, den):
        return quotient - 1
    for g in _common_factors(rest, d):
        high, low = _split(rest, g.terms[0])
        if high.terms and in_range(low, g):
            reduced = divides(g, den)
            assert reduced is not None
            return quotient + floor_div(high, reduced)
    atom = _single(rest)
    if isinstance(atom, Div):  # law (5)
        return quotient + floor_div(atom.num, atom.den * den)
    if isinstance(atom, Mod) and (b := divides(den, atom.den)) is not None:
        return quotient + modulo(floor_div(atom.num, den), b)
    return quotient + Index.of(Div(rest, den))


def modulo(num: Index, den: Index) -> Index:
    """num % den, simplified."""
    if den == ONE or num == den:
        return ZERO
    d = _monomial(den)
    if d is None:
        return Index.of(Mod(num, den)) if num.terms else ZERO
    _, rest = _split(num, d)
    if in_range(rest, den):
        return rest
    if in_range(rest + den, den):
        return rest + den
    for g in _common_factors(rest, d):
        high, low = _split(rest, g.terms[0])
        if high.terms and in_range(low, g):
            reduced = divides(g, den)
            assert reduced is not None
            return g * modulo(high, reduced) + low
    atom = _single(rest)
    if isinstance(atom, Mod) and divides(den, atom.den) is not None:
        return modulo(atom.num, den)
    return Index.of(Mod(rest, den))


# Bounds ---------------------------------------------------------------------------------------------------------------


def lower(e: Index) -> Index | None:
    """A polynomial over symbols that e never goes below, or None."""
    return _bound(e, upper_side=False)


def upper(e: Index) -> Index | None:
    """A polynomial over symbols that e never goes above, or None."""
    return _bound(e, upper_side=True)


def _bound(e: Index, *, upper_side: bool) -> Index | None:
    total = ZERO
    for mono, c in e.terms:
        part = ONE
        for atom in mono:
            low, high = _atom_range(atom)
            if low is None or not nonnegative(low):
                return None
            side = high if (c > 0) == upper_side else low
            if side is None:
                return None
            part = part * side
        total = total + part * c
    return total


def _atom_range(atom: Atom) -> tuple[Index | None, Index | None]:
    if isinstance(atom, Symbol):
        return Index.of(atom), Index.of(atom)
    if isinstance(atom, (Axis, Loaded)):
        return ZERO, atom.extent - 1
    if isinstance(atom, Mod):
        return ZERO, atom.den - 1
    low, high = lower(atom.num), upper(atom.num)
    # a symbol-valued quotient bound must stay free of atoms that need a bound of their own
    low = ZERO if low is not None and nonnegative(low) else None
    if high is not None:
        high = floor_div(high, atom.den)
        if any(isinstance(a, Div) for m, _ in high.terms for a in m):
            high = None
    return low, high


def nonnegative(e: Index) -> bool:
    """Whether e >= 0 is proven for all symbols >= 1: every coefficient is nonnegative once s is written 1 + s'."""
    shifted = _collect([])
    for mono, c in e.terms:
        part = Index.of(c)
        for atom in mono:
            if not isinstance(atom, Symbol):
                return False
            part = part * (Index.of(atom) + 1)
        shifted = shifted + part
    return all(c >= 0 for _, c in shifted.terms)


def in_range(e: Index, extent: Index) -> bool:
    """Whether 0 <= e < extent is proven."""
    low, high = lower(e), upper(e)
    return low is not None and high is not None and nonnegative(low) and nonnegative(extent - 1 - high)


# Walking --------------------------------------------------------------------------------------------------------------


def atoms(e: Index) -> Iterator[Atom]:
    """Every atom in e, those inside `//`, `%` and loaded indices too."""
    for mono, _ in e.terms:
        for atom in mono:
            yield atom
            if isinstance(atom, (Div, Mod)):
                yield from atoms(atom.num)
                yield from atoms(atom.den)
            elif isinstance(atom, Loaded):
                for at in atom.at:
                    yield from atoms(at)


def axes_of(e: Index) -> frozenset[Axis]:
    """The axes that e mentions."""
    return frozenset(a for a in atoms(e) if isinstance(a, Axis))


def symbols_of(e: Index) -> frozenset[Symbol]:
    """The symbols that e mentions, those in the extents of its axes not counted."""
    return frozenset(a for a in atoms(e) if isinstance(a, Symbol))


def transform(e: Index, replace: Callable[[Atom], Index | None]) -> Index:
    """e with every atom for which `replace` gives a value replaced, and the rest rebuilt and simplified."""
    total = ZERO
    for mono, c in e.terms:
        part = Index.of(c)
        for atom in mono:
            part = part * _transform_atom(atom, replace)
        total = total + part
    return total


def _transform_atom(atom: Atom, replace: Callable[[Atom], Index | None]) -> Index:
    new = replace(atom)
    if new is not None:
        return new
    if isinstance(atom, Div):
        return floor_div(transform(atom.num, replace), transform(atom.den, replace))
    if isinstance(atom, Mod):
        return modulo(transform(atom.num, replace), transform(atom.den, replace))
    if isinstance(atom, Loaded):
        return Index.of(
            Loaded(atom.source, tuple(transform(a, replace) for a in atom.at), transform(atom.extent, replace))
        )
    return Index.of(atom)


def substitute(e: Index, values: Mapping[Axis, Index]) -> Index:
    """e with axes replaced."""
    if not values or not (axes_of(e) & values.keys()):
        return e
    return transform(e, lambda a: values.get(a) if isinstance(a, Axis) else None)


def coefficient(e: Index, axis: Axis) -> Index | None:
    """The stride of axis in e when e is affine in it (0 when it is absent), else None."""
    stride = ZERO
    for mono, c in e.terms:
        if axis in mono:
            left = list(mono)
            left.remove(axis)
            rest = Index(((tuple(left), c),))
            if axis in axes_of(rest):
                return None
            stride = stride + rest
        elif any(axis in axes_of(Index.of(a)) for a in mono if not isinstance(a, (Axis, Symbol))):
            return None
    return stride


def evaluate(e: Index, value: Callable[[Atom], Any]) -> Any:
    """e as a number (or NumPy array): `value` gives that of every axis, symbol and loaded index."""
    total: Any = 0
    for mono, c in e.terms:
        part: Any = c
        for atom in mono:
            if isinstance(atom, Div):
                part = part * (evaluate(atom.num, value) // evaluate(atom.den, value))
            elif isinstance(atom, Mod):
                part = part * (evaluate(atom.num, value) % evaluate(atom.den, value))
            else:
                part = part * value(atom)
        total = total + part
    return total


def product(extents: tuple[Index, ...] | list[Index]) -> Index:
    """The number of elements of a shape."""
    total = ONE
    for e in extents:
        total = total * e
    return total


def flatten(indices: tuple[Index, ...], shape: tuple[Index, ...]) -> Index:
    """The row-major offset of a multi-index."""
    flat = ZERO
    for i, extent in zip(indices, shape, strict=True):
        flat = flat * extent + i
    return flat


def unflatten(flat: Index, shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """The multi-index of a row-major offset that lies inside shape."""
    out: list[Index] = []
    stride = product(shape)
    for at, extent in enumerate(shape):
        above = stride
        stride = quotient_of(above, extent)
        digit = floor_div(flat, stride)
        out.append(digit if at == 0 else modulo(digit, extent))
    return tuple(out)


def quotient_of(whole: Index, part: Index) -> Index:
    """whole / part for a product that contains part as a factor (its value is only used in nonempty shapes)."""
    if part == ZERO:
        return ONE
    q = divides(part, whole)
    return q if q is not None else floor_div(whole, part)
