"""Rows of quantized matrix products and convolutions: 32-bit sums of products, or sums requantized to 8 bits.

Sums are exact. QLinear operators requantize as ONNX Runtime does, bit for bit: the bias is added to the integers, and
the sum is multiplied by one factor, left scale * right scale / result scale, per tensor or per column.
"""

from __future__ import annotations

from onnxfuse.ir.compose import guarded, in_guards
from onnxfuse.ir.dtype import F32, I32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.scalar import Apply, Scalar, apply, cast, const
from onnxfuse.ops.contraction import Operand, Windowed, convolved, multiplied, one_each, with_transposes
from onnxfuse.ops.contrib import MICROSOFT
from onnxfuse.ops.elementwise import aligned
from onnxfuse.ops.quantized import code_of, parameter, single
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, here
from onnxfuse.ops.window import Window, guards_of


def matmul_integer(view: View) -> tuple[Definition, ...]:
    """MatMulInteger: (A - a_zero) (B - b_zero) in 32 bits; a_zero is per tensor, b_zero per tensor or per column."""
    left = Operand(view.shape(0), _difference(view, 0, 2, None))
    right = Operand(view.shape(1), _difference(view, 1, 3, -1))
    return multiplied(view, left, right, dtype=I32)


def conv_integer(view: View) -> tuple[Definition, ...]:
    """ConvInteger: the convolution of X - x_zero, padded with zeros, with W - w_zero, in 32 bits."""
    left, right = _difference(view, 0, 2, None), _difference(view, 1, 3, 0)
    return convolved(view, 1, _padded(left), right, lambda value, channel: value, I32)


def qlinear_matmul(view: View) -> tuple[Definition, ...]:
    """QLinearMatMul: the product of two quantized matrices, requantized."""
    left = Operand(view.shape(0), _difference(view, 0, 2, None))
    right = Operand(view.shape(3), _difference(view, 3, 5, -1))

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        return _coded(view, value, _factor(view, here(axes), -1, 6), 7)

    return multiplied(view, left, right, finish=finish, dtype=view.dtype(7))


def qlinear_conv(view: View) -> tuple[Definition, ...]:
    """QLinearConv: a quantized convolution, requantized; the bias has the product of both scales and no zero point."""
    if view.has(8):
        one_each(view, 8, view.ranked(3, 1)[0])

    def finish(value: Scalar, channel: Index) -> Scalar:
        if view.has(8):
            value = apply("add", value, view.load(8, (channel,)))
        return _coded(view, value, _factor(view, (channel,), 0, 6), 7)

    return convolved(view, 3, _padded(_difference(view, 0, 2, None)), _difference(view, 3, 5, 0), finish, view.dtype(7))


def qgemm(view: View) -> tuple[Definition, ...]:
    """QGemm: alpha * A' B' of quantized matrices plus a 32-bit bias of scale alpha * a_scale * b_scale.

    The result is quantized where its scale is given, else float.
    """
    columns = 0 if view.attr("transB", 0) else -1

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        if view.has(6):
            value = apply("add", value, view.load(6, aligned(view, view.shape(6), axes)))
        if view.has(7):
            return _coded(view, value, _factor(view, here(axes), -1, 7), 8)
        return apply("mul", cast(value, F32), _scale_of_sums(view, here(axes), -1))

    dtype = view.dtype(8) if view.has(8) else view.dtype(0) if view.has(7) else F32
    return with_transposes(view, 3, _difference(view, 0, 2, None), _difference(view, 3, 5, columns), finish, dtype)


def matmul_integer_to_float(view: View) -> tuple[Definition, ...]:
    """MatMulIntegerToFloat: MatMulInteger, times the scales of both sides, plus a bias of the columns."""
    left = Operand(view.shape(0), _difference(view, 0, 4, None))
    right = Operand(view.shape(1), _difference(view, 1, 5, -1))
    for i in (3, 5, 6):
        if view.has(i) and any(e != ONE for e in view.shape(i)):
            one_each(view, i, view.ranked(1, 2)[-1])

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        scale = apply("mul", single(view, 2), parameter(view, 3, _place(view, 3, -1, here(axes))))
        value = apply("mul", cast(value, F32), scale)
        return apply("add", value, view.load(6, here(axes)[-1:])) if view.has(6) else value

    return multiplied(view, left, right, finish=finish, dtype=F32)


def _scale_of_sums(view: View, at: At, axis: int) -> Scalar:
    """The scale of products of inputs 0 and 3: the product of their scales, per tensor or per index of an axis."""
    first, alpha = single(view, 1), view.attr("alpha", 1.0)
    if alpha != 1.0:
        first = apply("mul", const(alpha), first)
    return apply("mul", first, parameter(view, 4, _place(view, 4, axis, at)))


def _factor(view: View, at: At, axis: int, scale: int) -> Scalar:
    """The requantization factor of a sum for the result's scale, input `scale`, rounded as the runtime does."""
    return apply("div", _scale_of_sums(view, at, axis), single(view, scale))


def _coded(view: View, total: Scalar, factor: Scalar, zero: int) -> Scalar:
    """A 32-bit sum requantized, with input `zero` as the zero point."""
    there = single(view, zero) if view.has(zero) else None
    dtype = view.dtype(zero) if there is not None else view.dtype(0)
    return code_of(apply("mul", cast(total, F32), factor), there, dtype)


def _place(view: View, i: int, axis: int | None, at: At) -> At:
    """The index of an element's scale or zero point: per tensor, or per index of an axis."""
    have = view.shape(i)
    if all(e == ONE for e in have):
        return (ZERO,) * len(have)
    if axis is None or len(have) != 1:
        raise view.refuse("E-BROADCAST", f"a scale or zero point of shape {have!r} is not supported")
    return (at[axis],)


def _difference(view: View, i: int, zero: int, axis: int | None) -> Element:
    """Quantized values minus their zero point, in 32 bits; constant zero points that are all 0 are left out."""
    zeros = view.array(zero) if axis is not None else None
    plain = not view.has(zero) or (zeros is not None and not zeros.any())

    def element(at: At) -> Scalar:
        code = cast(view.load(i, at), I32)
        if plain:
            return code
        return apply("sub", code, cast(parameter(view, zero, _place(view, zero, axis, at)), I32))

    return element


def _padded(element: Element) -> Windowed:
    """Elements of windows, 0 in the padding."""

    def value(at: tuple[Index, ...], spots: tuple[Window, ...]) -> Scalar:
        guards, inner = guards_of(at, spots), element(at)
        if not guards:
            return inner
        return Apply("select", (in_guards(guards), guarded(inner, guards), const(0, inner.dtype)), inner.dtype)

    return value


ROWS: tuple[Row, ...] = (
    Row("MatMulInteger", matmul_integer, since=10),
    Row("ConvInteger", conv_integer, since=10, images="convolution"),
    Row("QLinearMatMul", qlinear_matmul, since=10),
    Row("QLinearConv", qlinear_conv, since=10, images="convolution"),
    Row(MICROSOFT + "QGemm", qgemm),
    Row(MICROSOFT + "MatMulIntegerToFloat", matmul_integer_to_float),
)
