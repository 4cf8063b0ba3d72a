"""Rows of products of integer codes: sums of differences from zero points, as integers, or coded anew.

Sums are exact. QLinear operators make codes of them as ONNX Runtime does: the bias is added to the integers, and the
sum multiplied by one factor, scales of both sides by that of the result, for all or for each column. Codes are so
the same.
"""

from __future__ import annotations

from onnxfuse.ir.compose import guarded, in_guards
from onnxfuse.ir.dtype import F32, I32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.scalar import Apply, Scalar, apply, cast, const
from onnxfuse.ops.contraction import Operand, Windowed, convolved, multiplied, turned
from onnxfuse.ops.elementwise import aligned
from onnxfuse.ops.own import MICROSOFT
from onnxfuse.ops.quantized import code_of, parameter, single
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, here
from onnxfuse.ops.window import Window, guards_of


def matmul_integer(view: View) -> tuple[Definition, ...]:
    """MatMulInteger: (A - a zero) (B - b zero) in 32 bits; zero points of A for all, of B for all or each column."""
    left = Operand(view.shape(0), _difference(view, 0, 2, None))
    right = Operand(view.shape(1), _difference(view, 1, 3, -1))
    return multiplied(view, left, right, dtype=I32)


def conv_integer(view: View) -> tuple[Definition, ...]:
    """ConvInteger: the convolution of X - x zero, padded with zeros, with W - w zero, in 32 bits."""
    left, right = _difference(view, 0, 2, None), _difference(view, 1, 3, 0)
    return convolved(view, 1, _padded(left), right, lambda value, channel: value, I32)


def qlinear_matmul(view: View) -> tuple[Definition, ...]:
    """QLinearMatMul: the product of two matrices of codes as codes."""
    left = Operand(view.shape(0), _difference(view, 0, 2, None))
    right = Operand(view.shape(3), _difference(view, 3, 5, -1))

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        return _coded(view, value, _factor(view, here(axes), -1, 6), 7)

    return multiplied(view, left, right, finish=finish, dtype=view.dtype(7))


def qlinear_conv(view: View) -> tuple[Definition, ...]:
    """QLinearConv: the convolution of codes as codes; the bias has the scale of a product, and no zero point."""

    def finish(value: Scalar, channel: Index) -> Scalar:
        if view.has(8):
            value = apply("add", value, view.load(8, (channel,)))
        return _coded(view, value, _factor(view, (channel,), 0, 6), 7)

    return convolved(view, 3, _padded(_difference(view, 0, 2, None)), _difference(view, 3, 5, 0), finish, view.dtype(7))


def qgemm(view: View) -> tuple[Definition, ...]:
    """QGemm: alpha * A' B' of codes plus a bias of 32 bits, which has the scale of a product and alpha too.

    Codes where there is a scale for them, else numbers.
    """
    columns = 0 if view.attr("transB", 0) else -1

    def finish(value: Scalar, axes: tuple[Axis, ...]) -> Scalar:
        if view.has(6):
            value = apply("add", value, view.load(6, aligned(view, view.shape(6), axes)))
        if view.has(7):
            return _coded(view, value, _factor(view, here(axes), -1, 7), 8)
        return apply("mul", cast(value, F32), _scale_of_sums(view, here(axes), -1))

    dtype = view.dtype(8) if view.has(8) else view.dtype(0) if view.has(7) else F32
    return turned(view, 3, _difference(view, 0, 2, None), _difference(view, 3, 5, columns), finish, dtype)


def _scale_of_sums(view: View, at: At, axis: int) -> Scalar:
    """The scale of products of inputs 0 and 3, whose parameters are of one number each, or lie along an axis."""
    first, alpha = single(view, 1), view.attr("alpha", 1.0)
    if alpha != 1.0:
        first = apply("mul", const(alpha), first)
    return apply("mul", first, parameter(view, 4, _place(view, 4, axis, at)))


def _factor(view: View, at: At, axis: int, scale: int) -> Scalar:
    """What a sum is multiplied by to be steps of the result, whose scale is this input: one number, rounded twice."""
    return apply("div", _scale_of_sums(view, at, axis), single(view, scale))


def _coded(view: View, total: Scalar, factor: Scalar, zero: int) -> Scalar:
    """A sum in 32 bits as a code, whose zero point is this input."""
    there = single(view, zero) if view.has(zero) else None
    dtype = view.dtype(zero) if there is not None else view.dtype(0)
    return code_of(apply("mul", cast(total, F32), factor), there, dtype)


def _place(view: View, i: int, axis: int | None, at: At) -> At:
    """Where the parameter of an element lies: one for all, or one for each index of an axis."""
    have = view.shape(i)
    if all(e == ONE for e in have):
        return (ZERO,) * len(have)
    if axis is None or len(have) != 1:
        raise view.refuse("E-BROADCAST", f"a scale or zero point of shape {have!r}")
    return (at[axis],)


def _difference(view: View, i: int, zero: int, axis: int | None) -> Element:
    """Codes less their zero point, in 32 bits; constant zero points that are all 0, as of weights, are left out."""
    zeros = view.array(zero) if axis is not None else None
    plain = not view.has(zero) or (zeros is not None and not zeros.any())

    def element(at: At) -> Scalar:
        code = cast(view.load(i, at), I32)
        if plain:
            return code
        return apply("sub", code, cast(parameter(view, zero, _place(view, zero, axis, at)), I32))

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
    Row("ConvInteger", conv_integer, since=10, images="convolution"),
    Row("QLinearMatMul", qlinear_matmul, since=10),
    Row("QLinearConv", qlinear_conv, since=10, images="convolution"),
    Row(MICROSOFT + "QGemm", qgemm),
)
