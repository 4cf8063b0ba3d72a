"""Interval analysis of scalars: bounds, possible NaN, and possible -0.

Interval arithmetic (R. E. Moore, Interval Analysis, 1966). Bounds are rounded outwards to the element type, so that
they hold for computed values, since rounding is monotonic. Three facts that intervals cannot express are recognised by
form: x - max(x) <= 0, sum(exp(x - max(x))) >= 1, and x / sqrt(mean(x**2) + e) <= sqrt(n) for n terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np

from onnxfuse.ir.compose import substitute_axes, walk
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Axis, Index, lower, nonnegative, upper
from onnxfuse.ir.indexing import product
from onnxfuse.ir.monoid import MONOIDS, greatest_of
from onnxfuse.ir.ranges.functions import ANY, EXACT, Range, applied, converted, raised, wrapped
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Load, Reduce, Scalar, children

Of = Callable[[Load], Range]
Unfold = Callable[[Load], Scalar | None]


def range_of(x: Scalar, of: Of, unfold: Unfold = lambda load: None) -> Range:
    """The range of x, given those of its loads; `unfold` gives the definition of a load, where it is known.

    >>> from onnxfuse.ir.dtype import F32
    >>> from onnxfuse.ir.scalar import apply
    >>> range_of(apply("sigmoid", Load("x", (), F32)), lambda load: ANY)
    Range(low=0.0, high=1.0, nan=True, minus=False, whole=False)
    """
    found: dict[Scalar, Range] = {}
    for node in walk(x):
        inner = [found[c] for c in children(node)]
        found[node] = wrapped(_range(node, inner, of, unfold), node.dtype)
    return found[x]


def of_array(array: np.ndarray[Any, Any], dtype: DType) -> Range:
    """The range of an array's elements."""
    if dtype.kind not in "fiub" or array.size == 0:
        return ANY
    low, high = float(array.min()), float(array.max())
    nan = low != low
    if nan:
        real = array[~np.isnan(array)]
        if real.size == 0:
            return ANY
        low, high = float(real.min()), float(real.max())
    minus = dtype.floating and low <= 0 <= high and (array.size > _LARGE or bool(np.signbit(array[array == 0]).any()))
    return Range(low, high, nan, minus, not dtype.floating)


_LARGE = 1 << 20  # elements of an array from which on signs of zeros are not examined
_LONGEST = 2.0**40  # no axis of a tensor has more elements


def _range(x: Scalar, inner: list[Range], of: Of, unfold: Unfold) -> Range:
    if isinstance(x, Const):
        return of_array(np.asarray(x.value), x.dtype)
    if isinstance(x, Load):
        return of(x) if x.otherwise is None else of(x).union(inner[0])
    if isinstance(x, FromIndex):
        found = _of_index(x.index)
        return found.union(Range.number(0)) if x.guards else found
    if isinstance(x, Reduce):
        return _reduced(x, inner, unfold)
    if x.fn == "cast":
        return converted(inner[0], x.dtype)
    if x.fn == "select" and _is_test_for_nan(x.args[0], x.args[2], unfold):
        inner[2] = replace(inner[2], nan=False)
    made = applied(x.fn, x.args, inner)
    if x.fn == "sub" and _is_maximum_of(x.args[1], x.args[0], unfold):
        return Range(made.low, min(made.high, 0.0), made.nan, made.minus)
    terms = _squares_below(x, unfold) if x.fn in ("div", "mul") and not made.nan and inner[0].finite else None
    if terms is not None:
        return Range(-sqrt(terms) * _SLACK, sqrt(terms) * _SLACK)
    return made


_SLACK = 1 + 2.0**-6  # bound of the rounding errors of a sum of squares and its root


def _of_index(e: Index) -> Range:
    low, high = lower(e), upper(e)
    least: float = 0 if low is not None and nonnegative(low) else -inf
    if low is not None and low.constant is not None:
        least = low.constant
    most = high.constant if high is not None and high.constant is not None else EXACT
    return Range(least, most, whole=True)


def _reduced(x: Reduce, inner: list[Range], unfold: Unfold) -> Range:
    body, count = inner[0], product([r.extent for r in x.ranges])
    n, some = count.constant, nonnegative(count - 1)
    monoid = MONOIDS[x.combine]
    if monoid.position and x.slot == 1:
        return inner[1].union(Range.number(0))
    if monoid.extreme:
        end = inf if monoid.extreme == "min" else -inf
        return body if some else body.union(Range(end, end))
    if x.combine == "prod":
        if n is not None and body.low > 0 and body.finite and not body.nan:
            ends = (raised(min(body.low, 1.0), n), raised(max(body.high, 1.0), n))
            return Range(
                ends[0] * max(0.0, 1 - 2.0**-16 - n * x.dtype.epsilon),
                ends[1] * (1 + n * x.dtype.epsilon),
                ends[1] == inf,
            )
        return Range(0.0 if body.low >= 0 else -inf, inf, body.nan or body.most > 1, body.low < 0 or body.minus)
    assert x.combine == "sum", x.combine
    length = _LONGEST if n is None else n
    most = length * (1 + length * x.dtype.epsilon)
    low = 0.0 if body.low >= 0 else body.low * most
    if body.low > 0 and n is not None:
        low = n * body.low * max(0.0, 1 - n * x.dtype.epsilon)
    if some and _is_sum_of_powers(x, unfold):
        low = max(low, 1.0)
    high = 0.0 if body.high <= 0 else body.high * most
    largest = float(np.finfo(x.dtype.numpy).max) if x.dtype.floating else inf
    opposite = low < -largest and high > largest  # partial sums may overflow in both directions, which gives NaN
    return Range(low, high, body.nan or opposite, body.minus, body.whole)


# Forms ----------------------------------------------------------------------------------------------------------------


def _is_maximum_of(m: Scalar, x: Scalar, unfold: Unfold) -> bool:
    """Whether m is a maximum over terms that include x."""
    m = _unfolded(m, unfold)
    return isinstance(m, Reduce) and greatest_of(m.combine) and _among(x, m)


def _is_sum_of_powers(s: Reduce, unfold: Unfold) -> bool:
    """Whether a sum is sum(exp(x - max(x))) over the same terms."""
    power = _unfolded(s.body[0], unfold)
    if not isinstance(power, Apply) or power.fn not in ("exp", "exp_or_zero"):
        return False
    less = _unfolded(power.args[0], unfold)
    if not isinstance(less, Apply) or less.fn != "sub":
        return False
    m = _unfolded(less.args[1], unfold)
    if not isinstance(m, Reduce) or not greatest_of(m.combine) or len(m.ranges) != len(s.ranges):
        return False
    place = _places(less.args[0], m)
    return place is not None and set(place.values()) == set(map(Index.of, s.ranges))


def _is_test_for_nan(c: Scalar, x: Scalar, unfold: Unfold) -> bool:
    c = _unfolded(c, unfold)
    return isinstance(c, Apply) and c.fn == "isnan" and c.args[0] == x


def _squares_below(x: Apply, unfold: Unfold) -> int | None:
    """n where x is d / sqrt(mean of n squares, d's among them, + e) with e > 0; None for others."""
    root = _unfolded(x.args[1], unfold)
    if x.fn == "mul":
        if not isinstance(root, Apply) or root.fn != "reciprocal":
            return None
        root = _unfolded(root.args[0], unfold)
    if not isinstance(root, Apply) or root.fn != "sqrt":
        return None
    mean = _unfolded(root.args[0], unfold)
    if not isinstance(mean, Apply) or mean.fn != "add":
        return None
    e = mean.args[1]
    if not isinstance(e, Const) or not e.value > np.finfo(np.float32).tiny:
        return None
    mean = _unfolded(mean.args[0], unfold)
    if not isinstance(mean, Apply) or mean.fn != "div" or not isinstance(mean.args[1], Const):
        return None
    total = _unfolded(mean.args[0], unfold)
    if not isinstance(total, Reduce) or total.combine != "sum":
        return None
    square, n = _unfolded(total.body[0], unfold), product([r.extent for r in total.ranges]).constant
    if n is None or mean.args[1].value != n or not isinstance(square, Apply) or square.fn != "mul":
        return None
    one, two = square.args
    return n if one == two and _among(x.args[0], total, one) else None


def _unfolded(x: Scalar, unfold: Unfold) -> Scalar:
    while isinstance(x, Load) and not x.guards:
        inside = unfold(x)
        if inside is None:
            return x
        x = inside
    return x


def _among(x: Scalar, r: Reduce, body: Scalar | None = None) -> bool:
    """Whether x is one of the terms of a reduction."""
    return _places(x, r, body) is not None


def _places(x: Scalar, r: Reduce, body: Scalar | None = None) -> dict[Axis, Index] | None:
    """The values of the ranges at which a reduction's term is x; None where it is no term."""
    body = body or r.body[0]
    pairs = zip(_loads(body), _loads(x), strict=False)
    at: dict[Axis, Index] = {}
    for term, own in pairs:
        if term.source == own.source and len(term.index) == len(own.index):
            at |= {a: o for t, o in zip(term.index, own.index, strict=True) for a in r.ranges if t == Index.of(a)}
    return at if at.keys() == set(r.ranges) and substitute_axes(body, at) == x else None


def _loads(x: Scalar) -> Iterable[Load]:
    return [n for n in walk(x) if isinstance(n, Load)]


__all__ = ["ANY", "Range", "of_array", "range_of"]
