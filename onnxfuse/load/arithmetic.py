"""Symbolic evaluation of shape arithmetic: rows evaluated on small tensors whose elements depend on symbols.

An element is an `Index` (integers, booleans, integral floating-point numbers), an `ExtentFraction` or a NumPy scalar (a
floating-point number). Comparisons must hold for symbols >= 0, since a past or a batch may be empty.
Only division assumes extents >= 1, as index maps do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.extents import expanded
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Atom,
    Axis,
    Div,
    Entry,
    Index,
    Loaded,
    Mod,
    Symbol,
    divides,
    floor_div,
    greatest,
    least,
    modulo,
    never_below_zero,
)
from onnxfuse.ir.indexing import transform
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar, variable
from onnxfuse.load.extent_fractions import RATIONAL, ExtentFraction, power, ratio_of
from onnxfuse.ops.proofs import never_negative_from_zero
from onnxfuse.ops.spec import Definition

LIMIT = 64  # largest tensor, in elements, that is evaluated
_DEGREE, _EXPONENT = 4, 64  # largest exponent of a symbol (pixels of a square image, say), and of a number
Array = np.ndarray[Any, Any]  # of objects: Index or NumPy scalar
Element = Any
# Floating-point functions that are rounded correctly everywhere: no shape may depend on the last bit of an exponential.
_EXACT = {"add", "sub", "mul", "div", "min", "max", "neg", "abs", "sign", "floor", "ceil", "round", "sqrt", "cast"}
_EXACT |= {"reciprocal"} | {f for f, row in FUNCTIONS.items() if row.result == "bool"}


class Undecided(Exception):  # control flow
    """A value or comparison depends on the values of symbols."""


def elements(array: np.ndarray[Any, Any]) -> Array:
    """A numeric array as an array of elements."""
    out = np.empty(array.shape, object)
    floating = array.dtype.kind == "f"
    for at in np.ndindex(array.shape):
        out[at] = array[at] if floating else Index.of(int(array[at]))
    return out


def of_indices(values: Sequence[Index]) -> Array:
    """Indices as a vector of elements."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def integers(array: Array) -> tuple[int, ...] | None:
    """The elements in row-major order if all are constant integers; or None."""
    values = [e.constant if isinstance(e, Index) else None for e in array.reshape(-1)]
    return None if any(v is None for v in values) else tuple(v for v in values if v is not None)


def evaluate(
    definitions: Sequence[Definition], values: Mapping[str, Array], facts: Sequence[Index]
) -> dict[str, Array]:
    """The elements of the definitions of a row; `facts` are known to be >= 0.

    Raises Undecided where control depends on symbols, KeyError for an input without a value.
    """
    known = dict(values)
    for d in definitions:
        out = np.empty(_counts(d.axes), object)
        evaluator = _Evaluator(known, facts)
        for at in np.ndindex(out.shape):
            out[at] = evaluator.scalar(d.value, dict(zip(d.axes, map(Index.of, at), strict=True)))
        known[d.name] = out
    return {d.name: known[d.name] for d in definitions}


def _counts(axes: Sequence[Axis]) -> tuple[int, ...]:
    """The extents of some axes. Raises Undecided unless they are constant and their product is at most LIMIT."""
    counts = tuple(-1 if (n := a.extent.constant) is None else n for a in axes)
    if any(n < 0 for n in counts) or prod(counts) > LIMIT:
        raise Undecided
    return counts


class _Evaluator:
    """Evaluates scalar expressions for given values of the axes."""

    def __init__(self, values: Mapping[str, Array], facts: Sequence[Index]) -> None:
        self.values = values
        self.prove = Prover(facts)

    def index(self, e: Index, at: Mapping[Axis, Index]) -> Index:
        def replace(atom: Atom) -> Index | None:
            if isinstance(atom, Axis):
                return at[atom]
            if isinstance(atom, Entry):
                return self._entry(atom, self.index(atom.at, at))
            if isinstance(atom, Loaded):
                found = self.element(atom.source, tuple(self.index(i, at) for i in atom.at))
                extent = self.index(atom.extent, at)
                if not isinstance(found, Index) or (n := found.constant) is None:
                    raise Undecided
                return found + extent if n < 0 else found
            return None

        return transform(e, replace)

    def _entry(self, atom: Entry, place: Index) -> Index:
        n = place.constant
        if n is None or not 0 <= n < len(atom.table.values):
            raise Undecided
        return Index.of(atom.table.values[n])

    def element(self, source: str, at: tuple[Index, ...]) -> Element:
        array = self.values[source]
        place = tuple(i.constant for i in at)
        if any(p is None or not 0 <= p < n for p, n in zip(place, array.shape, strict=True)):
            raise Undecided
        return array[place]

    def scalar(self, x: Scalar, at: Mapping[Axis, Index]) -> Element:
        if isinstance(x, Const):
            return x.dtype.numpy.type(x.value) if x.dtype.floating else Index.of(int(x.value))
        if isinstance(x, FromIndex):
            inside = self._inside(x.guards, at)
            return self._typed(self.index(x.index, at) if inside else ZERO, x.dtype)
        if isinstance(x, Load):
            return self._load(x, at)
        if isinstance(x, Reduce):
            return self._reduce(x, at)
        if x.fn == "select":
            return self.scalar(x.args[1 if self.prove.true(self.scalar(x.args[0], at)) else 2], at)
        return self._apply(x, [self.scalar(a, at) for a in x.args])

    def _load(self, x: Load, at: Mapping[Axis, Index]) -> Element:
        if not self._inside(x.guards, at):
            assert x.otherwise is not None
            return self.scalar(x.otherwise, at)
        return self.element(x.source, tuple(self.index(i, at) for i in x.index))

    def _inside(self, guards: Sequence[Guard], at: Mapping[Axis, Index]) -> bool:
        for g in guards:
            i, n = self.index(g.index, at).constant, self.index(g.extent, at).constant
            if i is None or n is None:
                raise Undecided
            if not 0 <= i < n:
                return False
        return True

    def _reduce(self, x: Reduce, at: Mapping[Axis, Index]) -> Element:
        monoid = MONOIDS[x.combine]
        if len(x.body) != 1:
            raise Undecided
        total: Element = None
        for place in np.ndindex(_counts(x.ranges)):
            part = self.scalar(x.body[0], {**at, **dict(zip(x.ranges, map(Index.of, place), strict=True))})
            step = monoid.merge((variable("%l0", x.dtype),), (variable("%r0", x.dtype),))[0]
            assert isinstance(step, Apply)
            total = part if total is None else self._apply(step, [total, part])
        return self.scalar(monoid.init(x.dtype)[0], at) if total is None else total

    def _apply(self, x: Apply, args: list[Element]) -> Element:
        if all(isinstance(a, Index) for a in args) and not x.dtype.floating:
            return self._typed(_INTEGER[x.fn](self.prove, *args), x.dtype) if x.fn in _INTEGER else _undecided()
        if any(isinstance(a, ExtentFraction) or (isinstance(a, Index) and a.constant is None) for a in args):
            return self._rational(x, [ratio_of(a) for a in args])
        numbers = [_number(a) for a in args]
        result = self._plain(x.fn, numbers)
        if x.dtype.floating:
            return x.dtype.numpy.type(result)
        if not np.isfinite(result):
            raise Undecided
        return self._typed(Index.of(int(result != 0 if x.dtype.kind == "b" else result)), x.dtype)

    def _plain(self, fn: str, numbers: list[Any]) -> Any:
        """A function of numbers whose rounding is the same everywhere. Raises Undecided for others."""
        found = power(*map(float, numbers)) if fn == "pow" else None
        if fn not in _EXACT and found is None:
            raise Undecided
        with np.errstate(all="ignore"):
            return found if found is not None else numbers[0] if fn == "cast" else FUNCTIONS[fn].numpy(*numbers)

    def _rational(self, x: Apply, given: list[ExtentFraction | None]) -> Element:
        """A function of symbolic numbers.

        Extents are far below 2^24, so float32 represents them exactly, and never rounds a fraction to an integer.
        """
        args = [a for a in given if a is not None]
        result = RATIONAL[x.fn](*args) if x.fn in RATIONAL and len(args) == len(given) else None
        if result is None:
            raise Undecided
        whole = divides(Index.of(result.den), result.num)
        if x.dtype.floating:
            return result if whole is None else whole
        if whole is None and not self.prove.rounds_down(result.num, Index.of(result.den)):
            raise Undecided
        return self._typed(floor_div(result.num, Index.of(result.den)), x.dtype)

    def _typed(self, e: Index, dtype: DType) -> Index:
        """e, if it is proven to fit its type. Raises Undecided."""
        n = e.constant
        if dtype.kind == "b" and n not in (0, 1):
            return Index.of(int(not self.prove.equal(e, ZERO)))
        if n is not None and dtype.kind in "iu":
            limits = np.iinfo(dtype.numpy)
            if not limits.min <= n <= limits.max:
                raise Undecided
        return e


def _undecided() -> Index:
    raise Undecided


def _number(e: Element) -> Any:
    if not isinstance(e, (Index, ExtentFraction)):
        return e
    if isinstance(e, ExtentFraction) or e.constant is None:
        raise Undecided
    return np.int64(e.constant)


# Integers over symbols ------------------------------------------------------------------------------------------------


class Prover:
    """Proves comparisons of polynomials for all symbols >= 0 that satisfy the facts (each >= 0)."""

    def __init__(self, facts: Sequence[Index] = ()) -> None:
        self.facts = facts

    def nonnegative(self, e: Index) -> bool:
        """Whether e >= 0 is proven."""
        if _nonnegative(e) or never_negative_from_zero(e):
            return True
        whole = expanded(e) if self.facts else e
        return any(_nonnegative(whole - f) for f in self.facts)

    def rounds_down(self, a: Index, b: Index) -> bool:
        """Whether truncating and floor division of a by b agree: both are nonnegative for all symbols >= 1."""
        return len(b.terms) == 1 and self.nonnegative(b) and (never_below_zero(a) or self.nonnegative(a))

    def at_most(self, a: Index, b: Index) -> bool:
        """True if a <= b is proven, False if b <= a is. Raises Undecided."""
        if self.nonnegative(b - a):
            return True
        if self.nonnegative(a - b):
            return False
        raise Undecided

    def less(self, a: Index, b: Index) -> bool:
        """Whether a < b. Raises Undecided."""
        if self.nonnegative(b - a - 1):
            return True
        if self.nonnegative(a - b):
            return False
        raise Undecided

    def equal(self, a: Index, b: Index) -> bool:
        """Whether a == b. Raises Undecided."""
        if a == b:
            return True
        if self.nonnegative(a - b - 1) or self.nonnegative(b - a - 1) or _never_zero(a - b):
            return False
        raise Undecided

    def true(self, e: Element) -> bool:
        """Whether e != 0. Raises Undecided."""
        if not isinstance(e, Index):
            return bool(_number(e))
        return not self.equal(e, ZERO)


def _never_zero(e: Index) -> bool:
    """Whether a number divides all symbolic terms of e but not the constant, as in 512*T - 1, which is never 0."""
    parts = dict(e.terms)
    rest = parts.pop((), 0)
    common = gcd(*parts.values())
    return common != 0 and rest % common != 0


def _nonnegative(e: Index) -> bool:
    return all(c >= 0 and all(map(_natural, mono)) for mono, c in e.terms)


def _natural(atom: Atom) -> bool:
    return isinstance(atom, (Symbol, Mod)) or (isinstance(atom, Div) and _nonnegative(atom.num))


def _truth(value: bool) -> Index:
    return ONE if value else ZERO


def _div(prove: Prover, a: Index, b: Index) -> Index:
    """Truncating division, by a symbol only where that equals floor division. Raises Undecided.

    If a > -b is proven, it is max(0, a // b); otherwise b - 1 is added to a where a is negative.
    """
    n, d = a.constant, b.constant
    if d == 0:
        raise Undecided
    if n is not None and d is not None:
        return Index.of(abs(n) // abs(d) * (1 if (n < 0) == (d < 0) else -1))
    exact = divides(b, a)
    if exact is not None:
        return exact
    if prove.rounds_down(a, b):
        return floor_div(a, b)
    if d is None or d < 0:
        raise Undecided
    if prove.nonnegative(a + (d - 1)):
        return greatest(ZERO, floor_div(a, b))
    return floor_div(a + (d - 1) * least(ONE, greatest(ZERO, -a)), b)


def _mod(prove: Prover, a: Index, b: Index) -> Index:
    """The remainder with the sign of b, which must be positive unless both are constants. Raises Undecided."""
    n, d = a.constant, b.constant
    if d == 0:
        raise Undecided
    if n is not None and d is not None:
        return Index.of(n % d)
    if len(b.terms) == 1 and prove.nonnegative(b):
        return modulo(a, b)
    raise Undecided


def _fmod(prove: Prover, a: Index, b: Index) -> Index:
    if not prove.rounds_down(a, b):
        raise Undecided
    return _mod(prove, a, b)


def _pow(prove: Prover, a: Index, b: Index) -> Index:
    d = b.constant
    if d is None or not 0 <= d <= (_DEGREE if a.constant is None else _EXPONENT):
        raise Undecided
    return prod([a] * d, start=ONE)


def _abs(prove: Prover, a: Index) -> Index:
    return -a if prove.less(a, ZERO) else a


def _min(prove: Prover, a: Index, b: Index) -> Index:
    """The smaller one, or a symbolic minimum where that depends on symbols."""
    try:
        return a if prove.at_most(a, b) else b
    except Undecided:
        made = least(a, b)
        if made in (a, b):  # simplified under the assumption that symbols are >= 1
            raise
        return made


_INTEGER: dict[str, Callable[..., Index]] = {
    "add": lambda p, a, b: a + b,
    "sub": lambda p, a, b: a - b,
    "mul": lambda p, a, b: a * b,
    "neg": lambda p, a: -a,
    "abs": _abs,
    "div": _div,
    "mod": _mod,
    "fmod": _fmod,
    "pow": _pow,
    "cast": lambda p, a: a,
    "min": _min,
    "max": lambda p, a, b: -_min(p, -a, -b),
    "equal": lambda p, a, b: _truth(p.equal(a, b)),
    "less": lambda p, a, b: _truth(p.less(a, b)),
    "less_equal": lambda p, a, b: _truth(not p.less(b, a)),
    "greater": lambda p, a, b: _truth(p.less(b, a)),
    "greater_equal": lambda p, a, b: _truth(not p.less(a, b)),
    "and": lambda p, a, b: _truth(p.true(a) and p.true(b)),
    "or": lambda p, a, b: _truth(p.true(a) or p.true(b)),
    "xor": lambda p, a, b: _truth(p.true(a) != p.true(b)),
    "not": lambda p, a: _truth(not p.true(a)),
}
