"""Rows of gathers, whose indices are read from a tensor, and of operators whose elements depend on indices only."""

from __future__ import annotations

import math

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import F32, I64, dtype_of
from onnxfuse.ir.graph import Constant
from onnxfuse.ir.index import ONE, ZERO, Index, Loaded, floor_div, greatest
from onnxfuse.ir.indexing import product, unflatten
from onnxfuse.ir.scalar import Const, FromIndex, Guard, Scalar, apply, cast, const
from onnxfuse.ops.movement import from_front, unit_at
from onnxfuse.ops.proofs import never_negative
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.speller import Speller


def loaded(view: View, i: int, at: tuple[Index, ...], extent: Index) -> Index:
    """Element `at` of integer input i as an index below extent."""
    known = view.known.get(view.node.inputs[i])
    if known is not None and len(known) == 1:
        return from_front(known[0], extent)
    return Index.of(Loaded(view.node.inputs[i], at, extent))


def gather(view: View) -> tuple[Definition, ...]:
    """Gather along one axis."""
    data, indices = view.shape(0), view.shape(1)
    at = view.axis(view.attr("axis", 0), len(data))
    axes = view.axes((*data[:at], *indices, *data[at + 1 :]))
    inner = unit_at(axes[at : at + len(indices)])
    index = (*unit_at(axes[:at]), loaded(view, 1, inner, data[at]), *unit_at(axes[at + len(indices) :]))
    return (Definition(view.out(), axes, view.load(0, index)),)


def extracted(view: View) -> tuple[Definition, ...]:
    """ArrayFeatureExtractor: elements of the last axis, one for each of the indices; a vector is one row."""
    data, places = view.ranked(0, 1), view.shape(1)
    axes = view.axes((*(data[:-1] or (ONE,)), product(places)))
    at = unflatten(unit_at(axes[-1:])[0], places)
    index = (*unit_at(axes[: len(data) - 1]), loaded(view, 1, at, data[-1]))
    return (Definition(view.out(), axes, view.load(0, index)),)


def _spelled_extraction(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    made = put.add("Gather", *inputs, axis=len(view.shape(0)) - 1)
    (definition,) = extracted(view)
    return (put.add("Reshape", made, put.vector(definition.shape)),)


def gather_elements(view: View) -> tuple[Definition, ...]:
    """GatherElements along one axis."""
    data, indices = view.shape(0), view.shape(1)
    at = view.axis(view.attr("axis", 0), len(data))
    view.ranked(1, len(data), len(data))
    axes = view.axes(indices)
    index = list(unit_at(axes))
    index[at] = loaded(view, 1, unit_at(axes), data[at])
    return (Definition(view.out(), axes, view.load(0, tuple(index))),)


def gather_nd(view: View) -> tuple[Definition, ...]:
    """GatherND: the last axis of the indices holds a multi-index."""
    data, indices = view.shape(0), view.ranked(1, 1)
    batch = view.attr("batch_dims", 0)
    width = indices[-1].constant
    if width is None:
        raise view.unsized("the length of the index tuples is a symbol", indices[-1:])
    if not 0 <= batch < len(indices) or batch + width > len(data):
        said = f"{batch} batch axes and tuples of {width} do not fit ranks {len(data)} and {len(indices)}"
        raise view.refuse("E-INVALID", said)
    axes = view.axes((*indices[:-1], *data[batch + width :]))
    outer = unit_at(axes[: len(indices) - 1])
    picked = tuple(Index.of(Loaded(view.node.inputs[1], (*outer, Index.of(k)), data[batch + k])) for k in range(width))
    index = (*outer[:batch], *picked, *unit_at(axes[len(indices) - 1 :]))
    return (Definition(view.out(), axes, view.load(0, index)),)


def reverse_sequence(view: View) -> tuple[Definition, ...]:
    """ReverseSequence: the first `length` elements of each sequence are reversed."""
    have = view.shape(0)
    batch, time = (view.axis(view.attr(f"{name}_axis", at), len(have)) for name, at in (("batch", 1), ("time", 0)))
    axes = view.axes(have)
    index = tuple(map(Index.of, axes))
    length = Index.of(Loaded(view.node.inputs[1], (index[batch],), have[time] + 1))
    back = length - 1 - index[time]
    backwards = view.load(0, (*index[:time], back, *index[time + 1 :]))
    return (Definition(view.out(), axes, inside((Guard(back, have[time]),), backwards, view.load(0, index))),)


def one_hot(view: View) -> tuple[Definition, ...]:
    """OneHot: a new axis of length `depth` with the on-value at the index and the off-value elsewhere."""
    have = view.shape(0)
    depth = view.single(1) if view.node.inputs[1] in view.known else Index.of(_counted(view, 1))
    at = view.axis(view.attr("axis", -1), len(have) + 1)
    axes = view.axes((*have[:at], depth, *have[at:]))
    asked = cast(view.load(0, unit_at((*axes[:at], *axes[at + 1 :]))), I64)
    view.demand(view.ranked(2, 1, 1)[0], "equals", Index.of(2))
    off, on = (view.load(2, (Index.of(k),)) for k in (0, 1))
    place = FromIndex(Index.of(axes[at]), I64)
    # negative indices count from the end; an index out of range gives no on-value
    hot = apply("or", *(apply("equal", asked, x) for x in (place, FromIndex(axes[at] - depth, I64))))
    return (Definition(view.out(), axes, apply("select", hot, on, off)),)


def eye_like(view: View) -> tuple[Definition, ...]:
    """EyeLike: ones on a diagonal of a matrix of zeros."""
    dtype = dtype_of(view.attr("dtype", view.dtype(0).onnx))
    if dtype is None:
        raise view.refuse("E-DTYPE", f"element type {view.attr('dtype', 0)} has no kernel")
    axes = view.axes(view.ranked(0, 2, 2))
    off = FromIndex(axes[1] - Index.of(axes[0]) - view.attr("k", 0), I64)
    here = apply("equal", off, Const(0, I64))
    return (Definition(view.out(), axes, apply("select", here, const(1, dtype), const(0, dtype))),)


def _spelled_eye(view: View, put: Speller, inputs: tuple[str, ...]) -> tuple[str, ...]:
    like = put.add("ConstantOfShape", put.vector(view.shape(0)))
    number = view.attr("dtype", view.dtype(0).onnx)
    return (put.add("EyeLike", like, k=view.attr("k", 0), dtype=number),)


def range_node(view: View) -> tuple[Definition, ...]:
    """Range with known integers or extents as bounds, and a known step."""
    dtype = view.dtype(0)
    given = [_whole(view, i) for i in range(3)] if dtype.floating else [view.single(i) for i in range(3)]
    if None in given:
        return _real_range(view)
    start, limit, delta = (e for e in given if e is not None)
    step = delta.constant
    if not step:
        raise view.unsized(f"{start!r} to {limit!r} by {delta!r}", (start, limit, delta))
    way = (limit - start) * (1 if step > 0 else -1)
    way = way if never_negative(way) else greatest(ZERO, way)
    length = floor_div(way + (abs(step) - 1), Index.of(abs(step)))
    axes = view.axes((length,))
    return (Definition(view.out(), axes, cast(FromIndex(start + Index.of(axes[0]) * step, I64), dtype)),)


def _whole(view: View, i: int) -> Index | None:
    """Floating-point input i as an index, where it is a known integer or an extent."""
    if view.node.inputs[i] in view.known:
        return view.single(i)
    value = _number(view, i)
    return Index.of(int(value)) if value.is_integer() and abs(value) < 1 << 24 else None


def _number(view: View, i: int) -> float:
    """The only element of a constant input. Raises Refused where there is another number of them."""
    found = view.numbers(i)
    view.lengths(view.node.inputs[i], found, 1)
    return found[0]


def _counted(view: View, i: int) -> int:
    """The same as a number of elements, rounded down."""
    value = _number(view, i)
    if not 0 <= value < 1 << 31:
        raise view.refuse("E-INVALID", f"{view.node.inputs[i]} is {value}")
    return int(value)


def _real_range(view: View) -> tuple[Definition, ...]:
    """Range of floating-point constants."""
    dtype = view.dtype(0)
    start, limit, delta = (_number(view, i) for i in range(3))
    reach = float(dtype.numpy.type(limit) - dtype.numpy.type(start))  # rounded as the runtime does
    if not delta or not math.isfinite(reach / delta):
        raise view.refuse("E-INVALID", f"{start} to {limit} by {delta}")
    axes = view.axes((Index.of(max(0, math.ceil(reach / delta))),))
    place = cast(FromIndex(Index.of(axes[0]), I64), dtype)
    return (Definition(view.out(), axes, apply("add", const(start, dtype), apply("mul", place, const(delta, dtype)))),)


def constant_of_shape(view: View) -> tuple[Definition, ...]:
    """ConstantOfShape."""
    value = view.node.attrs.get("value")
    fill: Scalar = const(0.0, F32)
    if isinstance(value, Constant):
        fill = const(value.load().reshape(-1)[0].item(), value.dtype)
    return (Definition(view.out(), view.axes(view.extents(0)), fill),)


ROWS: tuple[Row, ...] = (
    Row("Gather", gather),
    Row("ai.onnx.ml::ArrayFeatureExtractor", extracted, spell=_spelled_extraction),
    Row("GatherElements", gather_elements),
    Row("GatherND", gather_nd),
    Row("ReverseSequence", reverse_sequence),
    Row("OneHot", one_hot, shape_inputs=(1,)),
    Row("EyeLike", eye_like, type_inputs=(0,), spell=_spelled_eye),
    Row("Range", range_node, shape_inputs=(0, 1, 2)),
    Row("ConstantOfShape", constant_of_shape, shape_inputs=(0,)),
)
