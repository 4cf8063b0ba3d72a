"""Rows of operators whose output element depends on one element of each input, broadcast to a common shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf, pi, sqrt

from onnxfuse.ir.dtype import BOOL, F32, dtype_of
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, common, least
from onnxfuse.ir.scalar import Const, Scalar, apply, cast, const
from onnxfuse.ops.spec import Definition, Row, View

Body = Callable[..., Scalar]


def broadcast(view: View, shapes: list[tuple[Index, ...]]) -> tuple[Index, ...]:
    """The common shape of some shapes, aligned at the right; refused where two extents never fit."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Index] = []
    for at in range(rank):
        extents = dict.fromkeys(s[at - rank + len(s)] for s in shapes if at - rank + len(s) >= 0)
        numbers = {n for e in extents if (n := e.constant) is not None and n != 1}
        if len(numbers) > 1:
            raise view.refuse("E-BROADCAST", f"{' and '.join(map(str, sorted(numbers)))} differ")
        out.append(reduce(common, extents))
    return tuple(out)


def aligned(view: View, shape: tuple[Index, ...], axes: tuple[Axis, ...]) -> tuple[Index, ...]:
    """The index of a broadcast operand: axis by axis from the right, 0 where its extent is 1.

    Where it is not known whether an extent is 1 or that of the axis, the index is clamped to the last element.
    """
    if len(shape) > len(axes):
        raise view.refuse("E-BROADCAST", f"an operand of rank {len(shape)} does not fit a result of rank {len(axes)}")
    index: list[Index] = []
    for e, a in zip(shape, axes[len(axes) - len(shape) :], strict=True):
        view.demand(e, "equals or is 1", a.extent)
        one = Index.of(a) if e == a.extent else least(Index.of(a), e - 1)
        index.append(ZERO if e == ONE and a.extent != ONE else one)
    return tuple(index)


def pointwise(op: str, body: Body, *, since: int = 1, until: int = 10_000) -> Row:
    """A row whose body is a function of the broadcast operands."""

    def define(view: View) -> tuple[Definition, ...]:
        count = len(view.node.inputs)
        shape = broadcast(view, [view.shape(i) for i in range(count)])
        axes = view.axes(shape)
        operands = [view.load(i, aligned(view, view.shape(i), axes)) for i in range(count)]
        return (Definition(view.out(), axes, body(*operands)),)

    return Row(op, define, since, until)


def unary(
    op: str,
    body: Callable[[View, Scalar], Scalar],
    *,
    since: int = 1,
    until: int = 10_000,
    type_inputs: tuple[int, ...] = (),
) -> Row:
    """A row of one data input whose body may look at attributes."""

    def define(view: View) -> tuple[Definition, ...]:
        axes = view.axes(view.shape(0))
        x = view.load(0, tuple(map(Index.of, axes)))
        return (Definition(view.out(), axes, body(view, x)),)

    return Row(op, define, since, until, type_inputs=type_inputs)


def fn(name: str) -> Body:
    """A function of the scalar table as a body."""
    return lambda *args: apply(name, *args)


def function_of(name: str) -> Callable[[View, Scalar], Scalar]:
    """A function of the scalar table as the body of an operator with one input."""
    return lambda view, x: apply(name, x)


def chain(name: str) -> Body:
    """A variadic operator as a left fold."""

    def body(*args: Scalar) -> Scalar:
        total = args[0]
        for a in args[1:]:
            total = apply(name, total, a)
        return total

    return body


def mean(*args: Scalar) -> Scalar:
    """The arithmetic mean of the operands."""
    return apply("div", chain("add")(*args), const(len(args), args[0].dtype))


def power(x: Scalar, y: Scalar) -> Scalar:
    """x**y in the type of x, computed in that of y where only y is floating; small integer powers are products.

    A device's pow of floats may be 8.999999 for 3 to the power of 2.0, so that what is an integer is made one again
    before it is truncated.
    """
    if isinstance(y, Const) and (x.dtype.floating or y.dtype.floating):
        if y.value == 2:
            return apply("mul", x, x)
        if y.value == 1:
            return x
        if y.value == 3:
            return apply("mul", apply("mul", x, x), x)
    if y.dtype.floating and not x.dtype.floating:
        raised = apply("pow", cast(x, y.dtype), y)
        whole = apply("equal", y, apply("floor", y))
        return cast(apply("select", whole, apply("round", raised), raised), x.dtype)
    return apply("pow", x, cast(y, x.dtype))


def modulo(view: View) -> tuple[Definition, ...]:
    """Mod: the sign follows the divisor, or the dividend with fmod=1."""
    name = "fmod" if view.attr("fmod", 0) else "mod"
    return pointwise("Mod", fn(name)).define(view)


def relu(x: Scalar) -> Scalar:
    """max(x, 0), NaN kept."""
    return apply("max", x, const(0, x.dtype))


def gelu(view: View, x: Scalar) -> Scalar:
    """Gelu, with erf or tanh as its attribute says."""
    return gelu_of(x, tanh=view.attr("approximate", "none") == "tanh")


def gelu_of(x: Scalar, *, tanh: bool) -> Scalar:
    """0.5 x (1 + erf(x / sqrt 2)), or its tanh form."""
    half, one = const(0.5, x.dtype), const(1, x.dtype)
    if tanh:
        cube = apply("mul", apply("mul", x, x), x)
        inner = apply("add", x, apply("mul", const(0.044715, x.dtype), cube))
        bent = apply("tanh", apply("mul", const(sqrt(2 / pi), x.dtype), inner))
    else:
        bent = apply("erf", apply("mul", x, const(1 / sqrt(2), x.dtype)))
    return apply("mul", apply("mul", half, x), apply("add", one, bent))


def clip(view: View) -> tuple[Definition, ...]:
    """min(max(x, low), high); bounds are attributes before opset 11."""
    axes = view.axes(view.shape(0))
    x = view.load(0, tuple(map(Index.of, axes)))
    for at, (name, side) in enumerate((("min", "max"), ("max", "min")), 1):
        if view.opset < 11:
            value = view.attr(name, None)
            bound: Scalar | None = None if value is None else const(value, x.dtype)
        else:
            bound = view.load(at, (ZERO,) * len(view.shape(at))) if view.has(at) else None
        if bound is not None:
            x = apply(side, x, bound)
    return (Definition(view.out(), axes, x),)


def cast_to(view: View, x: Scalar) -> Scalar:
    """Cast: truncation towards zero from floating to integer, != 0 to bool."""
    to = dtype_of(view.attr("to", 0))
    if to is None:
        raise view.refuse("E-DTYPE", f"element type {view.attr('to', 0)} has no kernel")
    return cast(x, to)


def dropout(view: View) -> tuple[Definition, ...]:
    """Dropout at inference: the identity; the mask has no kernel."""
    training = view.array(2) if view.has(2) else None
    if view.has(2) and (training is None or training.size != 1 or bool(training.reshape(()))):
        raise view.refuse("E-RANDOM", "training mode", f"make {view.node.inputs[2]} a constant, false")
    if any(view.node.outputs[1:]):
        raise view.refuse("E-RANDOM", "the mask output is used", f"remove its output {view.node.outputs[1]}")
    axes = view.axes(view.shape(0))
    return (Definition(view.out(), axes, view.load(0, tuple(map(Index.of, axes)))),)


def batch_normalization(view: View) -> tuple[Definition, ...]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, per channel, with statistics that are given."""
    if view.attr("training_mode", 0) or any(view.node.outputs[1:]):
        raise view.refuse("E-NO-KERNEL", "training mode", "export the model for inference: one output, training_mode 0")
    if not view.attr("spatial", 1):
        said = "statistics per element (spatial=0) are not supported"
        raise view.refuse("E-NO-KERNEL", said, "Sub, Div, Mul and Add in its place")
    axes = view.axes(view.shape(0))
    x = view.load(0, tuple(map(Index.of, axes)))
    channels = axes[1].extent if len(axes) > 1 else ONE
    have = (channels, *(e for i in (1, 2, 3, 4) for e in view.shape(i)))
    if any(view.shape(i) != (channels,) for i in (1, 2, 3, 4)):
        raise view.unsized(f"statistics of another length than {channels!r} channels", have)
    channel = (Index.of(axes[1]) if len(axes) > 1 else ZERO,)
    scale, bias, mu, var = (cast(view.load(i, channel), x.dtype) for i in (1, 2, 3, 4))
    deviation = apply("sqrt", apply("add", var, const(view.attr("epsilon", 1e-5), x.dtype)))
    normal = apply("mul", apply("div", apply("sub", x, mu), deviation), scale)
    return (Definition(view.out(), axes, apply("add", normal, bias)),)


def prelu(view: View) -> tuple[Definition, ...]:
    """x where x >= 0, else slope * x; the slope is broadcast to x."""
    axes = view.axes(view.shape(0))
    x = view.load(0, tuple(map(Index.of, axes)))
    slope = view.load(1, aligned(view, view.shape(1), axes))
    below = apply("less", x, const(0, x.dtype))
    return (Definition(view.out(), axes, apply("select", below, apply("mul", slope, x), x)),)


def _linear(x: Scalar, slope: float, offset: float) -> Scalar:
    return apply("add", apply("mul", x, const(slope, x.dtype)), const(offset, x.dtype))


def _between(x: Scalar, low: float, high: float) -> Scalar:
    return apply("min", apply("max", x, const(low, x.dtype)), const(high, x.dtype))


def _negative(x: Scalar, other: Scalar) -> Scalar:
    return apply("select", apply("less", x, const(0, x.dtype)), other, x)


def _expm1(x: Scalar) -> Scalar:
    return apply("sub", apply("exp", apply("min", x, const(0, x.dtype))), const(1, x.dtype))


def _softplus(x: Scalar) -> Scalar:
    """log(1 + exp(x)) without overflow: max(x, 0) + log(1 + exp(-|x|))."""
    small = apply("exp", apply("neg", apply("abs", x)))
    return apply("add", relu(x), apply("log", apply("add", small, const(1, x.dtype))))


def _elu(view: View, x: Scalar) -> Scalar:
    return _negative(x, apply("mul", const(view.attr("alpha", 1.0), x.dtype), _expm1(x)))


def _selu(view: View, x: Scalar) -> Scalar:
    alpha, gamma = view.attr("alpha", 1.67326319217681884765625), view.attr("gamma", 1.05070102214813232421875)
    return apply("mul", const(gamma, x.dtype), _negative(x, apply("mul", const(alpha, x.dtype), _expm1(x))))


def _leaky(view: View, x: Scalar) -> Scalar:
    return _negative(x, apply("mul", const(view.attr("alpha", 0.01), x.dtype), x))


def _hard_sigmoid(view: View, x: Scalar) -> Scalar:
    return _between(_linear(x, view.attr("alpha", 0.2), view.attr("beta", 0.5)), 0, 1)


def _celu(view: View, x: Scalar) -> Scalar:
    alpha = const(view.attr("alpha", 1.0), x.dtype)
    return _negative(x, apply("mul", alpha, _expm1(apply("div", x, alpha))))


def _thresholded(view: View, x: Scalar) -> Scalar:
    above = apply("greater", x, const(view.attr("alpha", 1.0), x.dtype))
    return apply("select", above, x, const(0, x.dtype))


def _shrink(view: View, x: Scalar) -> Scalar:
    """x + bias below -lambd, x - bias above lambd, 0 between; integers are computed in floating point."""
    y = x if x.dtype.floating else cast(x, F32)
    bias, most = const(view.attr("bias", 0.0), y.dtype), view.attr("lambd", 0.5)
    above = apply("select", apply("greater", y, const(most, y.dtype)), apply("sub", y, bias), const(0, y.dtype))
    below = apply("less", y, const(-most, y.dtype))
    return cast(apply("select", below, apply("add", y, bias), above), x.dtype)


def _is_infinite(view: View, x: Scalar) -> Scalar:
    """IsInf; two attributes select the infinities that count."""
    sides = [s for s, name in ((1, "detect_positive"), (-1, "detect_negative")) if view.attr(name, 1)]
    if len(sides) == 2:
        return apply("isinf", x)
    return apply("equal", x, const(sides[0] * inf, x.dtype)) if sides else const(False, BOOL)


def shift(view: View) -> tuple[Definition, ...]:
    """BitShift in either direction."""
    names = {"LEFT": "shift_left", "RIGHT": "shift_right"}
    direction = view.attr("direction", "")
    if direction not in names:
        raise view.refuse("E-NO-KERNEL", f"direction {direction!r} is not supported", "direction LEFT or RIGHT")
    return pointwise("BitShift", fn(names[direction])).define(view)


def _cast_like(view: View, x: Scalar) -> Scalar:
    """The conversion of Cast to the element type of the second input."""
    return cast(x, view.dtype(1))


def _swish(view: View, x: Scalar) -> Scalar:
    return apply("mul", x, apply("sigmoid", apply("mul", const(view.attr("alpha", 1.0), x.dtype), x)))


def _softsign(x: Scalar) -> Scalar:
    return apply("div", x, apply("add", const(1, x.dtype), apply("abs", x)))


# Before opset 7 operands were broadcast by an axis attribute, and Dropout and BatchNormalization trained by default.
# Operators that are the scalar function of their name.
PLAIN = (
    *("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Tanh"),
    *("Sigmoid", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"),
    *("Not", "IsNaN"),
)

ROWS: tuple[Row, ...] = (
    *(pointwise(op, fn(op.lower()), since=7) for op in ("Add", "Sub", "Mul", "Div")),
    *(pointwise(op, chain(name)) for op, name in (("Min", "min"), ("Max", "max"), ("Sum", "add"))),
    *(pointwise(op, fn(op.lower()), since=7) for op in ("Equal", "Less", "Greater", "And", "Or", "Xor")),
    *(pointwise(f"Bitwise{name}", fn(f"bit_{name.lower()}")) for name in ("And", "Or", "Xor")),
    pointwise("LessOrEqual", fn("less_equal")),
    pointwise("GreaterOrEqual", fn("greater_equal")),
    pointwise("Mean", mean),
    pointwise("Pow", power, since=7),
    pointwise("Where", fn("select")),
    Row("Mod", modulo),
    Row("BitShift", shift),
    *(unary(op, function_of(op.lower())) for op in PLAIN),
    unary("BitwiseNot", function_of("bit_not")),
    unary("IsInf", _is_infinite),
    unary("Identity", lambda view, x: x),
    unary("Relu", lambda view, x: relu(x)),
    unary("Gelu", gelu),
    unary("Cast", cast_to),
    unary("CastLike", _cast_like, type_inputs=(1,)),
    unary("LeakyRelu", _leaky),
    unary("Elu", _elu),
    unary("Celu", _celu),
    unary("ThresholdedRelu", _thresholded),
    unary("Shrink", _shrink),
    unary("Selu", _selu, since=6),
    unary("HardSigmoid", _hard_sigmoid),
    unary("HardSwish", lambda view, x: apply("mul", x, _between(_linear(x, 1 / 6, 0.5), 0, 1))),
    unary("Swish", _swish),
    unary("Softplus", lambda view, x: _softplus(x)),
    unary("Softsign", lambda view, x: _softsign(x)),
    unary("Mish", lambda view, x: apply("mul", x, apply("tanh", _softplus(x)))),
    Row("Clip", clip),
    Row("PRelu", prelu, since=7),
    Row("Dropout", dropout, since=7),
    Row("BatchNormalization", batch_normalization, since=7, until=13),
)
