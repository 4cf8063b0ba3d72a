"""Rows of pooling: monoids over the windows of an image, or over all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Scalar, apply, cast, const
from onnxfuse.ops.spec import Definition, Images, Row, View
from onnxfuse.ops.stages import mean_of, square, total
from onnxfuse.ops.window import Window, guarded_load, windows

Lift = Callable[[View, Scalar], Scalar]
Spot = tuple[Window, Axis]  # of one spatial axis: the window and the output's axis


def pool_row(
    op: str, combine: str, lift: Lift, finish: Callable[[View, Scalar, Sequence[Spot]], Scalar], images: Images = ""
) -> Row:
    """A pooling with strides, pads, dilations and ceil_mode of any rank: `lift` each element, combine, `finish`."""

    def define(view: View) -> tuple[Definition, ...]:
        if any(view.node.outputs[1:]):
            raise view.refuse("E-NO-KERNEL", "the indices are used", f"remove its output {view.node.outputs[1]}")
        have, dtype = view.ranked(0, 2), view.dtype(0)
        kernel = tuple(view.attr("kernel_shape", ()))
        spots = windows(view, kernel, pooled=True)
        axes = view.axes((*have[:2], *(s.extent for s in spots)))
        near = tuple(s.within for s in spots)
        ranges = tuple(Axis(f"{view.out()}:k{i}", Index.of(s.size)) for i, s in enumerate(near))
        at = tuple(s.index(Index.of(a), Index.of(r)) for s, a, r in zip(near, axes[2:], ranges, strict=True))
        outer = (Index.of(axes[0]), Index.of(axes[1]))
        x = guarded_load(view, 0, (*outer, *at), near, MONOIDS[combine].init(dtype)[0])
        value = finish(view, total(combine, ranges, lift(view, x)), tuple(zip(spots, axes[2:], strict=True)))
        return (Definition(view.out(), axes, cast(value, dtype)),)

    return Row(op, define, images=images)


def global_pool_row(
    op: str, combine: str, lift: Lift, finish: Callable[[View, Scalar, Index], Scalar], images: Images = ""
) -> Row:
    """A pooling over all spatial axes: `lift` each element, combine, `finish` with their number."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.ranked(0, 2)
        axes = view.axes((*have[:2], *(ONE,) * (len(have) - 2)))
        ranges = tuple(Axis(f"{view.out()}:r{i}", e) for i, e in enumerate(have[2:], 2))
        x = view.load(0, (Index.of(axes[0]), Index.of(axes[1]), *map(Index.of, ranges)))
        value = finish(view, total(combine, ranges, lift(view, x)), product(have[2:]))
        return (Definition(view.out(), axes, cast(value, view.dtype(0))),)

    return Row(op, define, images=images)


def _plain(view: View, x: Scalar) -> Scalar:
    return x


def _power(view: View, x: Scalar) -> Scalar:
    """|x| to the power p, an attribute."""
    p = view.attr("p", 2)
    view.positive("p", (p,))
    x = cast(x, x.dtype.accumulator)
    return square(x) if p == 2 else apply("abs", x) if p == 1 else apply("pow", apply("abs", x), const(p, x.dtype))


def _root(view: View, value: Scalar) -> Scalar:
    """The p-th root."""
    p = view.attr("p", 2)
    return apply("sqrt", value) if p == 2 else value if p == 1 else apply("pow", value, const(1 / p, value.dtype))


def _average(view: View, value: Scalar, spots: Sequence[Spot]) -> Scalar:
    """A sum over the cells of the window inside the input, or inside the padded input when padding is counted.

    Only windows of `ceil_mode` end behind the padding; one that is larger than image and padding counts as whole.
    """
    counted, cut = bool(view.attr("count_include_pad", 0)), bool(view.attr("ceil_mode", 0))
    size: Scalar | None = None
    for i, (s, a) in enumerate(spots):
        whole = const(s.size, value.dtype) if counted and not cut else None
        factor = whole or s.cells(Index.of(a), f"{view.out()}:n{i}", counted, value.dtype)
        size = factor if size is None else apply("mul", size, factor)
    return value if size is None else apply("div", value, size)


ROWS: tuple[Row, ...] = (
    pool_row("MaxPool", "max", _plain, lambda view, v, spots: v, images="pool"),
    pool_row("AveragePool", "sum", _plain, _average, images="pool"),
    pool_row("LpPool", "sum", _power, lambda view, v, spots: _root(view, v)),
    global_pool_row("GlobalMaxPool", "max", _plain, lambda view, v, n: v, images="pool"),
    global_pool_row("GlobalAveragePool", "sum", _plain, lambda view, v, n: mean_of(v, n), images="pool"),
    global_pool_row("GlobalLpPool", "sum", _power, lambda view, v, n: _root(view, v)),
)
