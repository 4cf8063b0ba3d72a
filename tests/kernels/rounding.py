"""The float64 result of a graph by its rows, and error bounds for correct kernels, element by element.

The bound is a running error analysis of first order (Wilkinson): each operation adds the rounding of its result to what
it makes of the errors of its operands. It is itself written as scalars, so that the rows' own evaluator computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import F64, I64, DType
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Load, Reduce, Scalar, apply, cast, const
from onnxfuse.ops.evaluate import meaning
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define, in_order, view_of

Array = np.ndarray[Any, Any]
Symbols = Mapping[str, int]

ERROR, EXACT = "%error", "%exact"  # beside the name of a tensor: how far it may be off, and zeros
SECOND_ORDER = 2.0  # what the analysis leaves out, and sums that are taken in another order
ULPS = 8.0  # roundings that one call of a transcendental function may cost
MOST_UNDECIDED = 0.2  # share of elements that may hang on a comparison of nearly equal numbers
NONE = Const(0.0, F64)
ANY = Const(float("inf"), F64)

MONOTONE = ("exp", "exp_or_zero", "log", "erf", "tanh", "sigmoid", "sqrt", "reciprocal")
STEPS = ("floor", "ceil", "round", "sign")
COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
LOGIC = ("and", "or", "xor", "not")


def reference(graph: Graph, arrays: Mapping[str, Array], symbols: Symbols) -> dict[str, tuple[Array, Array]]:
    """The outputs of a graph and their bounds; floating ones as float64 before the last rounding."""
    values: dict[str, Array] = {name: _wide_array(c.load()) for name, c in graph.constants.items()}
    values |= {name: _wide_array(a) for name, a in arrays.items()}
    for node in graph.nodes:
        found = define(ROWS, view_of(graph, node))
        for part in in_order(found) if not isinstance(found, Decision) else ():  # no row: a shape that nobody reads
            if part[0].recurrent:  # each of its values has an error, which is computed beside it
                values |= {d.name + ERROR: np.zeros(0) for d in part}
            exact = tuple(replace(d, value=wide(d.value)) for d in part)
            errors = [replace(d, name=d.name + ERROR, value=_Errors(values).of(d.value)) for d in part]
            bad = [d for d in errors if d.recurrent or d.value != NONE]
            values |= meaning((*exact, *bad), values, symbols, by_products=True)
    silent = {o: np.zeros(values[o].shape) for o in graph.outputs}
    return {o: (values[o], values.get(o + ERROR, silent[o])) for o in graph.outputs}


def check(got: Array, dtype: DType, want: Array, error: Array) -> float:
    """Assert that `got` has this type and lies within its bound; the largest share of the bound that is used."""
    assert got.dtype == dtype.numpy, f"{got.dtype} instead of {dtype}"
    assert got.shape == want.shape, f"shape {got.shape} instead of {want.shape}"
    undecided = np.isposinf(error) & np.isfinite(want)
    assert undecided.mean() <= MOST_UNDECIDED if error.size else True, "hardly anything can be compared"
    if not dtype.floating:
        wrong = (got.astype(np.float64) != want) & ~(np.abs(got.astype(np.float64) - want) <= np.nan_to_num(error))
        assert not wrong.any(), _worst(wrong, got, want)
        return 0.0
    info = np.finfo(dtype.numpy)
    least = 4 * float(info.smallest_subnormal) if dtype.bits < 32 else float(info.tiny)
    with np.errstate(all="ignore"):
        bound = SECOND_ORDER * (np.nan_to_num(error) + dtype.epsilon * np.abs(want)) + least
        rounded = want.astype(dtype.numpy)
        odd = ~np.isfinite(rounded) & ~undecided
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        assert same[odd].all(), _worst(odd & ~same, got, want)
        off = np.abs(got.astype(np.float64) - want)
        used = np.where(odd | undecided, 0.0, off / bound)
    assert (used <= 1).all(), f"{used.max():.3g} times the bound: " + _worst(~(used <= 1), got, want)
    return float(used.max(initial=0.0))


def _worst(wrong: Array, got: Array, want: Array) -> str:
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements; at {at} {got[at]!r} instead of {want[at]!r}"


def _wide_array(a: Array) -> Array:
    return a.astype(np.float64) if a.dtype.kind == "f" else a


def wide(x: Scalar) -> Scalar:
    """x with all real numbers in float64."""
    dtype = F64 if x.dtype.floating else x.dtype
    if isinstance(x, Const):
        return Const(x.value, dtype)
    if isinstance(x, FromIndex):
        return FromIndex(x.index, dtype)
    if isinstance(x, Load):
        return Load(x.source, x.index, dtype, x.guards, None if x.otherwise is None else wide(x.otherwise))
    if isinstance(x, Reduce):
        return Reduce(x.combine, x.ranges, tuple(map(wide, x.body)), dtype, x.slot)
    return Apply(x.fn, tuple(map(wide, x.args)), dtype)


def _number(x: Scalar) -> Scalar:
    """x as a float64 number, whatever it is."""
    return cast(wide(x), F64)


def _size(x: Scalar) -> Scalar:
    """The absolute value of x as a float64 number; of a product as a product, which is summed quickly."""
    if isinstance(x, Apply) and x.fn == "mul":
        return apply("mul", *map(_size, x.args))
    return apply("abs", _number(x))


def _sum(*parts: Scalar) -> Scalar:
    kept = [p for p in parts if p != NONE]
    if not kept:
        return NONE
    total = kept[0]
    for p in kept[1:]:
        total = apply("add", total, p)
    return total


def _most(parts: list[Scalar]) -> Scalar:
    kept = [p for p in parts if p != NONE]
    if not kept:
        return NONE
    total = kept[0]
    for p in kept[1:]:
        total = apply("max", total, p)
    return total


def _times(a: Scalar, b: Scalar) -> Scalar:
    return NONE if NONE in (a, b) else apply("mul", a, b)


def _rounding(x: Scalar, times: float = 1.0) -> Scalar:
    """The rounding of x to its own type."""
    if not x.dtype.floating:
        return NONE
    size = apply("abs", _number(x))
    return apply("select", apply("isinf", size), NONE, apply("mul", const(times * x.dtype.epsilon, F64), size))


def _of_integer(x: Scalar) -> Scalar:
    """The rounding of an integer to its type: none up to where the type has all integers."""
    if not x.dtype.floating:
        return NONE
    beyond = apply("greater", apply("abs", _number(x)), const(1 / x.dtype.epsilon, F64))
    return apply("select", beyond, _rounding(x), NONE)


class _Errors:
    """The error of scalars over tensors some of which have an error tensor beside them."""

    def __init__(self, values: dict[str, Array]) -> None:
        self.values = values

    def of(self, x: Scalar) -> Scalar:
        """How far x may be from what it is in float64; infinite where that cannot be said."""
        if isinstance(x, Const):
            return NONE
        if isinstance(x, FromIndex):
            return _of_integer(x)
        if isinstance(x, Load):
            return self._load(x)
        if isinstance(x, Reduce):
            return self._reduce(x)
        return self._apply(x, [self.of(a) for a in x.args])

    def _load(self, x: Load) -> Scalar:
        beyond = NONE if x.otherwise is None else self.of(x.otherwise)
        error = x.source + ERROR
        if error not in self.values:
            if not x.guards or beyond == NONE:
                return NONE
            error = x.source + EXACT  # inside; its rim is not
            self.values[error] = np.zeros(self.values[x.source].shape)
        return Load(error, x.index, F64, x.guards, beyond if x.guards else None)

    def _reduce(self, x: Reduce) -> Scalar:
        body = x.body[0]
        errors = [self.of(b) for b in x.body]
        over = Reduce("sum", x.ranges, (errors[0],), F64) if errors[0] != NONE else NONE
        if x.combine in ("max", "min"):
            return Reduce("max", x.ranges, (errors[0],), F64) if errors[0] != NONE else NONE
        if x.combine in ("argmax", "argmin") or not x.dtype.floating:
            assert set(errors) == {NONE}, f"{x.combine} of what has been rounded"
            return NONE
        value = _size(x.body[0])
        count = cast(FromIndex(product([r.extent for r in x.ranges]), I64), F64)
        if x.combine == "prod":
            sizes = [Reduce("prod", x.ranges, (v,), F64) for v in (_sum(value, errors[0]), value)]
            grown = apply("sub", *sizes) if errors[0] != NONE else NONE
            return _sum(grown, _times(count, _rounding(x)))
        # roundings of a sum of n terms grow as sqrt(n) of the sum of their sizes
        growth = apply("mul", const(x.dtype.epsilon, F64), apply("add", const(4.0, F64), apply("sqrt", count)))
        if isinstance(body, Apply) and body.fn == "mul" and all(self.of(a) == NONE for a in body.args):
            growth, over = apply("add", growth, const(body.dtype.epsilon, F64)), NONE  # each product is rounded too
        return _sum(over, _times(growth, Reduce("sum", x.ranges, (value,), F64)))

    def _apply(self, x: Apply, e: list[Scalar]) -> Scalar:
        exact = all(part == NONE for part in e)
        values = [_number(a) for a in x.args]
        if x.fn in COMPARISONS:
            return NONE if exact else _undecided(apply("sub", values[0], values[1]), _sum(*e))
        if x.fn in (*LOGIC, "min", "max", "neg", "abs"):
            return _most(e)
        if x.fn in ("isnan", "isinf"):
            return NONE
        if x.fn == "select":
            chosen = NONE if e[1] == e[2] == NONE else apply("select", wide(x.args[0]), e[1], e[2])
            apart = apply("abs", apply("sub", values[1], values[2]))
            return chosen if e[0] == NONE else _sum(chosen, apply("select", apply("greater", e[0], NONE), apart, NONE))
        if x.fn == "cast":
            return _cast(x, e[0])
        if x.fn in STEPS:
            return NONE if exact else _spread(x.fn, values[0], e[0])
        if x.fn == "snap":  # between integers, which are exact
            return NONE if e[0] == NONE else _spread("snap", values[0], e[0], *values[1:])
        return _sum(_carried(x.fn, values, e), _rounding(x, ULPS if _transcendental(x.fn) else 1.0))


def _transcendental(fn: str) -> bool:
    return fn not in ("add", "sub", "mul", "div", "sqrt", "mod", "fmod")


def _carried(fn: str, v: list[Scalar], e: list[Scalar]) -> Scalar:
    """What the errors of the operands become."""
    if all(part == NONE for part in e):
        return NONE
    size = [apply("abs", a) for a in v]
    if fn in ("add", "sub"):
        return _sum(*e)
    if fn == "mul":
        return _sum(_times(size[0], e[1]), _times(size[1], e[0]), _times(*e))
    if fn == "div":
        quotient = apply("div", size[0], size[1])
        return apply("div", _sum(e[0], _times(quotient, e[1])), size[1])
    if fn in MONOTONE:
        return _spread(fn, v[0], e[0])
    if fn in ("sin", "cos"):
        return e[0]
    if fn == "pow":
        assert e[1] == NONE, "an exponent that has been rounded"
        high, low = (apply("pow", apply(op, v[0], e[0]), v[1]) for op in ("add", "sub"))
        return apply("abs", apply("sub", high, low))
    return ANY


def _spread(fn: str, x: Scalar, e: Scalar, *rest: Scalar) -> Scalar:
    """How far a monotone function spreads the ends of x - e to x + e apart; what it has no value for counts as x."""
    at = [apply(fn, apply(op, x, e), *rest) for op in ("add", "sub")]
    middle = apply(fn, x, *rest)
    ends = [apply("select", apply("isnan", a), middle, a) for a in at]
    return apply("abs", apply("sub", *ends))


def _undecided(distance: Scalar, e: Scalar) -> Scalar:
    """Infinite where two numbers are so near that rounding decides how they compare."""
    near = apply("and", apply("less_equal", apply("abs", distance), e), apply("greater", e, NONE))
    return apply("select", near, ANY, NONE)


def _cast(x: Apply, e: Scalar) -> Scalar:
    source = x.args[0].dtype
    if x.dtype.kind == "b":
        return NONE if e == NONE else _undecided(_number(x.args[0]), e)
    if x.dtype.floating:
        if not source.floating:
            return _sum(e, _of_integer(x) if source.kind != "b" else NONE)
        return _sum(e, _rounding(x) if x.dtype.epsilon > source.epsilon else NONE)
    return e if e == NONE or not source.floating else _spread("floor", _number(x.args[0]), e)
