"""Rows of quantizing, dequantizing and quantized operators: real value = (quantized value - zero point) * scale.

Quantized values ("codes" in names) are computed in float32, as ONNX Runtime does for every type: x / scale is rounded
half to even and clamped to the limits of the integer type minus the zero point, which is then added as an integer. All
integers of 8 and 16 bits are exact in float32.

Of ONNX Runtime's quantized operators (QLinearAdd and others) sums, products and means over images are rounded exactly
as the runtime does. The others dequantize, apply the float operator and quantize again, where the runtime uses tables
and integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from onnxfuse.ir.compose import inline
from onnxfuse.ir.dtype import F32, I32, U8, DType, dtype_of
from onnxfuse.ir.graph import Node, TensorType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Load, Scalar, apply, cast, const
from onnxfuse.ops import elementwise, movement, normalization, pooling
from onnxfuse.ops.contrib import MICROSOFT
from onnxfuse.ops.elementwise import aligned, broadcast
from onnxfuse.ops.spec import Define, Definition, Row, View, table
from onnxfuse.ops.speller import Speller
from onnxfuse.ops.stages import At, Stages, here, number, total

_INTEGERS = "quantized values of int8, uint8, int16 or uint16"
CHANNELS = "channels_last 0, with Transposes around it"
_CODES = 10  # the first opset with QuantizeLinear
_NUMBERS = table(elementwise.ROWS, movement.ROWS, normalization.ROWS, pooling.ROWS)  # of operators on decoded values
_SHORT = 16  # bits of the widest quantized type that saturates exactly in float32


def quantize(view: View) -> tuple[Definition, ...]:
    """saturate(round(x / scale) + zero point) in the type of the zero point; NaN gives the type's minimum."""
    axes = view.axes(view.shape(0))
    at = here(axes)
    dtype = view.dtype(2) if view.has(2) else _named(view, "output_dtype", U8)
    if dtype.kind not in "iu" or dtype.bits > _SHORT:
        raise view.refuse("E-DTYPE", f"quantized values of type {dtype} are not supported", _INTEGERS)
    if _named(view, "precision", F32) != F32:
        raise view.refuse("E-DTYPE", "a precision other than float32 is not supported", "precision 1 (float32)")
    place = _place(view, at)
    code = coded(cast(view.load(0, at), F32), parameter(view, 1, place), _zero(view, place), dtype)
    return (Definition(view.out(), axes, code),)


def coded(x: Scalar, scale: Scalar, zero: Scalar | None, dtype: DType) -> Scalar:
    """A float32 value quantized."""
    return code_of(apply("div", x, cast(scale, F32)), zero, dtype)


def code_of(steps: Scalar, zero: Scalar | None, dtype: DType) -> Scalar:
    """The quantized value of x / scale, which is given as `steps` and rounded here."""
    low, high = ends(dtype)
    if zero is None:
        return cast(apply("snap", steps, low, high), dtype)
    moved = cast(zero, F32)
    whole = apply("snap", steps, apply("sub", low, moved), apply("sub", high, moved))
    return cast(apply("add", cast(whole, I32), cast(zero, I32)), dtype)


def dequantize(view: View) -> tuple[Definition, ...]:
    """(x - zero point) * scale in the type of the scale."""
    axes = view.axes(view.shape(0))
    at = here(axes)
    dtype = _named(view, "output_dtype", view.dtype(1))
    if view.dtype(0).kind not in "iu" or not dtype.floating:
        raise view.refuse(
            "E-DTYPE", f"quantized values of type {view.dtype(0)} as {dtype} are not supported", _INTEGERS
        )
    place = _place(view, at)
    exact = F32 if view.dtype(0).bits <= _SHORT else I32
    code = cast(view.load(0, at), exact)
    if (zero := _zero(view, place)) is not None:
        code = apply("sub", code, cast(zero, exact))
    value = apply("mul", cast(code, F32), cast(parameter(view, 1, place), F32))
    return (Definition(view.out(), axes, cast(value, dtype)),)


def quantize_dynamically(view: View) -> tuple[Definition, ...]:
    """DynamicQuantizeLinear: uint8 over the range of all elements and 0; NaN propagates, an empty range has scale 1."""
    s, have = Stages(view), view.shape(0)

    def end(name: str, sided: Callable[[Scalar], Scalar]) -> Scalar:
        """The greatest of 0 and all elements on one side of it; NaN is on neither."""

        def positive(at: At) -> Scalar:
            x, none = sided(view.load(0, at)), const(0.0, F32)
            return apply("select", apply("greater", x, none), x, none)

        read = s.reduced(name, have, range(len(have)), "maxnum", positive, lambda v: apply("max", v, const(0.0, F32)))
        return read((ZERO,) * len(have))

    high = end("%max", lambda x: x)
    low = apply("sub", const(0.0, F32), end("%min", partial(apply, "sub", const(0.0, F32))))
    step = apply("div", apply("sub", high, low), const(255.0, F32))
    scale = s.value("%scale", (), lambda at: apply("select", apply("equal", low, high), const(1.0, F32), step))(())
    steps = apply("div", apply("sub", const(0.0, F32), low), scale)
    last = apply("select", apply("isnan", steps), const(255.0, F32), apply("snap", steps, *ends(U8)))
    zero = s.value("%zero", (), lambda at: cast(last, U8))(())
    s.output(have, lambda at: coded(view.load(0, at), scale, zero, U8), dtype=U8)
    s.output((), lambda at: scale, k=1, dtype=F32)
    s.output((), lambda at: zero, k=2, dtype=U8)
    return tuple(s.made)


def parameter(view: View, i: int, place: At) -> Scalar:
    """A scale or zero point as a load, even where it is a constant, so that layers that differ in it share a kernel."""
    return Load(view.node.inputs[i], place, view.dtype(i))


def single(view: View, i: int) -> Scalar:
    """The per-tensor scale or zero point i."""
    have = view.shape(i)
    if not _is_single(view, i):
        raise view.refuse("E-BROADCAST", f"a scale or zero point of shape {have!r} is not supported")
    return parameter(view, i, (ZERO,) * len(have))


def _zero(view: View, place: At) -> Scalar | None:
    if not view.has(2):
        return None
    return single(view, 2) if _is_single(view, 2) else parameter(view, 2, place)


def _is_single(view: View, i: int) -> bool:
    return all(e == ONE for e in view.shape(i))


def _named(view: View, attribute: str, default: DType) -> DType:
    """The element type of an attribute; the default where it is 0 or absent."""
    found = dtype_of(view.attr(attribute, 0) or default.onnx)
    if found is None:
        raise view.refuse("E-DTYPE", f"element type {view.attr(attribute, 0)} has no kernel")
    return found


def ends(dtype: DType) -> tuple[Scalar, Scalar]:
    """The limits of a quantized type, as float32 constants."""
    lowest = -(2 ** (dtype.bits - 1)) if dtype.kind == "i" else 0
    return const(lowest, F32), const(lowest + 2**dtype.bits - 1, F32)


def _place(view: View, at: At) -> At:
    """The index of the scale and zero point of element `at`: per tensor, per axis, or blocked."""
    have = view.shape(1)
    alone = _is_single(view, 1)
    if view.has(2) and len(view.shape(2)) != len(have) and not (alone and _is_single(view, 2)):
        raise view.refuse("E-INVALID", "the shapes of scale and zero point differ")
    if not have or have == (Index.of(1),):
        return (ZERO,) * len(have)
    axis = view.axis(view.attr("axis", 1), len(at))
    block = view.attr("block_size", 0)
    if block:
        return (*at[:axis], at[axis] // block, *at[axis + 1 :])
    if have != (view.shape(0)[axis],):
        raise view.refuse("E-BROADCAST", f"scales of shape {have!r} do not fit an axis of {view.shape(0)[axis]!r}")
    return (at[axis],)


def between_codes(op: str, first: int, result: int, *, plain: int = 0) -> Define:
    """The definition of a quantized operator as dequantize, float operator `op`, quantize.

    Inputs before `first` are the scale and zero point of the result, where `result` is 0, or `plain` operands, which
    are not quantized. From `first` on, up to `result` or to the end, follow operands: values, scale, zero point.
    """

    def define(view: View) -> tuple[Definition, ...]:
        if view.attr("channels_last", 0):
            raise view.refuse("E-NO-KERNEL", "the layout channels_last=1 is not supported", CHANNELS)
        end = result or len(view.node.inputs)
        if any(view.dtype(i) != F32 for i in (result, *range(first + 1, end, 3))):
            raise view.refuse("E-INVALID", "a scale is not float32")
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
        row = _NUMBERS.find(node, of_numbers.opset)
        if row is None:
            raise view.refuse("E-NO-KERNEL", f"opset {of_numbers.opset} is not supported")
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
    *(
        Row(domain + op, define, since=1 if domain else 10, codes=True)
        for domain in ("", MICROSOFT)
        for op, define in (("QuantizeLinear", quantize), ("DequantizeLinear", dequantize))
    ),
    Row("DynamicQuantizeLinear", quantize_dynamically, since=11),
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
