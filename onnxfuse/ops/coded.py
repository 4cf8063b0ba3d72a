"""Rows of products of integer codes: sums of differences from zero points, as integers, or coded anew.

Sums are exact. What QLinear operators make of them is scaled as numbers of float32, by one scale for all or one for
each column, which is what DequantizeLinear, the product and QuantizeLinear together mean.
"""

from __future__ import annotations

from onnxfuse.ir.compose import guarded, in_guards
from onnxfuse.ir.dtype import F32, I32, DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.scalar import Apply, Scalar, apply, cast, const
from onnxfuse.ops.contraction import Operand, Windowed, convolved, multiplied, turned
from onnxfuse.ops.elementwise import aligned
from onnxfuse.ops.own import MICROSOFT
from onnxfuse.ops.quantized import coded, parameter, single
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, here
from onnxfuse.ops.window import Window, guards_of


def matmul_integer(view: View) -> tuple[Definition, ...]:
    """MatMulInteger: (A - a zero) (B - b zero) in 32 bits; zero points of A for all, of B for all or each column."""
    left = Operand(view.shape(0), _difference(view, 0, 2, I32, None))
    right = Operand(view.shape(1), _difference(view, 1, 3, I32, -1))
    return multiplied(view, left, right, dtype=I32)


def conv_integer(view: View) -> tuple[Definition, ...]:
    """ConvInteger: the convolution of X - x zero, padded with zeros, with W - w zero, in 32 bits."""
    left, right = _difference(view, 0, 2, I32, None), _difference(view, 1, 3, I32, 0)
    return convolved(view, 1, _padded(left), right, lambda value, channel: value, I32)


def qlinear_matmul(view: View) -> tuple[Definition, ...]:
    """QLinearMatMul: the product of two matrices of codes as codes."""
    left = Operand(view.shape(0), _number(view, 0, None))
    right = Operand(view.shape(3), _number(view, 3, -1))
    return multiplied(view, left, right, lambda value: _coded(view, value, 6), view.dtype(7))


def qlinear_conv(view: View) -> tuple[Definition, ...]:
    """QLinearConv: the convolution of codes as codes; the bias has the scale of a product, and no zero point."""

    def finish(value: Scalar, channel: Index) -> Scalar:
        if view.has(8):
            bias = cast(view.load(8, (channel,)), F32)
            value = apply("add", value, apply("mul", bias, _scale_of_sums(view, (channel,), 0)))
        return _coded(view, value, 6)

    return convolved(view, 3, _padded(_number(view, 0, None)), _number(view, 3, 0), finish, view.dtype(7))


def qgemm(view: View) -> tuple[Definition, ...]:
    """QGemm: alpha * A' B' of codes plus a bias of 32 bits, which has the scale of a product and alpha too.

    Codes where there is a scale for them, else numbers.
    """
    alpha, columns = view.attr("alpha", 1.0), 0 if view.attr("transB", 0) else -1

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        if view.has(6):
            bias = cast(view.load(6, aligned(view, view.shape(6), axes)), F32)
            value = apply("add", value, apply("mul", bias, _scale_of_sums(view, here(axes)[1:], 0)))
        value = value if alpha == 1.0 else apply("mul", value, const(alpha))
        return _coded(view, value, 7) if view.has(7) else value

    dtype = view.dtype(8) if view.has(8) else view.dtype(0) if view.has(7) else F32
    return turned(view, 3, _number(view, 0, None), _number(view, 3, columns), finish, dtype)


def _scale_of_sums(view: View, at: At, axis: int) -> Scalar:
    """The scale of products of inputs 0 and 3, whose parameters are of one number each, or lie along an axis."""
    return apply("mul", single(view, 1), parameter(view, 4, _place(view, 4, axis, at)))


def _coded(view: View, value: Scalar, scale: int) -> Scalar:
    """A value as a code, with the scale that is this input and the zero point behind it."""
    zero = single(view, scale + 1) if view.has(scale + 1) else None
    return coded(value, single(view, scale), zero, view.dtype(scale + 1) if zero is not None else view.dtype(0))


def _place(view: View, i: int, axis: int | None, at: At) -> At:
    """Where the parameter of an element lies: one for all, or one for each index of an axis."""
    have = view.shape(i)
    if all(e == ONE for e in have):
        return (ZERO,) * len(have)
    if axis is None or len(have) != 1:
        raise view.refuse("E-BROADCAST", f"a scale or zero point of shape {have!r}")
    return (at[axis],)


def _difference(view: View, i: int, zero: int, dtype: DType, axis: int | None) -> Element:
    """Codes less their zero point, in a type that holds the difference."""

    def element(at: At) -> Scalar:
        code = cast(view.load(i, at), dtype)
        if not view.has(zero):
            return code
        return apply("sub", code, cast(parameter(view, zero, _place(view, zero, axis, at)), dtype))

    return element


def _number(view: View, i: int, axis: int | None) -> Element:
    """What codes stand for: input i with its scale and zero point behind it."""
    difference = _difference(view, i, i + 2, F32, axis)

    def element(at: At) -> Scalar:
        return apply("mul", difference(at), parameter(view, i + 1, _place(view, i + 1, axis, at)))

    return element


def _padded(element: Element) -> Windowed:
    """Elements, 0 where a window lies in the padding."""

    def value(at: tuple[Index, ...], spots: tuple[Window, ...]) -> Scalar:
        guards, inner = guards_of(at, spots), element(at)
        if not guards:
            return inner
        return Apply("select", (in_guards(guards), guarded(inner, guards), const(0, inner.dtype)), inner.dtype)

    return value


ROWS: tuple[Row, ...] = (
    Row("MatMulInteger", matmul_integer, since=10),
    Row("ConvInteger", conv_integer, since=10),
    Row("QLinearMatMul", qlinear_matmul, since=10),
    Row("QLinearConv", qlinear_conv, since=10),
    Row(MICROSOFT + "QGemm", qgemm),
)
