"""Recognises contractions from index maps: left and right operand, and the roles of the axes (batch, m, n, k).

Scales that do not depend on the reduction axes, and everything after the sum, form the epilogue (`finish`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, replace

from onnxfuse.ir.affine import bijective
from onnxfuse.ir.codes import MOST, Side, is_flat, scaled, sides_of
from onnxfuse.ir.compose import free_axes, replaced, walk
from onnxfuse.ir.contraction import Contraction, scaled_contraction
from onnxfuse.ir.dtype import F32, I8, I32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, flatten, product
from onnxfuse.ir.layout import Layout, Permute, Reshape, Step, code_panels, panels
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce, Scalar, apply, cast, variable
from onnxfuse.ops.spec import Definition

ACC = "%acc"
FEWEST, FEWEST_OF_BATCH = 2, 8  # columns below which a register tile computes too many unused ones
SHALLOW = 8  # terms of a sum below which a register tile does not pay for itself
FEWEST_OF_HEAD, LONG = 3, 16  # columns, and terms of a sum, of a head of attention; rows, and the others, of a long one


@dataclass(frozen=True, slots=True)
class Contracted:
    """A contraction for tiles: definition = finish(sum over ranges of left * right); `finish` reads the sum as %acc.

    Operands that are loads keep their storage dtype; they are multiplied as float32. With `zeros`, the zero points of
    both sides, the operands are quantized: the sum is the integer sum of (left - zero) * (right - zero). With
    `channels`, the left operand depends on the columns too: each has a window of its own (depthwise convolutions).
    """

    definition: Definition
    left: Scalar
    right: Scalar
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    ranges: tuple[Axis, ...]
    finish: Scalar
    zeros: tuple[Scalar, Scalar] | None = None
    channels: bool = False


def reductions(x: Scalar) -> list[Reduce]:
    """The distinct reductions in x, inner ones first."""
    return [n for n in walk(x) if isinstance(n, Reduce)]


def recognise(
    d: Definition, constants: Container[str], by_rows: Callable[[Scalar], Collection[Axis]] = lambda x: ()
) -> Contracted | None:
    """The contraction in a definition, or None when it has none (or more than one reduction).

    Of two factors that are not constant, the one that is made `by_rows` goes left.
    """
    found = reductions(d.value)
    if len(found) != 1:
        return None
    reduce = found[0]
    coded = sides_of(reduce)
    if coded is not None and any(side.codes.source in constants for side in coded):
        return _quantized(d, reduce, *coded, constants)
    scaled_sum = None
    if reduce.dtype == F32:
        scaled_sum = scaled_contraction(d.axes, reduce, lambda x: _is_constant(as_stored(x), constants))
    if scaled_sum is None:
        return None
    c, after = scaled_sum
    if any(not isinstance(f, (Load, Apply)) for f in (c.left, c.right)):
        return None
    left, right = _sides(d, as_stored(c.left), as_stored(c.right), constants, by_rows)
    total: Scalar = variable(ACC, F32)
    for fn, value in after:
        total = apply(fn, total, value)
    made = _contraction(d, reduce, left, right, total)
    return made if made is None or not made.channels else None


def _contraction(d: Definition, reduce: Reduce, left: Scalar, right: Scalar, total: Scalar) -> Contracted | None:
    c = Contraction(tuple(a for a in d.axes if a.extent != ONE), reduce.ranges, left, right)
    finish = replaced(d.value, reduce, total)
    if not c.columns:
        channels = len(c.batch) == 1 and bool(c.rows)
        return (
            Contracted(d, left, right, (), c.rows, c.batch, reduce.ranges, finish, channels=True) if channels else None
        )
    return Contracted(d, left, right, c.batch, c.rows, c.columns, reduce.ranges, finish)


def worth_tiles(c: Contracted, constants: Container[str]) -> bool:
    """Whether a register tile suits a contraction: several columns and a sum long enough to pay for a tile.

    Of two computed sides, as in attention, one is the width of a head, however small: nests would take 2 to 3 times as
    long where the other one and the rows are long.
    """
    rows, columns, depth = (product([a.extent for a in axes]).constant for axes in (c.rows, c.columns, c.ranges))
    long = all(n is None or n >= LONG for n in (rows, _larger(columns, depth)))
    if c.batch and long and not _is_constant(c.right, constants):
        return all(n is None or n >= FEWEST_OF_HEAD for n in (columns, depth))
    fewest = FEWEST_OF_BATCH if c.batch or c.channels else FEWEST
    return (columns is None or columns >= fewest) and (depth is None or depth >= SHALLOW)


def _larger(a: int | None, b: int | None) -> int | None:
    """The larger of two extents; None if one is not known."""
    return None if a is None or b is None else max(a, b)


def as_stored(x: Scalar) -> Scalar:
    """The load in a widened 16-bit load, with its storage dtype; any other value unchanged."""
    inner = x.args[0] if isinstance(x, Apply) and x.fn == "cast" and x.dtype == F32 else x
    return inner if isinstance(inner, Load) and inner.dtype.accumulator == F32 else x


def _quantized(d: Definition, reduce: Reduce, one: Side, two: Side, constants: Container[str]) -> Contracted | None:
    """A quantized contraction with a constant right side; right zero points are per column or per tensor."""
    if _sides(d, one.codes, two.codes, constants)[0] is not one.codes:
        one, two = two, one
    total = scaled(cast(variable(ACC, I32), reduce.dtype), one, two)
    made = _contraction(d, reduce, one.codes, two.codes, total)
    free = frozenset(a for a in d.axes if a.extent != ONE)
    if made is None or made.batch or two.codes.source not in constants or free_axes(one.zero) & free:
        return None
    if made.channels and (two.codes.dtype != I8 or two.zero != Const(0, I8) or free_axes(two.codes) & {*made.rows}):
        return None
    if not is_flat(two.zero, made.columns) or (product([r.extent for r in reduce.ranges]).constant or MOST) >= MOST:
        return None
    return replace(made, zeros=(one.zero, two.zero))


def _sides(
    d: Definition,
    one: Scalar,
    two: Scalar,
    constants: Container[str],
    by_rows: Callable[[Scalar], Collection[Axis]] = lambda x: (),
) -> tuple[Scalar, Scalar]:
    """Left and right operand: a constant goes right, else one that is made `by_rows` left, else the last axis decides.

    The only factor that depends on the result's last axis goes right.
    """
    if _is_constant(one, constants) != _is_constant(two, constants):
        return (two, one) if _is_constant(one, constants) else (one, two)
    rows = by_rows(one), by_rows(two)
    if any(rows) and not all(rows):
        return (one, two) if rows[0] else (two, one)
    last = next((a for a in reversed(d.axes) if a.extent != ONE), None)
    return (two, one) if last in free_axes(one) and last not in free_axes(two) else (one, two)


def _is_constant(x: Scalar, constants: Container[str]) -> bool:
    return isinstance(x, Load) and x.source in constants


def panel_layout(c: Contracted, shape: tuple[Index, ...], width: int, step: int) -> Layout | None:
    """The layout of a constant right side in panels of `width` columns, reduction axes in the order of the contraction.

    Batch axes come first. `step` consecutive k are interleaved; the depth must be a multiple of it. None if the
    constant is not read completely and exactly once, or has a symbolic shape.
    """
    steps = _matrices(c, shape)
    if steps is None:
        return None
    matrices, rows, columns = _sizes(c)
    return without_identities(Layout((*steps, *panels(rows, columns, width, step, matrices))), shape)


def quantized_layout(c: Contracted, shape: tuple[Index, ...], length: int | None, width: int) -> Layout | None:
    """As `panel_layout` for 8-bit integers: k in groups of four within each segment of `length`, then column sums."""
    steps = _matrices(c, shape)
    if steps is None or length is None or c.batch:
        return None
    _, rows, columns = _sizes(c)
    return without_identities(Layout((*steps, *code_panels(rows // length, length, columns, width))), shape)


def _sizes(c: Contracted) -> tuple[int, int, int]:
    """The constant numbers of matrices of a right side, of their rows and of their columns."""
    batch, k, n = (product([a.extent for a in part]).constant or 0 for part in (c.batch, c.ranges, c.columns))
    return batch, k, n


def _matrices(c: Contracted, shape: tuple[Index, ...]) -> tuple[Step, ...] | None:
    """Layout steps that turn a constant right side into k x n matrices, one below the other, for each batch.

    None where its indices do not allow that.
    """
    load = c.right
    if not isinstance(load, Load) or load.guards:
        return None
    axes = (*c.batch, *c.ranges, *c.columns)
    sizes = [a.extent.constant for a in axes]
    if any(e.constant is None for e in shape) or any(s is None for s in sizes):
        return None
    if not bijective(load.index, shape, axes):
        return None
    flat = flatten(load.index, shape)
    strides = [(coefficient(flat, a) or ZERO).constant or 0 for a in axes]
    order = sorted(range(len(axes)), key=lambda i: -strides[i])
    perm = tuple(order.index(i) for i in range(len(axes)))
    matrices, rows, columns = _sizes(c)
    return (
        Reshape(tuple(axes[i].extent for i in order)),
        Permute(perm),
        Reshape((Index.of(matrices * rows), Index.of(columns))),
    )


def without_identities(layout: Layout, shape: tuple[Index, ...]) -> Layout:
    """The layout without identity steps."""
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
