"""Conditions of rewrite laws: named, printable, and able to say why they do not hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ops.rows import ROWS
from onnxfuse.rewrite.proofs.ranges import Ranges
from onnxfuse.rewrite.work import SMALL, Miss, Work

Check = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Condition:
    """A row of `CONDITIONS` about some names of a law."""

    name: str
    args: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.args)})"

    def check(self, work: Work, values: Mapping[str, str]) -> None:
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


def constant(work: Work, v: str) -> None:
    """v is known before the model runs."""
    if v not in work.constants:
        raise Miss(f"{v} is not constant")


def scalar(work: Work, v: str) -> None:
    """v is a constant all of whose elements are one finite number other than 0."""
    constant(work, v)
    value = work.number(v)
    if value is None or value == 0 or not np.isfinite(value):
        raise Miss(f"{v} is not one finite number other than 0")
    if work.constants[v].size != 1:
        raise Miss(f"{v} has more than one element")


def variable(work: Work, v: str) -> None:
    """v is known only when the model runs."""
    if v in work.constants:
        raise Miss(f"{v} is constant")


def floating(work: Work, v: str) -> None:
    """v holds real numbers."""
    if not work.type(v).dtype.floating:
        raise Miss(f"{v} is of type {work.type(v).dtype}")


def same_shape(work: Work, *values: str) -> None:
    """The values have one shape."""
    for v in values[1:]:
        if work.type(v).shape != work.type(values[0]).shape:
            raise Miss(f"{values[0]} is {work.type(values[0])!r}, {v} is {work.type(v)!r}")


def unshared(work: Work, v: str) -> None:
    """Only one node reads v, or v is small: a changed copy costs no memory."""
    if not work.single_use(v) and work.constants[v].size > SMALL:
        raise Miss(f"{v} is also used elsewhere")


def axes_alike(work: Work, v: str) -> None:
    """In this opset all reductions spell their axes alike (they changed with 13 for sums and 18 for the others)."""
    if 13 <= work.opset < 18:
        raise Miss(f"in opset {work.opset} some reductions take axes as an attribute, others as an input")


def bounded(work: Work, *values: str) -> None:
    """Nothing on either side of the law is NaN, infinite or so large or small that a product of two might be."""
    for v in values:
        moderate(Ranges(work, far=True), v, work.type(v).dtype)


def moderate(ranges: Ranges, v: str, dtype: DType, *, divides: bool = False) -> None:
    """Raise Miss where a value may be NaN or above the root of the largest number; `divides`: or below its inverse."""
    if not dtype.floating:
        raise Miss(f"{v} is of type {dtype}")
    limit = LARGEST_FACTOR[dtype.name]
    found = ranges.of(v)
    if found.nan or found.most > limit or (divides and found.least < 1 / limit):
        raise Miss(f"the range of {v} is {found}")


# A number of the type whose square, and the inverse of whose square, are normal numbers.
LARGEST_FACTOR = {"float16": 2.0**7, "bfloat16": 2.0**62, "float32": 2.0**62, "float64": 2.0**510}


def nonnegative(work: Work, v: str) -> None:
    """No element of v is below 0 (NaN may be)."""
    if Ranges(work).of(v).low < 0:
        raise Miss(f"{v} may be negative")


def unsigned(work: Work, v: str) -> None:
    """No element of v is below 0, or -0 (NaN may be)."""
    nonnegative(work, v)
    found = Ranges(work).of(v)
    if found.minus and found.zero:
        raise Miss(f"{v} may be -0")


def at_least(work: Work, v: str, bound: str) -> None:
    """No element of v is below one of the other value, which is never NaN."""
    least, most = Ranges(work).of(v), Ranges(work).of(bound)
    if most.nan or least.low < most.high:
        raise Miss(f"{v} may be below {bound}")


def at_most(work: Work, v: str, bound: str) -> None:
    """No element of v is above one of the other value, which is never NaN."""
    most, least = Ranges(work).of(v), Ranges(work).of(bound)
    if least.nan or most.high > least.low:
        raise Miss(f"{v} may be above {bound}")


def whole(work: Work, v: str) -> None:
    """No element of v has a fraction (NaN may be)."""
    if not Ranges(work).of(v).whole:
        raise Miss(f"{v} may have fractions")


def holds(work: Work, v: str) -> None:
    """Every element of v is true."""
    if Ranges(work, far=True).of(v).low <= 0:
        raise Miss(f"{v} may be false")


def fails(work: Work, v: str) -> None:
    """Every element of v is false."""
    if Ranges(work, far=True).of(v).high > 0:
        raise Miss(f"{v} may be true")


def uncoded(work: Work, v: str) -> None:
    """v is not decoded from integer codes: the runtime's own kernels of codes are chosen by what stands around them."""
    maker = work.node(v)
    if maker is not None and (row := ROWS.find(maker, work.opset)) is not None and row.codes:
        raise Miss(f"{v} is decoded")


def enlarges(work: Work, v: str) -> None:
    """v is one number of magnitude 1 or more: what it is multiplied with later leaves no range before."""
    scalar(work, v)
    if abs(work.number(v) or 0) < 1:
        raise Miss(f"{v} is a fraction")


def one_sided(work: Work, *values: str) -> None:
    """The values are all 2 or more, or all 1/2 or less: their logarithms have one sign and are not small."""
    found = [Ranges(work, far=True).of(v) for v in values]
    if not all(r.low >= 2 for r in found) and not all(r.high <= 0.5 for r in found):
        raise Miss(f"logarithms of {' and '.join(values)} may cancel, or be small")


CONDITIONS: dict[str, Check] = {
    c.__name__: c
    for c in (
        *(constant, scalar, variable, floating, same_shape, unshared, axes_alike, bounded, nonnegative, unsigned),
        *(at_least, at_most, whole, holds, fails, uncoded, enlarges, one_sided),
    )
}
