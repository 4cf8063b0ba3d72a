"""Minimal filtering (Winograd, Toom-Cook): m outputs of a filter of r taps with m + r - 1 products instead of m * r.

y = A^T ((G g) * (B^T d)) for m + r - 1 inputs d and a filter g: Winograd, Arithmetic Complexity of Computations (1980);
for images, once along each axis, Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016). The matrices
come from points at which polynomials are multiplied, as Toom and Cook did; the last point is infinity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.scalar import Scalar, apply, const
from onnxfuse.schedule.nests.sliding import TAPS

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Transform:
    """The matrices for so many `outputs` at a time; `size` is the number of inputs, and of products."""

    outputs: int
    inputs: tuple[Row, ...]  # B^T: size x size
    filters: tuple[Row, ...]  # G: size x taps
    results: tuple[Row, ...]  # A^T: outputs x size

    @property
    def size(self) -> int:
        """Inputs that one application reads, and products that it makes."""
        return len(self.inputs)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The consecutive rows of `filters` in groups that differ in signs only."""
        found: list[tuple[int, ...]] = []
        for k, row in enumerate(self.filters):
            if found and _differ_in_signs(row, self.filters[found[-1][0]]):
                found[-1] = (*found[-1], k)
            else:
                found.append((k,))
        return tuple(found)


def toom_cook(outputs: int, points: Sequence[Fraction | int]) -> Transform:
    """The transform that interpolates at these points and at infinity: of them are one less than inputs.

    >>> toom_cook(2, (0, 1, -1)).inputs[0]
    (1.0, 0.0, -1.0, 0.0)
    """
    at: list[Fraction] = [Fraction(p) for p in points]
    size = len(at) + 1
    assert size == outputs + TAPS - 1, "a point for each product"
    others = [[q for k, q in enumerate(at) if k != j] for j in range(size - 1)]
    scale = [_distances(p, rest) for p, rest in zip(at, others, strict=True)]
    last = [Fraction(k == TAPS - 1) for k in range(TAPS)]
    results = [[_power(p, i) for p in at] + [Fraction(i == outputs - 1)] for i in range(outputs)]
    filters = [*([_power(p, k) / abs(s) for k in range(TAPS)] for p, s in zip(at, scale, strict=True)), last]
    inputs = [_monic(roots, size) for roots in (*others, at)]
    for row, s in zip(inputs, scale, strict=False):
        row[:] = [-c for c in row] if s < 0 else row
    return Transform(outputs, _floats(inputs), _floats(filters), _floats(results))


def _power(x: Fraction, n: int) -> Fraction:
    return _distances(x, [Fraction(0)] * n)


def _distances(point: Fraction, others: Sequence[Fraction]) -> Fraction:
    """The product of the distances from other points."""
    total = Fraction(1)
    for q in others:
        total *= point - q
    return total


def _monic(roots: Sequence[Fraction], size: int) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, the constant one first."""
    made = [Fraction(1)]
    for root in roots:
        made = [a - root * b for a, b in zip([Fraction(0), *made], [*made, Fraction(0)], strict=True)]
    return made + [Fraction(0)] * (size - len(made))


def _floats(rows: Sequence[Sequence[Fraction]]) -> tuple[Row, ...]:
    return tuple(tuple(map(float, row)) for row in rows)


# Points in pairs of opposite signs halve the work, and those of a size near 1 keep errors small: with 3/4 and 3/2 they
# are half of those with the usual 1 and 2 (docs/decisions/0016). All coefficients of inputs and results are exact.
TWO = toom_cook(2, (0, 1, -1))
FOUR = toom_cook(4, (0, Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)))


def combined(rows: Sequence[Row], values: Sequence[Scalar]) -> list[Scalar]:
    """Sums of values times the coefficients of each row; rows that differ in signs only share subexpressions."""
    rows, values = _with_sums(rows, values)
    made: dict[int, Scalar] = {}
    for j, row in enumerate(rows):
        if j in made:
            continue
        twin = next((k for k in range(j + 1, len(rows)) if k not in made and _differ_in_signs(row, rows[k])), None)
        if twin is None:
            made[j] = summed(row, values)
            continue
        same = [a if a == b else 0.0 for a, b in zip(row, rows[twin], strict=True)]
        flipped = [a if a != b else 0.0 for a, b in zip(row, rows[twin], strict=True)]
        one, two = summed(same, values), summed(flipped, values)
        made[j], made[twin] = apply("add", one, two), apply("sub", one, two)
    return [made[j] for j in range(len(rows))]


def _with_sums(rows: Sequence[Row], values: Sequence[Scalar]) -> tuple[list[Row], list[Scalar]]:
    """The same sums, computed from the sum and difference of values whose columns differ in signs only."""
    columns, terms = [*zip(*rows, strict=True)], [*values]
    for j, k in combinations(range(len(columns)), 2):
        one, two = columns[j], columns[k]
        if _differ_in_signs(one, two):
            columns[j] = tuple(a if a == b else 0.0 for a, b in zip(one, two, strict=True))
            columns[k] = tuple(a if a != b else 0.0 for a, b in zip(one, two, strict=True))
            terms[j], terms[k] = apply("add", terms[j], terms[k]), apply("sub", terms[j], terms[k])
    return [*zip(*columns, strict=True)], terms


def _differ_in_signs(a: Row, b: Row) -> bool:
    flips = [x != y for x, y in zip(a, b, strict=True) if x]
    return [*map(abs, a)] == [*map(abs, b)] and any(flips) and not all(flips)


def summed(row: Sequence[float], values: Sequence[Scalar]) -> Scalar:
    """The sum of values times their coefficients, those with coefficient 1 first."""
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda term: term[0] != 1.0)
    total: Scalar | None = None
    for c, v in terms:
        part = v if abs(c) == 1.0 else apply("mul", v, const(c, F32))
        if c == -1.0:
            total = apply("neg", part) if total is None else apply("sub", total, part)
        else:
            total = part if total is None else apply("add", total, part)
    return total if total is not None else const(0.0, F32)
