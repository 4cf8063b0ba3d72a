"""Contractions: sums of products of two factors, and the classification of their axes.

Free axes of both factors are batch axes (b), those of the right one only are columns (n), all others rows (m); ranges
are k (as in MLIR linalg's structured operations).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

from onnxfuse.ir.compose import free_axes
from onnxfuse.ir.index import Axis
from onnxfuse.ir.scalar import Apply, Reduce, Scalar, apply

After = tuple[str, Scalar]  # the function, mul or div, and what it brings to the sum


@dataclass(frozen=True, slots=True)
class Contraction:
    """For each element of `axes`: the sum over `ranges` of left * right."""

    axes: tuple[Axis, ...]
    ranges: tuple[Axis, ...]
    left: Scalar
    right: Scalar

    @property
    def batch(self) -> tuple[Axis, ...]:
        """Axes that both factors mention."""
        left, right = free_axes(self.left), free_axes(self.right)
        return tuple(a for a in self.axes if a in left and a in right)

    @property
    def columns(self) -> tuple[Axis, ...]:
        """Axes that only the right factor mentions."""
        left, right = free_axes(self.left), free_axes(self.right)
        return tuple(a for a in self.axes if a in right and a not in left)

    @property
    def rows(self) -> tuple[Axis, ...]:
        """Axes that the right factor does not mention."""
        right = free_axes(self.right)
        return tuple(a for a in self.axes if a not in right)

    @property
    def swapped(self) -> Contraction:
        """The same with its factors exchanged."""
        return replace(self, left=self.right, right=self.left)

    def weights_right(self, constant: Callable[[Scalar], bool]) -> Contraction:
        """The same with a constant factor on the right, where exactly one is constant."""
        return self.swapped if constant(self.left) and not constant(self.right) else self


def contraction_of(axes: tuple[Axis, ...], x: Reduce) -> Contraction | None:
    """A reduction over products, one for each element of `axes`, as a contraction; None for other reductions."""
    body = x.body[0]
    if x.combine != "sum" or not isinstance(body, Apply) or body.fn != "mul":
        return None
    return Contraction(axes, x.ranges, *body.args)


def scaled_contraction(
    axes: tuple[Axis, ...], x: Reduce, constant: Callable[[Scalar], bool] = lambda x: False
) -> tuple[Contraction, tuple[After, ...]] | None:
    """The same with factors that do not depend on the ranges moved out of the sum, to be applied afterwards.

    Of more than two, all but a single `constant` one are multiplied with each other first.
    """
    if x.combine != "sum":
        return None
    found, after = _scaled(x.body[0], frozenset(x.ranges))
    weights = [f for f in found if constant(f)]
    if len(found) > 2 and len(weights) == 1:
        found = [reduce(lambda a, b: apply("mul", a, b), (f for f in found if f is not weights[0])), *weights]
    return (Contraction(axes, x.ranges, *found), tuple(after)) if len(found) == 2 else None


def factors(x: Scalar) -> list[Scalar]:
    """The factors of a product, flattened; x alone where it is none."""
    return [f for a in x.args for f in factors(a)] if isinstance(x, Apply) and x.fn == "mul" else [x]


def _scaled(x: Scalar, ranges: frozenset[Axis]) -> tuple[list[Scalar], list[After]]:
    """x as a product: factors that depend on the ranges, and what multiplies or divides the sum afterwards."""
    if not free_axes(x) & ranges:
        return [], [("mul", x)]
    if isinstance(x, Apply) and x.fn == "mul":
        left, after_left = _scaled(x.args[0], ranges)
        right, after_right = _scaled(x.args[1], ranges)
        return left + right, after_left + after_right
    if isinstance(x, Apply) and x.fn == "div" and not free_axes(x.args[1]) & ranges:
        inner, after = _scaled(x.args[0], ranges)
        return inner, [*after, ("div", x.args[1])]
    return [x], []
