"""Rows of reductions, pooling and normalizations: monoids over whole axes or windows, and what is built on them."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import I64, DType
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import FromIndex, Load, Reduce, Scalar, apply, cast, const
from onnxfuse.ops.elementwise import aligned
from onnxfuse.ops.movement import axes_of_node
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.window import Window, guarded_load, windows

Lift = Callable[[Scalar], Scalar]


def number(extent: Index, dtype: DType) -> Scalar:
    """An extent as a number of dtype."""
    value = extent.constant
    return const(value, dtype) if value is not None else cast(FromIndex(extent, I64), dtype)


def total(combine: str, ranges: tuple[Axis, ...], body: Scalar) -> Scalar:
    """A reduction in the accumulator type of its body; over no ranges, the body itself."""
    dtype = body.dtype.accumulator
    return Reduce(combine, ranges, (cast(body, dtype),), dtype) if ranges else cast(body, dtype)


def reduce_row(
    op: str, combine: str, lift: Lift | None, finish: Callable[[Scalar, Index], Scalar] | None, since: int
) -> Row:
    """A Reduce* operator: `lift` each element, combine, `finish` with their number. Axes are an input from `since`."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.shape(0)
        named = axes_of_node(view, since, len(have))
        if not named:
            named = () if view.attr("noop_with_empty_axes", 0) else tuple(range(len(have)))
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


def _square(x: Scalar) -> Scalar:
    return apply("mul", x, x)


def _mean(value: Scalar, count: Index) -> Scalar:
    return apply("div", value, number(count, value.dtype))


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


def softmax_like(log: bool) -> Callable[[View], tuple[Definition, ...]]:
    """Softmax or LogSoftmax: over one axis from opset 13, over all axes from `axis` on before."""

    def define(view: View) -> tuple[Definition, ...]:
        have = view.shape(0)
        at = view.axis(view.attr("axis", -1 if view.opset >= 13 else 1), len(have))
        over = (at,) if view.opset >= 13 else tuple(range(at, len(have)))
        name, dtype = view.out(), view.dtype(0).accumulator

        def part(
            tag: str, body: Callable[[tuple[Index, ...]], Scalar], combine: str
        ) -> tuple[Definition, Callable[..., Scalar]]:
            axes = view.axes(tuple(e for i, e in enumerate(have) if i not in over), tag)
            ranges = {i: Axis(f"{name}{tag}:r{i}", have[i]) for i in over}
            rest = iter(axes)
            full = tuple(Index.of(ranges[i] if i in ranges else next(rest)) for i in range(len(have)))
            made = Definition(name + tag, axes, total(combine, tuple(ranges.values()), body(full)))

            def read(at: tuple[Index, ...]) -> Scalar:
                return Load(made.name, tuple(e for i, e in enumerate(at) if i not in over), made.value.dtype)

            return made, read

        def x(at: tuple[Index, ...]) -> Scalar:
            return cast(view.load(0, at), dtype)

        high, read_high = part("%max", x, "max")
        axes = view.axes(have, "%exp")
        shifted = apply("sub", x(tuple(map(Index.of, axes))), read_high(tuple(map(Index.of, axes))))
        power = Definition(name + "%exp", axes, apply("exp", shifted))

        def exponential(at: tuple[Index, ...]) -> Scalar:
            return Load(power.name, at, dtype)

        norm, read_norm = part("%sum", exponential, "sum")
        axes = view.axes(have)
        here = tuple(map(Index.of, axes))
        if log:
            value = apply("sub", apply("sub", x(here), read_high(here)), apply("log", read_norm(here)))
        else:
            value = apply("div", exponential(here), read_norm(here))
        return high, power, norm, Definition(name, axes, cast(value, view.dtype(0)))

    return define


def _normalized(
    view: View, over: tuple[int, ...], *, centred: bool, tag: str = ""
) -> tuple[list[Definition], Callable[..., Scalar]]:
    """Statistics over some axes, and (x - mean) / sqrt(var + epsilon) as a function of the index."""
    have, dtype, name = view.shape(0), view.dtype(0).accumulator, view.out() + tag
    count = product([have[i] for i in over])
    made: list[Definition] = []

    def x(at: tuple[Index, ...]) -> Scalar:
        return cast(view.load(0, at), dtype)

    def statistic(label: str, body: Callable[[tuple[Index, ...]], Scalar]) -> Callable[[tuple[Index, ...]], Scalar]:
        axes = view.axes(tuple(e for i, e in enumerate(have) if i not in over), label)
        ranges = {i: Axis(f"{name}{label}:r{i}", have[i]) for i in over}
        rest = iter(axes)
        full = tuple(Index.of(ranges[i] if i in ranges else next(rest)) for i in range(len(have)))
        made.append(Definition(name + label, axes, _mean(total("sum", tuple(ranges.values()), body(full)), count)))
        return lambda at: Load(name + label, tuple(e for i, e in enumerate(at) if i not in over), dtype)

    if centred:
        mu = statistic("%mean", x)

        def centre(at: tuple[Index, ...]) -> Scalar:
            return apply("sub", x(at), mu(at))
    else:
        centre = x
    spread = statistic("%var", lambda at: _square(centre(at)))
    epsilon = const(view.attr("epsilon", 1e-5), dtype)
    return made, lambda at: apply("div", centre(at), apply("sqrt", apply("add", spread(at), epsilon)))


def layer_normalization(view: View) -> tuple[Definition, ...]:
    """LayerNormalization over the axes from `axis` on."""
    if any(view.node.outputs[1:]):
        raise view.refuse("E-NO-KERNEL", "mean or deviation is wanted")
    return _layer_normalization(view, centred=True)


def rms_normalization(view: View) -> tuple[Definition, ...]:
    """RMSNormalization: as LayerNormalization without the mean and the bias."""
    return _layer_normalization(view, centred=False)


def _layer_normalization(view: View, *, centred: bool) -> tuple[Definition, ...]:
    have = view.shape(0)
    first = view.axis(view.attr("axis", -1), len(have))
    made, normal = _normalized(view, tuple(range(first, len(have))), centred=centred)
    axes = view.axes(have)
    value = normal(tuple(map(Index.of, axes)))
    for i, fn in ((1, "mul"), (2, "add")):
        if view.has(i):
            value = apply(fn, value, cast(view.load(i, aligned(view.shape(i), axes)), value.dtype))
    before = view.has(1) and view.opset < 17  # ONNX Runtime's own operator then, which answers in the type of the scale
    return *made, Definition(view.out(), axes, cast(value, view.dtype(1 if before else 0)))


def instance_normalization(view: View) -> tuple[Definition, ...]:
    """InstanceNormalization: per image and channel."""
    have = view.shape(0)
    made, normal = _normalized(view, tuple(range(2, len(have))), centred=True)
    axes = view.axes(have)
    scale, bias = (cast(view.load(i, (Index.of(axes[1]),)), view.dtype(0).accumulator) for i in (1, 2))
    value = apply("add", apply("mul", normal(tuple(map(Index.of, axes))), scale), bias)
    return *made, Definition(view.out(), axes, cast(value, view.dtype(0)))


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
            value = _mean(value, product(have[2:]))
        return (Definition(view.out(), axes, cast(value, view.dtype(0))),)

    return Row(op, define)


ROWS: tuple[Row, ...] = (
    reduce_row("ReduceSum", "sum", None, None, 13),
    reduce_row("ReduceMean", "sum", None, _mean, 18),
    reduce_row("ReduceMax", "max", None, None, 18),
    reduce_row("ReduceMin", "min", None, None, 18),
    reduce_row("ReduceProd", "prod", None, None, 18),
    reduce_row("ReduceSumSquare", "sum", _square, None, 18),
    reduce_row("ReduceL1", "sum", lambda x: apply("abs", x), None, 18),
    reduce_row("ReduceL2", "sum", _square, lambda v, n: apply("sqrt", v), 18),
    arg_row("ArgMax", "argmax"),
    arg_row("ArgMin", "argmin"),
    Row("Softmax", softmax_like(log=False)),
    Row("LogSoftmax", softmax_like(log=True)),
    Row("LayerNormalization", layer_normalization),
    Row("RMSNormalization", rms_normalization),
    Row("InstanceNormalization", instance_normalization),
    pool_row("MaxPool", "max"),
    pool_row("AveragePool", "sum"),
    global_pool_row("GlobalAveragePool", "sum"),
    global_pool_row("GlobalMaxPool", "max"),
)
