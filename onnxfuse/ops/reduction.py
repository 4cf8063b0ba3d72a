"""Rows of reductions and pooling: monoids over whole axes or windows."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import FromIndex, Reduce, Scalar, apply, cast, const
from onnxfuse.ops.movement import axes_of_node
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import Lift, mean_of, root, square, total
from onnxfuse.ops.window import Window, guarded_load, windows


def reduced_axes(view: View, since: int, rank: int) -> tuple[int, ...]:
    """The axes that a Reduce* runs over: those that it names, else all, unless it says that none means none."""
    named = axes_of_node(view, since, rank)
    return named or (() if view.attr("noop_with_empty_axes", 0) else tuple(range(rank)))


def reduce_row(
    op: str, combine: str, lift: Lift | None, finish: Callable[[Scalar, Index], Scalar] | None, since: int
) -> Row:
    """A Reduce* operator: `lift` each element, combine, `finish` with their number. Axes are an input from `since`."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.shape(0)
        named = reduced_axes(view, since, len(have))
        keep = view.attr("keepdims", 1)
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
    """ArgMax or ArgMin over one axis; the first of equals unless select_last_index."""

    def define(view: View) -> tuple[Definition, ...]:
        if view.attr("select_last_index", 0):
            raise view.refuse("E-NO-KERNEL", "select_last_index")
        have = view.shape(0)
        at = view.axis(view.attr("axis", 0), len(have))
        keep = view.attr("keepdims", 1)
        r = Axis(f"{view.out()}:r{at}", have[at])
        kept = [i for i in range(len(have)) if keep or i != at]
        axes = view.axes(tuple(ONE if i == at else have[i] for i in kept))
        place = dict(zip(kept, axes, strict=True))
        x = view.load(0, tuple(Index.of(r if i == at else place[i]) for i in range(len(have))))
        return (Definition(view.out(), axes, Reduce(combine, (r,), (x, FromIndex(Index.of(r), I64)), I64, 1)),)

    return Row(op, define)


def pool_row(op: str, combine: str) -> Row:
    """MaxPool or AveragePool with strides, pads, dilations and ceil_mode, any rank."""

    def define(view: View) -> tuple[Definition, ...]:
        if any(view.node.outputs[1:]):
            raise view.refuse("E-NO-KERNEL", "indices are wanted")
        have, dtype = view.shape(0), view.dtype(0)
        kernel = tuple(view.attr("kernel_shape", ()))
        spots = windows(view, kernel)
        axes = view.axes((*have[:2], *(s.extent for s in spots)))
        ranges = tuple(Axis(f"{view.out()}:k{i}", Index.of(k)) for i, k in enumerate(kernel))
        at = tuple(s.index(Index.of(a), Index.of(r)) for s, a, r in zip(spots, axes[2:], ranges, strict=True))
        outer = (Index.of(axes[0]), Index.of(axes[1]))
        fill = const(float("-inf"), dtype) if combine == "max" and dtype.floating else const(0, dtype)
        if combine == "max" and not dtype.floating:
            raise view.refuse("E-DTYPE", f"pooling of {dtype}")
        x = guarded_load(view, 0, (*outer, *at), spots, fill)
        value = total(combine, ranges, x)
        if combine == "sum":
            value = apply("div", value, _window_size(view, spots, axes[2:], ranges, value.dtype))
        return (Definition(view.out(), axes, cast(value, dtype)),)

    return Row(op, define)


def _window_size(
    view: View, spots: tuple[Window, ...], axes: tuple[Axis, ...], ranges: tuple[Axis, ...], dtype: DType
) -> Scalar:
    """The divisor of AveragePool: cells of the window that lie inside the (padded, when counted) input."""
    counted = view.attr("count_include_pad", 0)
    size = const(1, dtype)
    value: Scalar = size
    for s, a, r in zip(spots, axes, ranges, strict=True):
        factor = s.cells(Index.of(a), r, bool(counted), dtype)
        value = factor if value is size else apply("mul", value, factor)
    return value


def global_pool_row(op: str, combine: str) -> Row:
    """GlobalAveragePool or GlobalMaxPool: over all spatial axes."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.shape(0)
        axes = view.axes((*have[:2], *(ONE,) * (len(have) - 2)))
        ranges = tuple(Axis(f"{view.out()}:r{i}", e) for i, e in enumerate(have[2:], 2))
        x = view.load(0, (Index.of(axes[0]), Index.of(axes[1]), *map(Index.of, ranges)))
        value = total(combine, ranges, x)
        if combine == "sum":
            value = mean_of(value, product(have[2:]))
        return (Definition(view.out(), axes, cast(value, view.dtype(0))),)

    return Row(op, define)


ROWS: tuple[Row, ...] = (
    reduce_row("ReduceSum", "sum", None, None, 13),
    reduce_row("ReduceMean", "sum", None, mean_of, 18),
    reduce_row("ReduceMax", "max", None, None, 18),
    reduce_row("ReduceMin", "min", None, None, 18),
    reduce_row("ReduceProd", "prod", None, None, 18),
    reduce_row("ReduceSumSquare", "sum", square, None, 18),
    reduce_row("ReduceL1", "sum", lambda x: apply("abs", x), None, 18),
    reduce_row("ReduceL2", "sum", square, lambda v, n: root(v), 18),
    arg_row("ArgMax", "argmax"),
    arg_row("ArgMin", "argmin"),
    pool_row("MaxPool", "max"),
    pool_row("AveragePool", "sum"),
    global_pool_row("GlobalAveragePool", "sum"),
    global_pool_row("GlobalMaxPool", "max"),
)
