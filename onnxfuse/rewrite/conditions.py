"""Conditions of rewrite laws: named, printable, and able to say why they do not hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.graph import Node
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


_POSITIVE = {"Exp", "Sigmoid", "Softmax", "Softplus"}
_NONNEGATIVE = _POSITIVE | {"Relu", "Abs", "Sqrt", "ReduceL1", "ReduceL2", "ReduceSumSquare"}
_MOVES = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "Identity", "Split", "Gather"}
_POOLS = {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"}
_KEEPS = _MOVES | _POOLS
_OF_BOTH = {"Add", "Mul", "Div", "Min", "Concat", "Sum", "Mean"}


def nonnegative(work: Work, v: str) -> None:
    """No element of v is below 0 (NaN may be)."""
    if not _nonnegative(work, v, 8):
        raise Miss(f"{v} may be negative")


def _nonnegative(work: Work, v: str, depth: int) -> bool:
    found = work.constants.get(v)
    if found is not None:
        return found.dtype.kind in "fiub" and found.size <= 64 * SMALL and not bool((found.load() < 0).any())
    node = work.node(v)
    if node is None or not node.standard or depth == 0:
        return False
    if node.op in _NONNEGATIVE:
        return True
    if node.op in ("Mul", "Pow") and _is_square(work, node):
        return True
    if node.op in _KEEPS:
        return _nonnegative(work, node.inputs[0], depth - 1)
    if node.op in _OF_BOTH:
        return all(_nonnegative(work, i, depth - 1) for i in node.inputs)
    if node.op == "Max":
        return any(_nonnegative(work, i, depth - 1) for i in node.inputs)
    if node.op == "Clip" and len(node.inputs) > 1 and node.inputs[1]:
        return _nonnegative(work, node.inputs[1], 1)
    return False


def _is_square(work: Work, node: Node) -> bool:
    if node.op == "Mul":
        return node.inputs[0] == node.inputs[1]
    exponent = work.number(node.inputs[1])
    return exponent is not None and exponent % 2 == 0


CONDITIONS: dict[str, Check] = {
    c.__name__: c
    for c in (constant, scalar, variable, floating, same_shape, unshared, axes_alike, bounded, nonnegative)
}
