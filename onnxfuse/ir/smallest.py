"""The least value that a scalar can have, as far as its functions tell; of NaN nothing is said."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from onnxfuse.ir.index import lower, nonnegative
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Load, Reduce, Scalar

_NEVER_NEGATIVE = ("abs", "sqrt", "exp", "exp_or_zero", "sigmoid", "cosh")
_KEEP_SIGN = ("mul", "div", "pow", "reciprocal", "erf", "tanh", "sign", "floor", "ceil", "round")


def smallest(x: Scalar, of: Callable[[Load], float]) -> float:
    """A bound from below of x, given those of what it loads; -inf where there is none.

    Rounding keeps the order of numbers, so that a bound of 0 or 1 holds for what is computed too. Sums and products of
    signed integers wrap around, and have none.

    >>> from onnxfuse.ir.dtype import F32
    >>> from onnxfuse.ir.scalar import apply, const
    >>> smallest(apply("exp", Load("x", (), F32)), lambda load: -inf)
    0.0
    """
    found: dict[Scalar, float] = {}

    def bound(node: Scalar) -> float:
        if node not in found:
            found[node] = max(0.0 if node.dtype.kind in "ub" else -inf, _bound(node, bound, of))
        return found[node]

    return bound(x)


def _bound(x: Scalar, bound: Callable[[Scalar], float], of: Callable[[Load], float]) -> float:
    if isinstance(x, Const):
        return float(x.value) if x.value == x.value else -inf
    if isinstance(x, Load):
        return of(x) if x.otherwise is None else min(of(x), bound(x.otherwise))
    if isinstance(x, FromIndex):
        low = lower(x.index)
        return 0.0 if low is not None and nonnegative(low) else -inf
    if isinstance(x, Reduce):
        return _reduced(x, bound)
    return _applied(x, bound)


def _reduced(x: Reduce, bound: Callable[[Scalar], float]) -> float:
    if x.combine in ("max", "peak", "min"):
        return bound(x.body[0])
    if x.combine in ("sum", "prod") and x.dtype.floating and bound(x.body[0]) >= 0:
        return 0.0
    return 0.0 if x.combine.startswith("arg") and x.slot == 1 else -inf


def _applied(x: Apply, bound: Callable[[Scalar], float]) -> float:
    lows = [bound(a) for a in x.args]
    match x.fn:
        case "max":
            return max(lows)
        case "min":
            return min(lows)
        case "select":
            return min(lows[1:])
        case "cast":
            return lows[0] if x.dtype.floating else -inf
    if not x.dtype.floating:
        return -inf
    if x.fn == "add":
        return sum(lows)
    square = (x.fn == "mul" and x.args[0] == x.args[1]) or (x.fn == "pow" and _even(x.args[1]))
    if square or x.fn in _NEVER_NEGATIVE or (x.fn == "log" and lows[0] >= 1):
        return 0.0
    return 0.0 if min(lows) >= 0 and x.fn in _KEEP_SIGN else -inf


def _even(exponent: Scalar) -> bool:
    return isinstance(exponent, Const) and exponent.value % 2 == 0
