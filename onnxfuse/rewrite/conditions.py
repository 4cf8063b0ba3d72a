"""Conditions of rewrite laws: named, printable, and able to say why they do not hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from onnxfuse.ir.scalar import Load
from onnxfuse.ir.smallest import smallest
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
        raise Miss(f"{v} holds {work.type(v).dtype}")


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
        raise Miss(f"opset {work.opset} spells the axes of reductions in two ways")


def bounded(work: Work, *values: str) -> None:
    """No product, sum or inverse of the values leaves the range or the digits of their type. Never proven."""
    raise Miss(f"the range of {' and '.join(values)} is not known")


_DEPTH = 8  # nodes that are looked back over


def nonnegative(work: Work, v: str) -> None:
    """No element of v is below 0 (NaN may be)."""
    if not _nonnegative(work, v, _DEPTH):
        raise Miss(f"{v} may be negative")


def _nonnegative(work: Work, v: str, depth: int) -> bool:
    """Whether no element is below 0, by the values of a constant, or by what the row of the node that makes v says."""
    found = work.constants.get(v)
    if found is not None:
        return found.dtype.kind in "fiub" and found.size <= 64 * SMALL and not bool((found.load() < 0).any())
    at = work.maker.get(v)
    if at is None or not work.nodes[at].standard or depth == 0:
        return False
    try:
        made = {d.name: d.value for d in work.definitions(at)}
    except Miss:
        return False

    def of(load: Load) -> float:
        if load.source in made:
            return smallest(made[load.source], of)
        return 0.0 if _nonnegative(work, load.source, depth - 1) else -inf

    return v in made and smallest(made[v], of) >= 0


CONDITIONS: dict[str, Check] = {
    c.__name__: c
    for c in (constant, scalar, variable, floating, same_shape, unshared, axes_alike, bounded, nonnegative)
}
