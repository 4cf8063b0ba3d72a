"""Contractions recognised from index maps: which factor is the left side, which the right, and which axes are what.

A reduction is a contraction when it sums a product of two factors. Free axes that only the left factor mentions are
rows, those of the right alone columns, those of both batch (as in MLIR linalg's structured operations).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from onnxfuse.ir.affine import bijective
from onnxfuse.ir.compose import free_axes, loads, rebuild, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, flatten, product
from onnxfuse.ir.layout import Layout, Permute, Reshape, panels
from onnxfuse.ir.scalar import Apply, Load, Reduce, Scalar, apply
from onnxfuse.ops.spec import Definition

ACC = "%acc"


@dataclass(frozen=True, slots=True)
class Contraction:
    """definition = finish(sum over ranges of left * right); `finish` reads the sum as the variable %acc.

    Operands that are loads have the element type that they have in memory; they are multiplied as float32.
    """

    definition: Definition
    left: Scalar
    right: Scalar
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    ranges: tuple[Axis, ...]
    finish: Scalar


def reductions(x: Scalar) -> list[Reduce]:
    """The distinct reductions in x, inner ones first."""
    return [n for n in walk(x) if isinstance(n, Reduce)]


def _factors(x: Scalar, ranges: frozenset[Axis]) -> tuple[list[Scalar], list[tuple[str, Scalar]]]:
    """x as a product: factors that depend on the ranges, and what multiplies or divides the sum afterwards."""
    if not free_axes(x) & ranges:
        return [], [("mul", x)]
    if isinstance(x, Apply) and x.fn == "mul":
        left, after_left = _factors(x.args[0], ranges)
        right, after_right = _factors(x.args[1], ranges)
        return left + right, after_left + after_right
    if isinstance(x, Apply) and x.fn == "div" and not free_axes(x.args[1]) & ranges:
        inner, after = _factors(x.args[0], ranges)
        return inner, [*after, ("div", x.args[1])]
    return [x], []


def recognise(d: Definition, constants: Container[str]) -> Contraction | None:
    """The contraction in a definition, or None when it has none (or more than one reduction)."""
    found = reductions(d.value)
    if len(found) != 1 or found[0].combine != "sum" or found[0].dtype != F32:
        return None
    reduce = found[0]
    factors, after = _factors(reduce.body[0], frozenset(reduce.ranges))
    if len(factors) != 2 or any(not isinstance(f, (Load, Apply)) for f in factors):
        return None
    left, right = _sides(d, as_held(factors[0]), as_held(factors[1]), constants)
    mine, other = free_axes(left), free_axes(right)
    free = [a for a in d.axes if a.extent != ONE]
    batch = tuple(a for a in free if a in mine and a in other)
    columns = tuple(a for a in free if a in other and a not in mine)
    rows = tuple(a for a in free if a not in other)
    if not columns:
        return None
    total: Scalar = Load(ACC, (), F32)
    for fn, value in after:
        total = apply(fn, total, value)
    finish = rebuild(d.value, lambda n: total if n == reduce else None, lambda i: i)
    return Contraction(d, left, right, batch, rows, columns, reduce.ranges, finish)


def as_held(x: Scalar) -> Scalar:
    """A load of 16-bit numbers that is only widened as the load itself, anything else as it is."""
    inner = x.args[0] if isinstance(x, Apply) and x.fn == "cast" and x.dtype == F32 else x
    return inner if isinstance(inner, Load) and inner.dtype.accumulator == F32 else x


def _sides(d: Definition, one: Scalar, two: Scalar, constants: Container[str]) -> tuple[Scalar, Scalar]:
    """Left and right: a constant goes right, else the factor that mentions the last axis of the result alone."""

    def is_constant(x: Scalar) -> bool:
        return isinstance(x, Load) and x.source in constants

    if is_constant(one) != is_constant(two):
        return (two, one) if is_constant(one) else (one, two)
    last = next((a for a in reversed(d.axes) if a.extent != ONE), None)
    return (two, one) if last in free_axes(one) and last not in free_axes(two) else (one, two)


def panel_layout(c: Contraction, shape: tuple[Index, ...], width: int, step: int) -> Layout | None:
    """The layout that stores a constant right side as panels of `width` columns, ranges in order of the contraction.

    `step` of them lie side by side: the depth must be a multiple of it.

    None when the constant is not read whole and exactly once, or its shape has a symbol.
    """
    load = c.right
    if not isinstance(load, Load) or load.guards or c.batch:
        return None
    axes = (*c.ranges, *c.columns)
    sizes = [a.extent.constant for a in axes]
    if any(e.constant is None for e in shape) or any(s is None for s in sizes):
        return None
    if not bijective(load.index, shape, axes):
        return None
    flat = flatten(load.index, shape)
    strides = [(coefficient(flat, a) or ZERO).constant or 0 for a in axes]
    order = sorted(range(len(axes)), key=lambda i: -strides[i])
    perm = tuple(order.index(i) for i in range(len(axes)))
    rows, columns = (product([a.extent for a in part]).constant or 0 for part in (c.ranges, c.columns))
    steps = (
        Reshape(tuple(axes[i].extent for i in order)),
        Permute(perm),
        Reshape((Index.of(rows), Index.of(columns))),
    )
    return tidy(Layout((*steps, *panels(rows, columns, width, step))), shape)


def tidy(layout: Layout, shape: tuple[Index, ...]) -> Layout:
    """The layout without steps that change nothing."""
    steps = []
    for step in layout.steps:
        after = Layout((step,)).shape(shape)
        idle = (
            step.shape == shape
            if isinstance(step, Reshape)
            else isinstance(step, Permute) and step.perm == tuple(range(len(shape)))
        )
        if not idle:
            steps.append(step)
        shape = after
    return Layout(tuple(steps))


def operand_sources(x: Scalar) -> frozenset[str]:
    """Tensors that an operand loads."""
    return frozenset(n.source for n in loads(x))
