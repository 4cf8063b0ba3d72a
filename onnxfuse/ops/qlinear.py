"""Rows of ONNX Runtime's quantized operators (QLinearAdd and others): quantized values in, quantized values out.

Sums, products and means over images are rounded exactly as the runtime does. The others dequantize, apply the float
operator and quantize again, where the runtime uses tables and integers.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.compose import inline
from onnxfuse.ir.dtype import F32, I32
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Scalar, apply, cast, const
from onnxfuse.ops import elementwise, movement, normalization, pooling
from onnxfuse.ops.elementwise import aligned, broadcast
from onnxfuse.ops.own import MICROSOFT
from onnxfuse.ops.quantized import code_of, coded, dequantize, ends, parameter, single
from onnxfuse.ops.spec import Define, Definition, Row, Speller, View
from onnxfuse.ops.stages import number, total

CHANNELS = "channels_last 0, with Transposes around it"
_CODES = 10  # the first opset with QuantizeLinear
_FAMILIES = (elementwise, movement, normalization, pooling)


def between_codes(op: str, first: int, result: int, *, plain: int = 0) -> Define:
    """The definition of a quantized operator as dequantize, float operator `op`, quantize.

    Inputs before `first` are the scale and zero point of the result, where `result` is 0, or `plain` operands, which
    are not quantized. From `first` on, up to `result` or to the end, follow operands: values, scale, zero point.
    """

    def define(view: View) -> tuple[Definition, ...]:
        if view.attr("channels_last", 0):
            raise view.refuse("E-NO-KERNEL", "the layout channels_last=1 is not supported", CHANNELS)
        end = result or len(view.node.inputs)
        numbers = [_decoded(view, i, f"{view.out()}%{i}") for i in range(first, end, 3)]
        node = replace(
            view.node,
            op=op,
            domain="",
            inputs=(*view.node.inputs[:plain], *(d.name for d in numbers)),
            outputs=(f"{view.out()}%numbers",),
        )
        types = {**view.types, **{d.name: TensorType(F32, d.shape) for d in numbers}}
        of_numbers = replace(view, node=node, types=types, opset=view.attr("opset", view.opset))
        row = next(r for f in _FAMILIES for r in f.ROWS if r.op == op and r.since <= of_numbers.opset <= r.until)
        producers = {d.name: (d.axes, d.value) for d in numbers}
        made = [replace(d, value=inline(d.value, producers)) for d in row.define(of_numbers)]
        last = made.pop()
        dtype = view.dtype(result + 1) if view.has(result + 1) else view.dtype(first)
        zero = single(view, result + 1) if view.has(result + 1) else None
        code = coded(last.value, single(view, result), zero, dtype)
        return (*made, Definition(view.out(), last.axes, code))

    return define


def added(view: View) -> tuple[Definition, ...]:
    """QLinearAdd: two multiply-adds by the ratios of scales, onto a constant that combines all zero points.

    An operand that is one element per row of the other is added to that constant first, as the runtime does.
    """
    axes, (one, two) = _operands(view)
    result = single(view, 6)
    shares = [apply("div", single(view, i), result) for i in (1, 4)]
    points = [_wide(_point(view, i)) for i in (2, 5, 7)]
    fixed = apply("sub", points[2], apply("fma", shares[0], points[0], apply("mul", shares[1], points[1])))
    terms = [(_wide(x), share) for x, share in zip((one, two), shares, strict=True)]
    first, last = terms if _repeats(view, 0, axes) else terms[::-1]
    value = apply("fma", *last, apply("fma", *first, fixed))
    return (Definition(view.out(), axes, cast(apply("snap", value, *ends(view.dtype(0))), view.dtype(0))),)


def _operands(view: View) -> tuple[tuple[Axis, ...], tuple[Scalar, Scalar]]:
    """The axes of the result of two quantized operands, and an element of each, in the runtime's order."""
    shapes = [view.shape(0), view.shape(3)]
    axes = view.axes(broadcast(view, shapes))
    one, two = (parameter(view, i, aligned(view, view.shape(i), axes)) for i in (0, 3))
    return axes, (one, two)


def _repeats(view: View, i: int, axes: tuple[Axis, ...]) -> bool:
    """Whether operand i has one element for each row of the result."""
    have = view.shape(i)
    return bool(axes) and axes[-1].extent != ONE and (not have or have[-1] == ONE)


def _point(view: View, i: int) -> Scalar:
    """The zero point that is input i, 0 where there is none."""
    return single(view, i) if view.has(i) else const(0, view.dtype(0))


def _wide(x: Scalar) -> Scalar:
    return cast(x, F32)


def averaged(view: View) -> tuple[Definition, ...]:
    """QLinearGlobalAveragePool: the sum of an image, as integers, times one factor."""
    have, dtype = view.shape(0), view.dtype(0)
    if view.attr("channels_last", 0):
        raise view.refuse("E-NO-KERNEL", "the layout channels_last=1 is not supported", CHANNELS)
    axes = view.axes((*have[:2], *(ONE for _ in have[2:])))
    places = tuple(Axis(f"{view.out()}:k{i}", e) for i, e in enumerate(have[2:]))
    code = view.load(0, (*map(Index.of, axes[:2]), *map(Index.of, places)))
    sum_ = total("sum", places, apply("sub", cast(code, I32), cast(_point(view, 2), I32)))
    count = number(product(have[2:]), F32)
    factor = apply("div", single(view, 1), apply("mul", single(view, 3), count))
    zero = single(view, 4) if view.has(4) else None
    return (Definition(view.out(), axes, code_of(apply("mul", cast(sum_, F32), factor), zero, dtype)),)


def _decoded(view: View, i: int, name: str) -> Definition:
    """Input i dequantized; its scale and zero point are the next inputs."""
    node = Node("DequantizeLinear", view.node.inputs[i : i + 3], (name,), {}, view.node.name)
    return dequantize(replace(view, node=node))[0]


def _spelled_concat(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    """QLinearConcat by a Concat of floats: in function bodies the runtime infers the scale's type for the result."""
    if put.opset < _CODES:
        raise view.refuse("E-OPSET", f"QuantizeLinear is not in opset {put.opset}", f"an opset of {_CODES} or newer")
    scale, zero, *operands = inputs
    numbers = [put.add("DequantizeLinear", *operands[i : i + 3]) for i in range(0, len(operands), 3)]
    return (put.add("QuantizeLinear", put.add("Concat", *numbers, axis=view.attr("axis", 0)), scale, zero),)


ROWS: tuple[Row, ...] = (
    Row(MICROSOFT + "QLinearAdd", added),
    Row(MICROSOFT + "QLinearMul", between_codes("Mul", 0, 6)),
    Row(MICROSOFT + "QLinearSigmoid", between_codes("Sigmoid", 0, 3)),
    Row(MICROSOFT + "QLinearLeakyRelu", between_codes("LeakyRelu", 0, 3)),
    Row(MICROSOFT + "QLinearSoftmax", between_codes("Softmax", 0, 3)),
    Row(MICROSOFT + "QLinearAveragePool", between_codes("AveragePool", 0, 3), images="pool"),
    Row(MICROSOFT + "QLinearGlobalAveragePool", averaged, images="pool"),
    Row(MICROSOFT + "QLinearWhere", between_codes("Where", 1, 7, plain=1)),
    Row(MICROSOFT + "QLinearConcat", between_codes("Concat", 2, 0), spell=_spelled_concat),
)
