"""Rows of reductions over whole axes, and of scans, which are prefix reductions (see `lower/scans.py`)."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import I64
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import FromIndex, Guard, Reduce, Scalar, apply, cast
from onnxfuse.ops.movement import axes_of_node
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Lift, Stages, logarithm, mean_of, root, square, total, wide


def reduced_axes(view: View, since: int, rank: int) -> tuple[int, ...]:
    """The axes that a Reduce* reduces: the named ones, else all, or none with noop_with_empty_axes."""
    named = axes_of_node(view, since, rank)
    return named or (() if view.attr("noop_with_empty_axes", 0) == 1 else tuple(range(rank)))


def reduce_row(
    op: str, combine: str, lift: Lift | None, finish: Callable[[Scalar, Index], Scalar] | None, since: int
) -> Row:
    """A Reduce* operator: `lift` each element, combine, `finish` with their number. Axes are an input from `since`."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.shape(0)
        named = reduced_axes(view, since, len(have))
        keep = view.attr("keepdims", 1) == 1  # as the runtime reads it, whatever else it is
        ranges = {i: Axis(f"{view.out()}:r{i}", have[i]) for i in named}
        kept = [i for i in range(len(have)) if keep or i not in ranges]
        axes = view.axes(tuple(ONE if i in ranges else have[i] for i in kept))
        place = dict(zip(kept, axes, strict=True))
        x = view.load(0, tuple(Index.of(ranges[i] if i in ranges else place[i]) for i in range(len(have))))
        value = total(combine, tuple(ranges.values()), lift(x) if lift else x)
        if finish:
            value = finish(value, product([have[i] for i in ranges]))
        return (Definition(view.out(), axes, cast(value, view.dtype(0))),)

    return Row(op, define, shape_inputs=(1,))


def arg_row(op: str, combine: str) -> Row:
    """ArgMax or ArgMin over one axis; of equal elements the first, or the last with select_last_index."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.shape(0)
        at = view.axis(view.attr("axis", 0), len(have))
        keep = view.attr("keepdims", 1) == 1  # as the runtime reads it, whatever else it is
        r = Axis(f"{view.out()}:r{at}", have[at])
        kept = [i for i in range(len(have)) if keep or i != at]
        axes = view.axes(tuple(ONE if i == at else have[i] for i in kept))
        place = dict(zip(kept, axes, strict=True))
        spot = have[at] - 1 - r if view.attr("select_last_index", 0) else Index.of(r)
        x = view.load(0, tuple(spot if i == at else Index.of(place[i]) for i in range(len(have))))
        return (Definition(view.out(), axes, Reduce(combine, (r,), (x, FromIndex(spot, I64)), I64, 1)),)

    return Row(op, define)


def scan_row(op: str, combine: str) -> Row:
    """CumSum or CumProd along a known axis, exclusive or not, from either end."""

    def define(view: View) -> tuple[Definition, ...]:
        have, stages, x = view.shape(0), Stages(view), wide(view)
        view.single(1)
        at = view.axis(view.static_ints(1)[0], len(have))
        exclusive, reverse = int(bool(view.attr("exclusive", 0))), bool(view.attr("reverse", 0))
        j = Axis(f"{view.out()}:j", have[at])

        def value(index: At) -> Scalar:
            element = x((*index[:at], Index.of(j), *index[at + 1 :]))
            before = (Index.of(j) - index[at] if reverse else index[at] - j) - exclusive
            idle = MONOIDS[combine].init(element.dtype)[0]
            return total(combine, (j,), inside((Guard(before, have[at]),), element, idle))

        if view.dtype(0) == view.dtype(0).accumulator:
            stages.output(have, value)
        else:  # the running value is not rounded to the type of the result
            stages.output(have, stages.value("%run", have, value))
        return tuple(stages.made)

    return Row(op, define, shape_inputs=(1,))


ROWS: tuple[Row, ...] = (
    reduce_row("ReduceSum", "sum", None, None, 13),
    reduce_row("ReduceMean", "sum", None, mean_of, 18),
    reduce_row("ReduceMax", "max", None, None, 18),
    reduce_row("ReduceMin", "min", None, None, 18),
    reduce_row("ReduceProd", "prod", None, None, 18),
    reduce_row("ReduceSumSquare", "sum", square, None, 18),
    reduce_row("ReduceL1", "sum", lambda x: apply("abs", x), None, 18),
    reduce_row("ReduceL2", "sum", square, lambda v, n: root(v), 18),
    reduce_row("ReduceLogSum", "sum", None, lambda v, n: logarithm(v), 18),
    arg_row("ArgMax", "argmax"),
    arg_row("ArgMin", "argmin"),
    scan_row("CumSum", "sum"),
    scan_row("CumProd", "prod"),
)
