"""Rows of softmax and normalizations: statistics over some axes, broadcast to every element."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import I64, DType, dtype_of
from onnxfuse.ir.graph import Constant
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, divides, floor_div, modulo
from onnxfuse.ir.indexing import flatten
from onnxfuse.ir.scalar import FromIndex, Guard, Reduce, Scalar, apply, cast, const
from onnxfuse.ops.elementwise import batch_normalization
from onnxfuse.ops.reduction import reduced_axes
from onnxfuse.ops.spec import Define, Definition, Row, Spell, View
from onnxfuse.ops.speller import Speller
from onnxfuse.ops.stages import At, Element, Normal, Stages, exponential, here, logarithm, square, total, wide


def softmax_axes(view: View) -> tuple[int, ...]:
    """The axes that a softmax reduces: one since opset 13, all from `axis` on before."""
    rank = len(view.shape(0))
    if view.opset >= 13:
        return (view.axis(view.attr("axis", -1), rank),)
    first = view.attr("axis", 1)
    return tuple(range(rank if first == rank else view.axis(first, rank), rank))


def softmax_like(log: bool) -> Define:
    """Softmax or LogSoftmax."""

    def define(view: View) -> tuple[Definition, ...]:
        s = Stages(view)
        softmax(s, view.shape(0), softmax_axes(view), wide(view), log=log)
        return tuple(s.made)

    return define


def softmax(s: Stages, have: At, over: Sequence[int], x: Element, *, log: bool = False) -> None:
    """Output 0 as the softmax of x over some axes."""
    high, power, norm = _powers(s, have, over, x)
    if log:
        s.output(have, lambda at: apply("sub", apply("sub", x(at), high(at)), apply("log", norm(at))))
    else:
        s.output(have, lambda at: apply("div", power(at), norm(at)))


def shares(s: Stages, have: At, over: Sequence[int], x: Element) -> Element:
    """The softmax of x over some axes as an intermediate value."""
    _, power, norm = _powers(s, have, over, x)
    return s.value("%shares", have, lambda at: apply("div", power(at), norm(at)))


def _powers(s: Stages, have: At, over: Sequence[int], x: Element) -> tuple[Element, Element, Element]:
    """The maximum of x over some axes, exp(x - maximum), and the sum of these."""
    high = s.reduced("%max", have, over, "max", x)
    power = s.value("%exp", have, lambda at: apply("exp_or_zero", apply("sub", x(at), high(at))))
    return high, power, s.reduced("%sum", have, over, "sum", power)


def hardmax(view: View) -> tuple[Definition, ...]:
    """1 at the first of the largest elements along the axes, 0 elsewhere."""
    have, over, s = view.shape(0), softmax_axes(view), Stages(view)
    ranges = tuple(Axis(f"{view.out()}%best:r{i}", have[i]) for i in over)
    along = tuple(have[i] for i in over)
    spot = FromIndex(flatten(here(ranges), along), I64)

    def best(at: At) -> Scalar:
        rest, inner = iter(at), iter(here(ranges))
        full = tuple(next(inner) if i in over else next(rest) for i in range(len(have)))
        return Reduce("argmax", ranges, (view.load(0, full), spot), I64, 1)

    place = s.value("%best", tuple(e for i, e in enumerate(have) if i not in over), best)

    def is_best(at: At) -> Scalar:
        mine = FromIndex(flatten(tuple(at[i] for i in over), along), I64)
        return apply("equal", mine, place(tuple(e for i, e in enumerate(at) if i not in over)))

    s.output(have, is_best)
    return tuple(s.made)


def layer_normalization(view: View) -> tuple[Definition, ...]:
    """LayerNormalization over the axes from `axis` on; mean and inverse deviation are optional outputs."""
    s = Stages(view)
    before = (
        view.has(1) and view.opset < 17
    )  # then it is ONNX Runtime's own operator, whose result has the type of the scale
    made = normal_of_tail(s, wide(view), scale=1, bias=2, dtype=view.dtype(1 if before else 0))
    statistics(s, (1, made.mean), (2, inverse(made)))
    return tuple(s.made)


def rms_normalization(view: View) -> tuple[Definition, ...]:
    """RMSNormalization: LayerNormalization without mean and bias."""
    s = Stages(view)
    normal_of_tail(s, wide(view), scale=1, centred=False)
    return tuple(s.made)


def simplified_layer_normalization(view: View) -> tuple[Definition, ...]:
    """RMSNormalization under ONNX Runtime's older name; the inverse deviation is output 1."""
    s = Stages(view)
    made = normal_of_tail(s, wide(view), scale=1, centred=False, dtype=view.dtype(1))
    statistics(s, (1, inverse(made)))
    return tuple(s.made)


def spelled_normalization(*, centred: bool) -> Spell:
    """A decomposition of a normalization, for opsets in which only ONNX Runtime has it."""

    def spell(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
        dtype, rank = view.dtype(0).accumulator, len(view.shape(0))
        over = tuple(range(view.axis(view.attr("axis", -1), rank), rank))
        x, *more = (put.add("Cast", i, to=dtype.onnx) if i and dtype != view.dtype(0) else i for i in inputs)
        mu = spelled_mean(put, x, over) if centred else ""
        centre = put.add("Sub", x, mu) if centred else x
        variance = spelled_mean(put, put.add("Mul", centre, centre), over)
        epsilon = put.constant(Constant.of(np.array(view.attr("epsilon", 1e-5), dtype.numpy), dtype))
        deviation = put.add("Sqrt", put.add("Add", variance, epsilon))
        value = put.add("Div", centre, deviation)
        for op, i in zip(("Mul", "Add"), more, strict=False):
            value = put.add(op, value, i) if i else value
        out = view.dtype(1) if view.has(1) else view.dtype(0)
        made = (value, *((mu,) if centred else ()), put.add("Reciprocal", deviation))
        stash = dtype_of(view.attr("stash_type", 1)) or dtype
        types = (out, stash, stash)
        return tuple(
            put.add("Cast", name, to=t.onnx) if wanted and t != dtype else name if wanted else ""
            for wanted, name, t in zip(view.node.outputs, made, types, strict=False)
        )

    return spell


def spelled_mean(put: Speller, x: str, over: tuple[int, ...]) -> str:
    """ReduceMean over some axes, which are an attribute before opset 18."""
    if put.opset < 18:
        return put.add("ReduceMean", x, axes=over)
    return put.add("ReduceMean", x, put.constant(Constant.of(np.array(over, np.int64), I64)))


def normal_of_tail(
    s: Stages, x: Element, *, scale: int, bias: int | None = None, centred: bool = True, dtype: DType | None = None
) -> Normal:
    """Output 0 as x normalized over the axes from `axis` on, times input `scale`, plus input `bias` if given."""
    view = s.view
    have = view.shape(0)
    first = view.axis(view.attr("axis", -1), len(have))
    normal = s.normalized(have, range(first, len(have)), x, view.attr("epsilon", 1e-5), centred=centred)
    s.output(have, lambda at: _affine(view, normal.value(at), have, at, scale, bias), dtype=dtype)
    return normal


def _affine(view: View, value: Scalar, have: At, at: At, scale: int, bias: int | None) -> Scalar:
    """value times input `scale` plus input `bias`, both broadcast from the right."""
    for i, fn in ((scale, "mul"), (bias, "add")):
        if i is not None and view.has(i):
            value = apply(fn, value, cast(view.load(i, spread(view, view.shape(i), have, at)), value.dtype))
    return value


def spread(view: View, shape: At, have: At, at: At) -> At:
    """The index of an operand broadcast to `have` at the index `at`: 0 where it has extent 1."""
    tail = len(have) - len(shape)
    if tail < 0:
        raise view.refuse("E-BROADCAST", f"an operand of rank {len(shape)} does not fit a result of rank {len(have)}")
    return tuple(ZERO if e == ONE and have[tail + i] != ONE else at[tail + i] for i, e in enumerate(shape))


def inverse(normal: Normal) -> Element:
    """1 / deviation."""
    return lambda at: apply("reciprocal", normal.deviation(at))


def statistics(s: Stages, *wanted: tuple[int, Element]) -> None:
    """Statistics over the axes from `axis` on as outputs, those axes of extent 1."""
    have, stash = s.view.shape(0), dtype_of(s.view.attr("stash_type", 1))
    first = s.view.axis(s.view.attr("axis", -1), len(have))
    for k, value in wanted:
        s.output((*have[:first], *(ONE,) * (len(have) - first)), value, k=k, dtype=stash)


def instance_normalization(view: View) -> tuple[Definition, ...]:
    """InstanceNormalization: per image and channel."""
    s, have = Stages(view), view.ranked(0, 2)
    normal = s.normalized(have, range(2, len(have)), wide(view), view.attr("epsilon", 1e-5))
    s.output(have, lambda at: _per_channel(view, normal.value(at), at[1]))
    return tuple(s.made)


def _per_channel(view: View, value: Scalar, channel: Index) -> Scalar:
    """value times input 1 plus input 2, both by channel."""
    scale, bias = (cast(view.load(i, (channel,)), value.dtype) for i in (1, 2))
    return apply("add", apply("mul", value, scale), bias)


def trained_normalization(view: View) -> tuple[Definition, ...]:
    """BatchNormalization; in training mode by the statistics of this batch, which the running ones become a part of.

    Frameworks export the standardization of weights as such a node.
    """
    if not view.attr("training_mode", 0) or len(view.node.outputs) < 3:
        return batch_normalization(view)
    s, have, x = Stages(view), view.ranked(0, 2), wide(view)
    over, kept, channels = (0, *range(2, len(have))), view.attr("momentum", 0.9), have[1:2]
    if any(view.shape(i) != channels for i in (1, 2, 3, 4)):
        raise view.unsized(f"statistics of another length than {channels[0]!r} channels", channels)
    normal = s.normalized(have, over, x, view.attr("epsilon", 1e-5))
    s.output(have, lambda at: _per_channel(view, normal.value(at), at[1]))

    def running(i: int, now: Element) -> Element:
        def value(at: At) -> Scalar:
            new, old = now((ZERO, at[0], *(ZERO,) * (len(have) - 2))), view.load(i, at)
            parts = zip((cast(old, new.dtype), new), (kept, 1 - kept), strict=True)
            return apply("add", *(apply("mul", part, const(share, new.dtype)) for part, share in parts))

        return value

    for k, now in ((1, normal.mean), (2, normal.variance)):
        s.output(channels, running(2 + k, now), k=k, dtype=view.dtype(2 + k))
    return tuple(s.made)


BY_GROUP = 20  # the last opset in which scale and bias of GroupNormalization are by group, not by channel


def group_normalization(view: View) -> tuple[Definition, ...]:
    """GroupNormalization: per image and group of channels; scale and bias are by group up to opset 20."""
    s, have, x = Stages(view), view.ranked(0, 2), wide(view)
    groups = view.attr("num_groups", 1)
    view.positive("num_groups", (groups,))
    view.nonempty(have[1:2])
    width = divides(Index.of(groups), have[1])
    if width is None:
        raise view.unsized(f"{have[1]!r} channels do not make {groups} groups", have[1:2])
    grouped = (have[0], Index.of(groups), width, *have[2:])
    over = range(2, len(grouped))
    normal = s.normalized(
        grouped, over, lambda at: x((at[0], at[1] * width + at[2], *at[3:])), view.attr("epsilon", 1e-5)
    )

    def value(at: At) -> Scalar:
        group, inside = floor_div(at[1], width), modulo(at[1], width)
        made = normal.value((at[0], group, inside, *at[2:]))
        return _per_channel(view, made, at[1] if view.opset > BY_GROUP else group)

    s.output(have, value)
    return tuple(s.made)


def _spelled_groups(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """InstanceNormalization with groups as channels: GroupNormalization of opset 18 is deprecated."""
    x, scale, bias = inputs
    shape = put.constant(Constant.of(np.array((0, view.attr("num_groups", 1), -1), np.int64), I64))
    grouped = put.add("Reshape", x, shape)
    normal = put.add("InstanceNormalization", grouped, scale, bias, epsilon=view.attr("epsilon", 1e-5))
    return (put.add("Reshape", normal, put.add("Shape", x)),)


def mean_variance_normalization(view: View) -> tuple[Definition, ...]:
    """MeanVarianceNormalization: (x - mean) / (deviation + 1e-9) over the named axes."""
    s, have, x = Stages(view), view.shape(0), wide(view)
    over = tuple(view.axis(a, len(have)) for a in view.attr("axes", (0, 2, 3)))
    mu = s.mean("%mean", have, over, x)

    def centre(at: At) -> Scalar:
        return apply("sub", x(at), mu(at))

    variance = s.mean("%var", have, over, lambda at: square(centre(at)))

    def value(at: At) -> Scalar:
        deviation = apply("sqrt", variance(at))
        return apply("div", centre(at), apply("add", deviation, const(1e-9, deviation.dtype)))

    s.output(have, value)
    return tuple(s.made)


def _spelled_by_axes(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """With explicit axes: in function bodies the runtime does not apply the attribute's default."""
    return (put.add("MeanVarianceNormalization", *inputs, axes=tuple(view.attr("axes", (0, 2, 3)))),)


def lp_normalization(view: View) -> tuple[Definition, ...]:
    """LpNormalization: x over its L1 or L2 norm along one axis, 0 where that is 0."""
    s, have, x = Stages(view), view.shape(0), wide(view)
    over, p = (view.axis(view.attr("axis", -1), len(have)),), view.attr("p", 2)
    if p not in (1, 2):
        raise view.refuse("E-NO-KERNEL", f"a norm with p = {p} is not supported", "p 1 or 2")
    lift = (lambda at: apply("abs", x(at))) if p == 1 else (lambda at: square(x(at)))
    norm = s.reduced("%norm", have, over, "sum", lift, (lambda v: apply("sqrt", v)) if p == 2 else None)

    def value(at: At) -> Scalar:
        length = norm(at)
        zero = const(0, length.dtype)
        return apply("select", apply("equal", length, zero), zero, apply("div", x(at), length))

    s.output(have, value)
    return tuple(s.made)


def lrn(view: View) -> tuple[Definition, ...]:
    """LRN: x / (bias + alpha/size * sum of squares over neighbouring channels) ** beta."""
    s, have, dtype = Stages(view), view.ranked(0, 2), view.dtype(0)
    size = view.attr("size", 1)
    view.positive("size", (size,))
    near = Axis(f"{view.out()}%square:r", Index.of(size))

    def squares(at: At) -> Scalar:
        channel = at[1] + near - (size - 1) // 2
        x = inside((Guard(channel, have[1]),), view.load(0, (at[0], channel, *at[2:])), const(0, dtype))
        return total("sum", (near,), square(cast(x, dtype.accumulator)))

    around = s.value("%square", have, squares)
    alpha, beta, bias = (view.attr(k, v) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))

    def value(at: At) -> Scalar:
        total_ = around(at)
        scaled = apply("mul", total_, const(alpha / size, total_.dtype))
        base = apply("add", const(bias, total_.dtype), scaled)
        return apply("div", wide(view)(at), apply("pow", base, const(beta, total_.dtype)))

    s.output(have, value)
    return tuple(s.made)


def log_sum_exp(view: View) -> tuple[Definition, ...]:
    """ReduceLogSumExp: max + log(sum(exp(x - max)))."""
    s, have, x = Stages(view), view.shape(0), wide(view)
    over = reduced_axes(view, 18, len(have))
    high = s.reduced("%max", have, over, "max", x)

    def least(at: At) -> Scalar:
        """The maximum where it is finite, else 0, so that infinities propagate."""
        top = high(at)
        return apply("select", apply("isinf", top), const(0, top.dtype), top)

    norm = s.reduced("%sum", have, over, "sum", lambda at: exponential(apply("sub", x(at), least(at))))
    keep = view.attr("keepdims", 1) == 1  # as the runtime reads it, whatever else it is
    kept = [i for i in range(len(have)) if keep or i not in over]

    def value(at: At) -> Scalar:
        place = dict(zip(kept, at, strict=True))
        full = tuple(ZERO if i in over else place[i] for i in range(len(have)))
        return apply("add", least(full), logarithm(norm(full)))

    s.output(tuple(ONE if i in over else have[i] for i in kept), value)
    return tuple(s.made)


ROWS: tuple[Row, ...] = (
    Row("Softmax", softmax_like(log=False)),
    Row("LogSoftmax", softmax_like(log=True)),
    Row("Hardmax", hardmax),
    Row("ReduceLogSumExp", log_sum_exp, shape_inputs=(1,)),
    Row("LayerNormalization", layer_normalization, since=17),
    Row("LayerNormalization", layer_normalization, until=16, spell=spelled_normalization(centred=True)),
    Row("SimplifiedLayerNormalization", simplified_layer_normalization, spell=spelled_normalization(centred=False)),
    Row("RMSNormalization", rms_normalization),
    Row("InstanceNormalization", instance_normalization),
    Row("BatchNormalization", trained_normalization, since=14),
    Row("GroupNormalization", group_normalization, since=BY_GROUP + 1),
    Row("GroupNormalization", group_normalization, until=BY_GROUP, spell=_spelled_groups),
    Row("MeanVarianceNormalization", mean_variance_normalization, spell=_spelled_by_axes),
    Row("LpNormalization", lp_normalization),
    Row("LRN", lrn),
)
