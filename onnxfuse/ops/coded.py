"""Rows of products of integer codes: sums of differences from zero points, as integers, or coded anew.

Sums are exact. What QLinear operators make of them is scaled as numbers of float32, by one scale for all or one for
each column, which is what DequantizeLinear, the product and QuantizeLinear together mean.
"""

from __future__ import annotations

from onnxfuse.ir.compose import guarded, in_guards
from onnxfuse.ir.dtype import F32, I32, DType
from onnxfuse.ir.index import ONE, ZERO, Index
from onnxfuse.ir.scalar import Apply, Scalar, apply, cast, const
from onnxfuse.ops.contraction import Operand, Windowed, convolved, multiplied
from onnxfuse.ops.quantized import coded, parameter
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element
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
    return multiplied(view, left, right, lambda value: _coded(view, value), view.dtype(7))


def qlinear_conv(view: View) -> tuple[Definition, ...]:
    """QLinearConv: the convolution of codes as codes; the bias has the scale of a product, and no zero point."""

    def finish(value: Scalar, channel: Index) -> Scalar:
        if view.has(8):
            scale = apply("mul", _single(view, 1), parameter(view, 4, _place(view, 4, 0, (channel,))))
            value = apply("add", value, apply("mul", cast(view.load(8, (channel,)), F32), scale))
        return _coded(view, value)

    return convolved(view, 3, _padded(_number(view, 0, None)), _number(view, 3, 0), finish, view.dtype(7))


def _coded(view: View, value: Scalar) -> Scalar:
    return coded(value, _single(view, 6), _single(view, 7), view.dtype(7))


def _single(view: View, i: int) -> Scalar:
    """A parameter that is one for all."""
    return parameter(view, i, _place(view, i, None, ()))


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
)
