"""Interval transfer functions of the scalar functions; any value for functions without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, exp, floor, inf, isinf, log, pi, sqrt, tanh, trunc

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.scalar import Const, Scalar

EXACT = 2**53  # integers up to here are exact in float64
_NEAR = 2.0**-18  # bound of the relative error of computed functions


@dataclass(frozen=True, slots=True)
class Range:
    """An interval [low, high]; `nan`: or NaN. `minus`: zeros may be -0. `whole`: integers only."""

    low: float = -inf
    high: float = inf
    nan: bool = False
    minus: bool = False
    whole: bool = False

    @staticmethod
    def number(value: float) -> Range:
        """A constant."""
        return Range(value, value)

    @property
    def finite(self) -> bool:
        """Whether no infinity is possible."""
        return -inf < self.low and self.high < inf

    @property
    def zero(self) -> bool:
        """Whether 0 is possible."""
        return self.low <= 0 <= self.high

    @property
    def most(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)

    @property
    def least(self) -> float:
        """The smallest magnitude."""
        return 0.0 if self.zero else min(abs(self.low), abs(self.high))

    def union(self, other: Range) -> Range:
        """The smallest range that contains both."""
        return Range(
            min(self.low, other.low),
            max(self.high, other.high),
            self.nan or other.nan,
            self.minus or other.minus,
            self.whole and other.whole,
        )


ANY = Range(nan=True, minus=True)
_BOOL = Range(0, 1, whole=True)


def wrapped(x: Range, dtype: DType) -> Range:
    """A range converted to an element type: bounds are rounded outwards; on integer overflow, the type's full range."""
    if dtype.kind == "b":
        return Range(max(x.low, 0), min(x.high, 1), whole=True)
    if not dtype.floating:
        limits = np.iinfo(dtype.numpy)
        inside = not x.nan and max(limits.min, -EXACT) <= x.low and x.high <= min(limits.max, EXACT)
        return Range(x.low, x.high, whole=True) if inside else Range(int(limits.min), int(limits.max), whole=True)
    low, high = _outward(x.low, dtype, -inf), _outward(x.high, dtype, inf)
    minus = x.minus and low <= 0 <= high
    return Range(low, high, x.nan, minus, x.whole)


def _outward(end: float, dtype: DType, to: float) -> float:
    if isinf(end) or end == 0 or dtype.bits == 64:
        return end
    if dtype.name == "bfloat16":  # computed as float32, rounded to 8 significant bits
        end = end * (1 + (2.0**-7 if (end > 0) == (to > 0) else -(2.0**-7)))
    kind = dtype.numpy.type
    if abs(end) < float(np.finfo(kind).tiny) and (end > 0) != (to > 0):
        return 0.0  # numbers this small may be flushed to zero
    with np.errstate(over="ignore", under="ignore"):
        held = kind(end)
        if (float(held) < end) if to > 0 else (float(held) > end):
            held = np.nextafter(held, kind(to))
    return float(held)


def applied(fn: str, args: Sequence[Scalar], of: Sequence[Range]) -> Range:
    """The range of a function applied to `args` with these ranges."""
    if FUNCTIONS[fn].result == "bool":
        return _compared(fn, of)
    nan = any(r.nan for r in of)
    if fn == "select":
        return _selected(of)
    if fn in _ARITHMETIC and len(of) == 2:
        return _ARITHMETIC[fn](of[0], of[1], args[0] == args[1], nan)
    if fn == "pow":
        return _power(of[0], args[1], of[1], nan)
    row = _UNARY.get(fn)
    if row is not None:
        return row(of[0])
    if fn in _EXTREMES:
        return _EXTREMES[fn](of[0], of[1], nan)
    if fn in ("snap", "snapped", "coded"):
        return Range(of[1].low, of[2].high, minus=True, whole=True)
    if fn == "mod" and of[0].whole and of[1].whole and of[1].low > 0 and not nan:
        return Range(0, of[1].high - 1, whole=True)
    return ANY


# Arithmetic -----------------------------------------------------------------------------------------------------------


def _add(a: Range, b: Range, same: bool, nan: bool) -> Range:
    opposite = (a.high == inf and b.low == -inf) or (a.low == -inf and b.high == inf)
    low = -inf if -inf in (a.low, b.low) else a.low + b.low
    high = inf if inf in (a.high, b.high) else a.high + b.high
    return Range(low, high, nan or (opposite and not same), a.minus and b.minus, a.whole and b.whole)


def _negated(a: Range) -> Range:
    return Range(-a.high, -a.low, a.nan, a.zero, a.whole)


def _sub(a: Range, b: Range, same: bool, nan: bool) -> Range:
    made = _add(a, _negated(b), False, nan)
    return replace(made, minus=a.minus and b.zero)


def _mul(a: Range, b: Range, same: bool, nan: bool) -> Range:
    whole = a.whole and b.whole
    if same:
        return Range(_times(a.least, a.least), _times(a.most, a.most), nan, whole=whole)
    ends = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    lost = (a.zero and not b.finite) or (b.zero and not a.finite)
    return Range(min(ends), max(ends), nan or lost, not (_positive(a) and _positive(b)), whole)


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


def _positive(a: Range) -> bool:
    """Whether all values are nonnegative and none is -0."""
    return a.low >= 0 and not (a.minus and a.zero)


def _div(a: Range, b: Range, same: bool, nan: bool) -> Range:
    lost = nan or (a.zero and b.zero) or (not a.finite and not b.finite)
    minus = not (_positive(a) and _positive(b))
    if not b.zero:
        ends = [_over(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return Range(min(ends), max(ends), lost, minus)
    if _positive(b) and b.high > 0:
        low = -inf if a.low < 0 else _over(a.low, b.high)
        return Range(low, inf if a.high > 0 or a.zero else _over(a.high, b.high), lost, minus)
    return Range(nan=lost, minus=minus)


def _over(x: float, y: float) -> float:
    if isinf(y):
        return 0.0 if not isinf(x) else 1.0 if (x > 0) == (y > 0) else -1.0
    return x / y


_ARITHMETIC: dict[str, Callable[[Range, Range, bool, bool], Range]] = {
    "add": _add, "sub": _sub, "mul": _mul, "rounded_mul": _mul, "div": _div,
    "quotient_to_round": _div,
}  # fmt: skip


def _power(x: Range, exponent: Scalar, e: Range, nan: bool) -> Range:
    if isinstance(exponent, Const) and exponent.value == 0.5:
        return replace(_root(x), minus=False)
    if isinstance(exponent, Const) and exponent.value % 2 == 0 and exponent.value > 0:
        return Range(0.0, inf if not x.finite else raised(x.most, exponent.value), nan, whole=x.whole)
    if x.low > 0 and x.finite and e.finite:
        ends = [raised(v, k) for v in (x.low, x.high) for k in (e.low, e.high)]
        return Range(max(0.0, min(ends) * (1 - 4 * _NEAR)), max(ends), nan)
    return Range(0.0, inf, True) if _positive(x) else ANY


def raised(x: float, e: float) -> float:
    """x ** e, rounded upwards, possibly to infinity."""
    try:
        return float(x**e) * (1 + _NEAR)
    except OverflowError:
        return inf


def _extreme(pick: Callable[[float, float], float], a: Range, b: Range, nan: bool, *, or_second: bool) -> Range:
    """The lesser or greater of two; `or_second`, the second operand where either is NaN."""
    low, high = pick(a.low, b.low), pick(a.high, b.high)
    whole, minus = a.whole and b.whole, a.minus or b.minus
    if or_second and nan:
        return Range(min(low, b.low), max(high, b.high), b.nan, minus, whole)
    return Range(low, high, nan, minus, whole)


_EXTREMES: Mapping[str, Callable[[Range, Range, bool], Range]] = {
    "min": partial(_extreme, min, or_second=False),
    "max": partial(_extreme, max, or_second=False),
    "min_or_second": partial(_extreme, min, or_second=True),
    "max_or_second": partial(_extreme, max, or_second=True),
}


# Functions of one number ----------------------------------------------------------------------------------------------


def _monotone(f: Callable[[float], float], low: float, high: float, near: float = _NEAR) -> Callable[[Range], Range]:
    """A monotonically increasing function with values in [low, high] and a bounded relative error."""

    def made(x: Range) -> Range:
        ends = f(x.low), f(x.high)
        wide = (ends[0] - abs(ends[0]) * near if ends[0] != low else low, ends[1] + abs(ends[1]) * near)
        signed = low < 0 and (x.minus or x.low < 0)
        return Range(max(low, wide[0]), min(high, wide[1]), x.nan, signed)

    return made


def _exp(x: float) -> float:
    try:
        return exp(x)
    except OverflowError:
        return inf


def _root(x: Range) -> Range:
    return Range(sqrt(max(x.low, 0.0)), inf if x.high == inf else sqrt(max(x.high, 0.0)), x.nan or x.low < 0, x.minus)


def _log(x: Range) -> Range:
    low = -inf if x.low <= 0 else log(x.low)
    high = inf if x.high == inf else -inf if x.high <= 0 else log(x.high)
    near = [abs(v) * _NEAR + _NEAR if not isinf(v) else 0.0 for v in (low, high)]
    found = Range(low if x.low == 1 else low - near[0], high + near[1], x.nan or x.low < 0, True)
    return replace(found, low=max(found.low, 0.0)) if x.low >= 1 else found


def _wave(x: Range) -> Range:
    return Range(-1.0 - _NEAR, 1.0 + _NEAR, x.nan or not x.finite, True)


def _rounded(f: Callable[[float], float]) -> Callable[[Range], Range]:
    def made(x: Range) -> Range:
        low, high = (v if isinf(v) else float(f(v)) for v in (x.low, x.high))
        return Range(low, high, x.nan, x.minus or x.low < 0, whole=True)

    return made


def _absolute(x: Range) -> Range:
    return Range(x.least, x.most, x.nan, whole=x.whole)


def _sign(x: Range) -> Range:
    return Range(
        -1 if x.low < 0 else 0 if x.zero else 1, 1 if x.high > 0 else 0 if x.zero else -1, x.nan, x.minus, True
    )


def converted(x: Range, dtype: DType) -> Range:
    """A cast: truncates to integers, wraps as in `wrapped`; the full range of integers from NaN."""
    if dtype.kind == "b":
        return Range(0 if x.zero else 1, 1 if x.high > 0 or x.low < 0 or x.nan else 0, whole=True)
    if dtype.floating:
        return x
    if x.nan or not x.finite:
        return ANY
    return Range(trunc(x.low), trunc(x.high), whole=True)


_UNARY: dict[str, Callable[[Range], Range]] = {
    "neg": _negated,
    "abs": _absolute,
    "sign": _sign,
    "floor": _rounded(floor),
    "ceil": _rounded(ceil),
    "round": _rounded(round),
    "sqrt": _root,
    "reciprocal": lambda x: _div(Range.number(1.0), x, False, x.nan),
    "exp": _monotone(_exp, 0.0, inf),
    "exp_or_zero": lambda x: replace(_monotone(_exp, 0.0, inf)(x), low=0.0),
    "log": _log,
    "erf": lambda x: Range(-1.0 if x.low < 0 else 0.0, 1.0 if x.high > 0 else 0.0, x.nan, x.minus or x.low < 0),
    "tanh": _monotone(tanh, -1.0, 1.0),
    "sigmoid": lambda x: Range(0.0, 1.0, x.nan),
    "sin": _wave,
    "cos": _wave,
    "cosh": lambda x: Range(1.0 - _NEAR, inf, x.nan),
    "atan": lambda x: Range(-pi / 2 - _NEAR, pi / 2 + _NEAR, x.nan, True),
}


# Choices --------------------------------------------------------------------------------------------------------------


def _selected(of: Sequence[Range]) -> Range:
    condition, one, other = of
    if condition.low > 0:
        return one
    return other if condition.high <= 0 else one.union(other)


def _compared(fn: str, of: Sequence[Range]) -> Range:
    a = of[0]
    if fn == "isnan":
        return _BOOL if a.nan else Range(0, 0, whole=True)
    if fn == "isinf":
        return Range(0, 0, whole=True) if a.finite else _BOOL
    if fn == "not":
        return Range(1 - a.high, 1 - a.low, whole=True)
    if len(of) < 2 or a.nan or of[1].nan:
        return _BOOL
    b = of[1] if "greater" not in fn else a
    a = a if "greater" not in fn else of[1]
    if fn in ("less", "greater"):
        return Range(1, 1, whole=True) if a.high < b.low else Range(0, 0, whole=True) if a.low >= b.high else _BOOL
    if fn in ("less_equal", "greater_equal"):
        return Range(1, 1, whole=True) if a.high <= b.low else Range(0, 0, whole=True) if a.low > b.high else _BOOL
    return _BOOL


__all__ = ["ANY", "Range", "applied", "converted", "raised", "wrapped"]
