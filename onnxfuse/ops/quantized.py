"""Rows of QuantizeLinear and DequantizeLinear: real value = (quantized value - zero point) * scale.

Quantized values ("codes" in names) are computed in float32, as ONNX Runtime does for every type: x / scale is rounded
half to even and clamped to the limits of the integer type minus the zero point, which is then added as an integer. All
integers of 8 and 16 bits are exact in float32.
"""

from __future__ import annotations

from onnxfuse.ir.dtype import F32, I32, U8, DType, dtype_of
from onnxfuse.ir.index import ONE, ZERO, Index
from onnxfuse.ir.scalar import Load, Scalar, apply, cast, const
from onnxfuse.ops.own import MICROSOFT
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Stages, here

_INTEGERS = "quantized values of int8, uint8, int16 or uint16"
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

    def number(at: At) -> Scalar:
        x = view.load(0, at)
        return apply("select", apply("isnan", x), const(0.0, x.dtype), x)

    def end(which: str) -> Scalar:
        read = s.reduced(f"%{which}", have, range(len(have)), which, number, lambda v: apply(which, v, const(0.0, F32)))
        return read((ZERO,) * len(have))

    low, high = end("min"), end("max")
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


ROWS: tuple[Row, ...] = (
    *(
        Row(domain + op, define, since=1 if domain else 10, codes=True)
        for domain in ("", MICROSOFT)
        for op, define in (("QuantizeLinear", quantize), ("DequantizeLinear", dequantize))
    ),
    Row("DynamicQuantizeLinear", quantize_dynamically, since=11),
)
