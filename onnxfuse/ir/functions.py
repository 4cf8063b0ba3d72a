"""The table of scalar functions: meaning in NumPy, algebra and cost, one row each; and which types they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BOOL, DType


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function. `result`: "same" as its arguments, or "bool". `cost` in vector operations per vector.

    `laws`: c commutative, a associative, i idempotent, f(x, x) = x. `unit`: f(x, unit) = x. `zero` keeps its sign.
    """

    name: str
    arity: int
    numpy: Callable[..., Any]
    cost: float = 1.0
    result: str = "same"
    laws: str = ""
    unit: float | None = None


def _erf(x: Any) -> Any:
    return np.vectorize(erf, otypes=[np.float64])(x)


def _div(a: Any, b: Any) -> Any:
    """ONNX Div: integers are divided with truncation towards zero."""
    a, b = np.asarray(a), np.asarray(b)
    if np.issubdtype(a.dtype, np.floating):
        return a / b
    safe = np.where(b == 0, 1, b)
    return (np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))).astype(a.dtype)


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _snap(x: Any, low: Any, high: Any) -> Any:
    """Rounded half to even and clamped to [low, high], which are integers; low for NaN."""
    return np.minimum(np.fmax(np.round(x), low), high)


def _coded(x: Any, low: Any, high: Any, zero: Any) -> Any:
    """Rounded half to even, moved by the zero point and clamped to [low, high]; low for NaN."""
    return np.minimum(np.fmax(np.round(x) + zero, low), high)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once: products of float32 are exact in float64."""
    wide = np.multiply(a, b, dtype=np.float64) + c
    return wide.astype(np.asarray(a).dtype)


LEAST_POWER = -87  # below which `exp_or_zero` is 0: what follows would be subnormal

# Functions that kernels ask libm for, element by element, and what NumPy calls them.
LIBM = {
    **{f: f for f in ("tan", "sinh", "cosh")},
    **{f: "arc" + f[1:] for f in ("asin", "acos", "atan", "asinh", "acosh", "atanh")},
}

FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, np.add, laws="ca", unit=0.0),
        Function("sub", 2, np.subtract, unit=0.0),
        Function("mul", 2, np.multiply, laws="ca", unit=1.0),
        Function("rounded_mul", 2, np.multiply, laws="c", unit=1.0),  # never contracted to a fused multiply-add
        Function("div", 2, _div, 4.0, unit=1.0),
        Function("quotient_to_round", 2, np.divide, 4.0),  # by what all lanes share; about right where it saturates
        Function("mod", 2, np.mod, 8.0),
        Function("fmod", 2, np.fmod, 8.0),
        Function("min", 2, np.minimum, laws="cai"),
        Function("max", 2, np.maximum, laws="cai"),
        Function("min_or_second", 2, lambda a, b: np.where(a < b, a, b)),  # the second operand where either is NaN
        Function("max_or_second", 2, lambda a, b: np.where(a > b, a, b)),
        Function("pow", 2, np.power, 40.0, unit=1.0),
        Function("neg", 1, np.negative),
        Function("abs", 1, np.abs),
        Function("sign", 1, np.sign, 2.0),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("round", 1, np.round),
        Function("snap", 3, _snap, 3.0),
        Function("snapped", 3, _snap, 4.0),  # as an integer
        Function("coded", 4, _coded, 5.0),  # as an integer of 8 bits, whose ends the limits are
        Function("fma", 3, _fma),
        Function("sqrt", 1, np.sqrt, 6.0),
        Function("reciprocal", 1, lambda x: 1.0 / x, 4.0),
        Function("exp", 1, np.exp, 14.0),
        Function("exp_or_zero", 1, lambda x: np.where(x < LEAST_POWER, 0, np.exp(x)).astype(np.asarray(x).dtype), 12.0),
        Function("log", 1, np.log, 18.0),
        Function("erf", 1, _erf, 18.0),
        Function("tanh", 1, np.tanh, 18.0),
        Function("sigmoid", 1, _sigmoid, 18.0),
        Function("sin", 1, np.sin, 20.0),
        Function("cos", 1, np.cos, 20.0),
        *(Function(f, 1, getattr(np, name), 60.0) for f, name in LIBM.items()),
        Function("bit_and", 2, np.bitwise_and, laws="cai"),
        Function("bit_or", 2, np.bitwise_or, laws="cai"),
        Function("bit_xor", 2, np.bitwise_xor, laws="ca"),
        Function("bit_not", 1, np.invert),
        Function("shift_left", 2, np.left_shift, 2.0),
        Function("shift_right", 2, np.right_shift, 2.0),
        Function("equal", 2, np.equal, result="bool", laws="c"),
        Function("less", 2, np.less, result="bool"),
        Function("less_equal", 2, np.less_equal, result="bool"),
        Function("greater", 2, np.greater, result="bool"),
        Function("greater_equal", 2, np.greater_equal, result="bool"),
        Function("and", 2, np.logical_and, result="bool", laws="cai"),
        Function("or", 2, np.logical_or, result="bool", laws="cai"),
        Function("xor", 2, np.logical_xor, result="bool", laws="ca"),
        Function("not", 1, np.logical_not, result="bool"),
        Function("isnan", 1, np.isnan, result="bool"),
        Function("isinf", 1, np.isinf, result="bool"),
        Function("select", 3, np.where),
        Function("cast", 1, lambda x: x),
    )
}

LOGICAL = ("and", "or", "xor", "not")  # functions of truth values
FLOATING = ("fma", "snap")  # functions of floating-point numbers; isnan and isinf of integers are false
INTEGERS = ("snapped", "coded")  # functions of floating-point numbers that give integers


def converts(value: DType, element: DType) -> bool:
    """Whether a store, a pack or a select may convert: 16-bit floats to float32, or float32 rounded to these."""
    return value.accumulator == element.accumulator


def fits(fn: str, taken: Sequence[DType], made: DType) -> bool:
    """Whether a function of the table takes operands of these types and gives that one."""
    if fn == "cast":
        return True
    if fn == "select":
        return taken[0] == BOOL and converts(taken[1], made) and converts(taken[2], made)
    if fn == "coded":  # its zero point is an integer
        *taken, zero = taken
        if zero.kind not in "iu":
            return False
    if any(t != taken[0] for t in taken) or (fn in FLOATING and not taken[0].floating):
        return False
    if FUNCTIONS[fn].result == "bool":
        return made == BOOL and (fn not in LOGICAL or taken[0] == BOOL)
    if fn in INTEGERS:
        return taken[0].floating and made.kind in "iu"
    return made == taken[0]
