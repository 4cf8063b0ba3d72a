"""Conditions of rewrite laws, which raise Miss with the reason where they do not hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ops.rows import ROWS
from onnxfuse.rewrite.mutable_graph import SMALL, Miss, MutableGraph
from onnxfuse.rewrite.proofs.ranges import Ranges

Check = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Condition:
    """A row of `CONDITIONS` about some names of a law."""

    name: str
    args: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.args)})"

    def check(self, work: MutableGraph, values: Mapping[str, str]) -> None:
        """Raise Miss with the reason when it does not hold."""
        CONDITIONS[self.name](work, *(values[a] for a in self.args))

    @staticmethod
    def all(text: str) -> tuple[Condition, ...]:
        """The conditions of a text.

        >>> Condition.all("constant(a) same_shape(x, y)")
        (constant(a), same_shape(x, y))
        """
        read = []
        for part in text.replace(")", ")\n").splitlines():
            if part.strip():
                call = ast.parse(part.strip(), mode="eval").body
                assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
                read.append(Condition(call.func.id, tuple(ast.unparse(a) for a in call.args)))
                assert call.func.id in CONDITIONS, call.func.id
        return tuple(read)


def constant(work: MutableGraph, v: str) -> None:
    """v is a constant."""
    if v not in work.constants:
        raise Miss(f"{v} is not a constant")


def scalar(work: MutableGraph, v: str) -> None:
    """v is a constant of one element, finite and not 0."""
    constant(work, v)
    value = work.number(v)
    if value is None or value == 0 or not np.isfinite(value):
        raise Miss(f"the constant {v} is not finite and other than 0")
    if work.constants[v].size != 1:
        raise Miss(f"{v} has more than one element")


def variable(work: MutableGraph, v: str) -> None:
    """v is not a constant."""
    if v in work.constants:
        raise Miss(f"{v} is a constant")


def floating(work: MutableGraph, v: str) -> None:
    """v is a floating-point tensor."""
    if not work.type(v).dtype.floating:
        raise Miss(f"{v} has type {work.type(v).dtype}, not a floating-point one")


def same_shape(work: MutableGraph, *values: str) -> None:
    """The values have equal shapes."""
    for v in values[1:]:
        if work.type(v).shape != work.type(values[0]).shape:
            raise Miss(f"the shapes of {values[0]} ({work.type(values[0])!r}) and {v} ({work.type(v)!r}) differ")


def unshared(work: MutableGraph, v: str) -> None:
    """v has one reader, or is small, so that a changed copy of it costs no memory."""
    if not work.single_use(v) and work.constants[v].size > SMALL:
        raise Miss(f"the constant {v} is large and has other readers")


def axes_alike(work: MutableGraph, v: str) -> None:
    """All reductions of the opset take their axes alike (an input since opset 13 for sums, since 18 for others)."""
    if 13 <= work.opset < 18:
        raise Miss(f"in opset {work.opset}, some reductions take axes as an attribute and others as an input")


def bounded(work: MutableGraph, *values: str) -> None:
    """No value on either side is NaN, infinite, or so large or small that products of two might overflow."""
    for v in values:
        moderate(Ranges(work, far=True), v, work.type(v).dtype)


def moderate(ranges: Ranges, v: str, dtype: DType, *, divides: bool = False) -> None:
    """Raise Miss where a value may be NaN or above LARGEST_FACTOR; with `divides`, also below its inverse."""
    if not dtype.floating:
        raise Miss(f"{v} has type {dtype}, not a floating-point one")
    limit = LARGEST_FACTOR[dtype.name]
    found = ranges.of(v)
    if found.nan or found.most > limit or (divides and found.least < 1 / limit):
        raise Miss(f"{v} is not proven to be moderate: its range is {found}")


# A number of the type whose square, and the inverse of whose square, are normal numbers.
LARGEST_FACTOR = {"float16": 2.0**7, "bfloat16": 2.0**62, "float32": 2.0**62, "float64": 2.0**510}


def nonnegative(work: MutableGraph, v: str) -> None:
    """v >= 0, or NaN."""
    if Ranges(work).of(v).low < 0:
        raise Miss(f"{v} is not proven to be nonnegative")


def unsigned(work: MutableGraph, v: str) -> None:
    """v > 0 or +0, or NaN."""
    nonnegative(work, v)
    found = Ranges(work).of(v)
    if found.minus and found.zero:
        raise Miss(f"{v} is not proven to differ from -0")


def at_least(work: MutableGraph, v: str, bound: str) -> None:
    """v >= every element of the other value, which is never NaN."""
    least, most = Ranges(work).of(v), Ranges(work).of(bound)
    if most.nan or least.low < most.high:
        raise Miss(f"{v} is not proven to be at least {bound}")


def at_most(work: MutableGraph, v: str, bound: str) -> None:
    """v <= every element of the other value, which is never NaN."""
    most, least = Ranges(work).of(v), Ranges(work).of(bound)
    if least.nan or most.high > least.low:
        raise Miss(f"{v} is not proven to be at most {bound}")


def integral(work: MutableGraph, v: str) -> None:
    """The elements of v are integers, infinite or NaN."""
    if not Ranges(work).of(v).whole:
        raise Miss(f"{v} is not proven to be integral")


def always_true(work: MutableGraph, v: str) -> None:
    """Every element of v is true."""
    if Ranges(work, far=True).of(v).low <= 0:
        raise Miss(f"{v} is not proven to be true everywhere")


def always_false(work: MutableGraph, v: str) -> None:
    """Every element of v is false."""
    if Ranges(work, far=True).of(v).high > 0:
        raise Miss(f"{v} is not proven to be false everywhere")


def not_dequantized(work: MutableGraph, v: str) -> None:
    """v is not dequantized: the runtime chooses its quantized kernels by the operators around them."""
    maker = work.node(v)
    if maker is not None and (row := ROWS.find(maker, work.opset)) is not None and row.codes:
        raise Miss(f"{v} is dequantized, and the runtime may fuse that into a quantized operator")


def magnitude_at_least_one(work: MutableGraph, v: str) -> None:
    """v is a constant scalar with |v| >= 1, so that multiplying later does not overflow earlier."""
    scalar(work, v)
    if abs(work.number(v) or 0) < 1:
        raise Miss(f"the magnitude of {v} is below 1")


def one_sided(work: MutableGraph, *values: str) -> None:
    """All values are >= 2, or all are <= 1/2: their logarithms have the same sign and are not small."""
    found = [Ranges(work, far=True).of(v) for v in values]
    if not all(r.low >= 2 for r in found) and not all(r.high <= 0.5 for r in found):
        raise Miss(f"the logarithms of {' and '.join(values)} are not proven to have one sign and not to be small")


CONDITIONS: dict[str, Check] = {
    c.__name__: c
    for c in (
        *(constant, scalar, variable, floating, same_shape, unshared, axes_alike, bounded, nonnegative, unsigned),
        *(at_least, at_most, integral, always_true, always_false, not_dequantized, magnitude_at_least_one, one_sided),
    )
}
