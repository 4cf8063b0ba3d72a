"""Rows of ONNX Runtime's contrib operators: fused ones from its optimizer and tools, and ones of old ONNX drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from onnxfuse.ir.dtype import I32, I64, DType
from onnxfuse.ir.graph import Constant
from onnxfuse.ir.index import ZERO, Index
from onnxfuse.ir.scalar import FromIndex, Scalar, apply, cast, const
from onnxfuse.ops.contraction import Operand, conv, gemm, multiplied
from onnxfuse.ops.elementwise import gelu_of, relu, unary
from onnxfuse.ops.lookup import loaded
from onnxfuse.ops.normalization import spread
from onnxfuse.ops.spec import Define, Definition, Row, View
from onnxfuse.ops.speller import Speller
from onnxfuse.ops.stages import At, Element, Stages, wide

MICROSOFT = "com.microsoft::"


def biased(body: Callable[[View, Scalar], Scalar]) -> Define:
    """An activation of the first input plus the second one, where that is given."""

    def define(view: View) -> tuple[Definition, ...]:
        s, have, x = Stages(view), view.shape(0), wide(view)

        def value(at: At) -> Scalar:
            here = x(at)
            if view.has(1):
                here = apply("add", here, wide(view, 1)(spread(view, view.shape(1), have, at)))
            return body(view, here)

        s.output(have, value)
        return tuple(s.made)

    return define


def quick_gelu(view: View, x: Scalar) -> Scalar:
    """x * sigmoid(alpha x)."""
    return apply("mul", x, apply("sigmoid", apply("mul", const(view.attr("alpha", 1.702), x.dtype), x)))


# Activations of fused operators: functions of x, alpha, beta.
ACTIVATIONS: dict[str, Callable[[Scalar, float, float], Scalar]] = {
    "": lambda x, a, b: x,
    "Relu": lambda x, a, b: relu(x),
    "Sigmoid": lambda x, a, b: apply("sigmoid", x),
    "Tanh": lambda x, a, b: apply("tanh", x),
    "LeakyRelu": lambda x, a, b: apply(
        "select", apply("less", x, const(0, x.dtype)), apply("mul", const(a, x.dtype), x), x
    ),
    "Clip": lambda x, a, b: apply("min", apply("max", x, const(a, x.dtype)), const(b, x.dtype)),
    "HardSigmoid": lambda x, a, b: apply(
        "min",
        apply("max", apply("add", apply("mul", x, const(a, x.dtype)), const(b, x.dtype)), const(0, x.dtype)),
        const(1, x.dtype),
    ),
}


def activated(view: View, x: Scalar, parameters: tuple[float, ...]) -> Scalar:
    """x after the activation that the node names."""
    name = view.attr("activation", "")
    if name not in ACTIVATIONS:
        usable = ", ".join(ACTIVATIONS)
        raise view.refuse("E-NO-KERNEL", f"activation {name} is not supported", f"one of {usable}")
    defaults = {"LeakyRelu": (0.01, 0.0), "HardSigmoid": (0.2, 0.5)}.get(name, (0.0, 0.0))
    alpha, beta = (*parameters, *defaults[len(parameters) :])[:2]
    return ACTIVATIONS[name](x, alpha, beta)


def fused_gemm(view: View) -> tuple[Definition, ...]:
    """Gemm with an activation."""
    (made,) = gemm(view)
    defaults = (("activation_alpha", None), ("activation_beta", None))
    given = tuple(v for k, default in defaults if (v := view.attr(k, default)) is not None)
    return (replace(made, value=activated(view, made.value, given)),)


def fused_conv(view: View) -> tuple[Definition, ...]:
    """Conv, plus input 3, with an activation."""
    (made,) = conv(view)
    value = made.value
    if view.has(3):
        value = apply("add", value, view.load(3, tuple(map(Index.of, made.axes))))
        for one, other in zip(view.shape(3), made.shape, strict=True):
            view.demand(one, "equals", other)
    return (replace(made, value=activated(view, value, view.attr("activation_params", ()))),)


def fused_matmul(view: View) -> tuple[Definition, ...]:
    """MatMul of operands that may be transposed, times alpha; transBatch*: the first axis is a matrix axis."""
    a = _operand(view, 0, view.attr("transA", 0), view.attr("transBatchA", 0))
    b = _operand(view, 1, view.attr("transB", 0), view.attr("transBatchB", 0))
    alpha = view.attr("alpha", 1.0)
    return multiplied(view, a, b, lambda x, axes: x if alpha == 1.0 else apply("mul", x, const(alpha, x.dtype)))


def _operand(view: View, i: int, transposed: int, batched: int) -> Operand:
    """Input i as a batch of matrices; a vector is never transposed."""
    have = view.shape(i)
    order = list(range(len(have)))
    if len(have) > 1 and batched:
        order = [*order[1:-1], order[0], order[-1]]
    if len(have) > 1 and transposed:
        order = [*order[:-2], order[-1], order[-2]]

    def element(at: At) -> Scalar:
        place = dict(zip(order, at, strict=True))
        return view.load(i, tuple(place[d] for d in range(len(have))))

    return Operand(tuple(have[d] for d in order), element)


def skip_normalization(*, centred: bool) -> Define:
    """SkipLayerNormalization: normalizes input + skip (+ bias), which is output 3, and scales by input 2.

    If not `centred` (RMS) there is no shift, and the bias is input 3. Outputs 1 and 2, statistics for training, are
    undefined.
    """

    def define(view: View) -> tuple[Definition, ...]:
        s, have, x = Stages(view), view.ranked(0, 1), wide(view)
        bias = 4 if centred else 3

        def added(at: At) -> Scalar:
            value = apply("add", x(at), wide(view, 1)(spread(view, view.shape(1), have, at)))
            return apply("add", value, wide(view, bias)(at[-1:])) if view.has(bias) else value

        summed = s.value("%added", have, added)
        _tail(s, have, summed, scale=2, shift=3 if centred else None, centred=centred)
        s.output(have, summed, k=3)
        return tuple(s.made)

    return define


def _tail(s: Stages, have: At, x: Element, *, scale: int, shift: int | None, centred: bool = True) -> None:
    """Output 0: x normalized over its last axis, times input `scale`, plus input `shift`, in the type of `scale`."""
    view = s.view
    normal = s.normalized(have, (len(have) - 1,), x, view.attr("epsilon", 1e-12), centred=centred)

    def value(at: At) -> Scalar:
        made = apply("mul", normal.value(at), wide(view, scale)(at[-1:]))
        return apply("add", made, wide(view, shift)(at[-1:])) if shift is not None and view.has(shift) else made

    s.output(have, value, dtype=view.dtype(scale))


def embed_layer_normalization(view: View) -> tuple[Definition, ...]:
    """Sum of word, position and segment embeddings, normalized; output 1 counts the mask.

    Output 2, the sum, is undefined: in a function body the runtime infers the type of the ids for it.
    """
    s = Stages(view)
    batch, length = view.ranked(0, 2, 2)
    have = (batch, length, view.ranked(2, 2, 2)[1])
    for table in (3, 4) if view.has(1) else (3,):
        view.ranked(table, 2, 2)

    def part(table: int, place: Index, column: Index) -> Scalar:
        return wide(view, table)((place, column))

    def embedded(at: At) -> Scalar:
        row, column = at[:2], at[2]
        spot = loaded(view, 8, spread(view, view.shape(8), have[:2], row), view.shape(3)[0]) if view.has(8) else at[1]
        value = part(2, loaded(view, 0, row, view.shape(2)[0]), column)
        value = apply("add", value, part(3, spot, column))
        if view.has(1):
            value = apply("add", value, part(4, loaded(view, 1, row, view.shape(4)[0]), column))
        return value

    summed = s.value("%embedded", have, embedded)
    _tail(s, have, summed, scale=5, shift=6)
    s.output((batch,), _masked(s) if view.has(7) else lambda at: const(0, I32), k=1, dtype=I32)
    return tuple(s.made)


def _masked(s: Stages) -> Element:
    """How many elements of each row of the mask are 1, as the runtime counts: others are as 0, whatever they are."""
    view = s.view

    def one(at: At) -> Scalar:
        held = view.load(7, at)
        return cast(apply("equal", held, const(1, held.dtype)), I32)

    count = s.reduced("%mask", view.ranked(7, 2, 2), (1,), "sum", one)
    return lambda at: count((*at, ZERO))


def scaled_image(view: View) -> tuple[Definition, ...]:
    """ImageScaler: every pixel times one number, plus a number of its channel."""
    s, x, shifts = Stages(view), wide(view), view.attr("bias", ())
    scale, have = view.attr("scale", 1.0), view.ranked(0, 2)

    def value(at: At) -> Scalar:
        made = apply("mul", x(at), const(scale, x(at).dtype))
        shift: Scalar = const(shifts[-1], made.dtype)
        for i, b in reversed(list(enumerate(shifts[:-1]))):
            mine = apply("equal", FromIndex(at[1], I64), const(i, I64))
            shift = apply("select", mine, const(b, made.dtype), shift)
        return apply("add", made, shift)

    s.output(have, value)
    return tuple(s.made)


def crop(view: View) -> tuple[Definition, ...]:
    """Crop: `border` (left, top, right, bottom) off the last two axes; or `scale` rows and columns from there on."""
    n, c, h, w = view.ranked(0, 4, 4)
    border, wanted = view.attr("border", (0, 0, 0, 0)), view.attr("scale", ())
    view.lengths("border", border, 4)
    view.lengths("scale", wanted, 2 if wanted else 0)
    left, top, right, bottom = border
    rest = tuple(map(Index.of, wanted)) if wanted else (h - top - bottom, w - left - right)
    axes = view.axes((n, c, *rest))
    i, j, y, x = map(Index.of, axes)
    return (Definition(view.out(), axes, view.load(0, (i, j, y + top, x + left))),)


def _numbers(put: Speller, dtype: DType, *values: float, shape: tuple[int, ...] = ()) -> str:
    return put.constant(Constant.of(np.array(values, dtype.numpy).reshape(shape), dtype))


def _spelled_image(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    dtype, shifts = view.dtype(0), view.attr("bias", ())
    scaled = put.add("Mul", inputs[0], _numbers(put, dtype, view.attr("scale", 1.0)))
    return (put.add("Add", scaled, _numbers(put, dtype, *shifts, shape=(1, len(shifts), 1, 1))),)


def _spelled_crop(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    left, top, right, bottom = view.attr("border", (0, 0, 0, 0))
    wanted = view.attr("scale", ())
    starts = (top, left)
    ends = tuple(map(sum, zip(starts, wanted, strict=True))) if wanted else (-bottom or _FAR, -right or _FAR)
    return (put.add("Slice", inputs[0], starts=starts, ends=ends, axes=(2, 3)),)


def _line(view: View, x: Scalar) -> Scalar:
    scaled = apply("mul", x, const(view.attr("alpha", 1.0), x.dtype))
    return apply("add", scaled, const(view.attr("beta", 0.0), x.dtype))


def _spelled_line(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    alpha, beta = (_numbers(put, view.dtype(0), view.attr(k, v)) for k, v in (("alpha", 1.0), ("beta", 0.0)))
    return (put.add("Add", put.add("Mul", inputs[0], alpha), beta),)


def _scaled_tanh(view: View, x: Scalar) -> Scalar:
    bent = apply("tanh", apply("mul", const(view.attr("beta", 0.0), x.dtype), x))
    return apply("mul", const(view.attr("alpha", 0.0), x.dtype), bent)


def _spelled_tanh(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    alpha, beta = (_numbers(put, view.dtype(0), view.attr(k, 0.0)) for k in ("alpha", "beta"))
    return (put.add("Mul", put.add("Tanh", put.add("Mul", inputs[0], beta)), alpha),)


_DROPPED = 9  # the last opset with operators of old drafts
_FAR = 1 << 31  # the end of an unbounded slice

ROWS: tuple[Row, ...] = (
    Row(MICROSOFT + "Gelu", biased(lambda view, x: gelu_of(x, tanh=False))),
    Row(MICROSOFT + "BiasGelu", biased(lambda view, x: gelu_of(x, tanh=False))),
    Row(MICROSOFT + "FastGelu", biased(lambda view, x: gelu_of(x, tanh=True))),
    Row(MICROSOFT + "QuickGelu", biased(quick_gelu)),
    Row(MICROSOFT + "FusedMatMul", fused_matmul),
    Row(MICROSOFT + "FusedGemm", fused_gemm),
    Row(MICROSOFT + "FusedConv", fused_conv),
    Row(MICROSOFT + "SkipLayerNormalization", skip_normalization(centred=True)),
    Row(MICROSOFT + "SkipSimplifiedLayerNormalization", skip_normalization(centred=False)),
    Row(MICROSOFT + "EmbedLayerNormalization", embed_layer_normalization),
    Row("ImageScaler", scaled_image, until=_DROPPED, spell=_spelled_image),
    Row("Crop", crop, until=_DROPPED, spell=_spelled_crop),
    replace(unary("Affine", _line, until=_DROPPED), spell=_spelled_line),
    replace(unary("ScaledTanh", _scaled_tanh, until=_DROPPED), spell=_spelled_tanh),
)
