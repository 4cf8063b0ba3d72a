"""Fractions of extents, as in floating-point shape arithmetic before the result is rounded to an integer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, isqrt
from typing import Any

import numpy as np

from onnxfuse.ir.index import Index, floor_div


@dataclass(frozen=True, slots=True)
class ExtentFraction:
    """The exact fraction num / den."""

    num: Index
    den: int


def ratio_of(e: Index | ExtentFraction | Any) -> ExtentFraction | None:
    """An integer, ratio or NumPy scalar as a ratio; None if its denominator would be large."""
    if isinstance(e, (Index, ExtentFraction)):
        return e if isinstance(e, ExtentFraction) else ExtentFraction(e, 1)
    exact = Fraction(float(e)) if isfinite(e) else None
    if exact is None or exact.denominator > _LONGEST:
        return None
    return ExtentFraction(Index.of(exact.numerator), exact.denominator)


def _plus(a: ExtentFraction, b: ExtentFraction) -> ExtentFraction:
    return ExtentFraction(a.num * b.den + b.num * a.den, a.den * b.den)


def _over(a: ExtentFraction, b: ExtentFraction) -> ExtentFraction | None:
    n = b.num.constant
    return ExtentFraction(a.num * b.den, a.den * n) if n is not None and n > 0 else None


def _floor(a: ExtentFraction) -> ExtentFraction:
    return ExtentFraction(floor_div(a.num, Index.of(a.den)), 1)


def _minus(a: ExtentFraction) -> ExtentFraction:
    return ExtentFraction(-a.num, a.den)


_LONGEST = 1 << 12  # the largest denominator of a number that extents are multiplied by
RATIONAL: dict[str, Callable[..., ExtentFraction | None]] = {
    "cast": lambda a: a,
    "add": _plus,
    "sub": lambda a, b: _plus(a, _minus(b)),
    "mul": lambda a, b: ExtentFraction(a.num * b.num, a.den * b.den),
    "div": _over,
    "neg": _minus,
    "floor": _floor,
    "ceil": lambda a: _minus(_floor(_minus(a))),
}


def whole_numbers(name: str, array: np.ndarray[Any, Any]) -> dict[str, tuple[Index, ...]]:
    """The elements of a value of rank 0 or 1 as integers, if all are floating-point numbers that represent one."""
    given = array.reshape(-1)
    sure = array.ndim <= 1 and all(isinstance(e, np.floating) and _is_whole(float(e)) for e in given)
    return {name: tuple(Index.of(int(e)) for e in given)} if sure and given.size else {}


def _is_whole(x: float) -> bool:
    """Whether a number is an integer that float32 distinguishes from its neighbours, and not zero with a sign."""
    return x.is_integer() and abs(x) < 1 << 24 and (x != 0 or not np.signbit(x))


def power(x: float, y: float) -> float | None:
    """x ** y for integral x, and y = 1/2 or integral, if the result is an integer below 2^24, hence exact; or None."""
    if not isfinite(x) or x != int(x):
        return None
    base, whole = int(x), None
    if y == 0.5 and base >= 0 and isqrt(base) ** 2 == base:
        whole = isqrt(base)
    elif 0 <= y <= 24 and y == int(y):
        whole = base ** int(y)
    return float(whole) if whole is not None and abs(whole) < 1 << 24 else None
