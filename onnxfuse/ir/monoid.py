"""The table of monoids of reductions: identity elements and combining functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.scalar import Const, Scalar, apply, number


@dataclass(frozen=True, slots=True)
class Monoid:
    """A monoid over tuples: the identity of each slot, and how two partial results are combined.

    `extreme`: its first slot is one of the elements, the greatest ("max") or least ("min"). `position`: its second slot
    is the index of that element. `ignores_nan`: it may leave out elements that are not numbers.
    """

    name: str
    init: Callable[[DType], tuple[Scalar, ...]]
    merge: Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], tuple[Scalar, ...]]
    numpy: Callable[..., Any] | None = None
    extreme: Literal["", "min", "max"] = ""
    position: bool = False
    ignores_nan: bool = False


def _lowest(t: DType) -> Const:
    return Const(float("-inf") if t.floating else False if t.kind == "b" else int(np.iinfo(t.numpy).min), t)


def _highest(t: DType) -> Const:
    return Const(float("inf") if t.floating else True if t.kind == "b" else int(np.iinfo(t.numpy).max), t)


def _binary(fn: str) -> Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], tuple[Scalar, ...]]:
    return lambda a, b: (apply(fn, a[0], b[0]),)


def _arg(better: str) -> Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], tuple[Scalar, ...]]:
    def merge(a: tuple[Scalar, ...], b: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
        take = apply(better, b[0], a[0])  # the left operand has the smaller indices: of equal elements the first wins
        return apply("select", take, b[0], a[0]), apply("select", take, b[1], a[1])

    return merge


MONOIDS: dict[str, Monoid] = {
    m.name: m
    for m in (
        Monoid("sum", lambda t: (number(0, t),), _binary("add"), np.sum),
        Monoid("prod", lambda t: (number(1, t),), _binary("mul"), np.prod),
        Monoid("max", lambda t: (_lowest(t),), _binary("max"), np.max, "max"),
        Monoid("maxnum", lambda t: (_lowest(t),), _binary("max"), np.max, "max", ignores_nan=True),
        Monoid("min", lambda t: (_highest(t),), _binary("min"), np.min, "min"),
        Monoid("argmax", lambda t: (_lowest(t), Const(0, I64)), _arg("greater"), None, "max", position=True),
        Monoid("argmin", lambda t: (_highest(t), Const(0, I64)), _arg("less"), None, "min", position=True),
    )
}


def greatest_of(combine: str) -> bool:
    """Whether a reduction gives the greatest element alone."""
    return MONOIDS[combine].extreme == "max" and not MONOIDS[combine].position
