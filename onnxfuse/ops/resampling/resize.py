"""Rows of Resize and Upsample: separable interpolation, with positions and weights from tables or closed forms.

Where the extents are known, positions and weights are computed in single precision as ONNX Runtime does, since the last
bit of a coordinate decides which element is the nearest. Symbolic extents are in `ops/resampling/resize_axis.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any

import numpy as np

from onnxfuse.ir.dtype import I64
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, IndexTable, divides, entry, floor_div
from onnxfuse.ir.scalar import FromIndex, Scalar, apply, const
from onnxfuse.ir.unsupported import FLOATS
from onnxfuse.ops.resampling.resize_axis import (
    NEAREST,
    TIE,
    Read,
    ResizeAttributes,
    ResizedAxis,
    Tapped,
    stretched,
    summed,
)
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, Stages, total, wide

F = np.float32
UNIT = 2.0**-30  # fixed-point unit of weights in tables
LONGEST = 1 << 22  # elements of an axis for which there is a table
ROUNDED = 2.0**-25  # what k times the rounded reciprocal of k may lack of 1 so that k * n times it is rounded to n
EVEN = 1 << 22  # extent up to which products with rounded reciprocals have the same integers below as quotients
FEW = 4  # taps of an axis up to which the sum is unrolled
Array = np.ndarray[Any, Any]


def manner(view: View) -> ResizeAttributes:
    """The attributes of a node; before opset 11 coordinates are asymmetric, and rounded up when downscaling."""
    mode = view.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise view.refuse("E-NO-KERNEL", f"mode {mode} is not supported", "mode nearest, linear or cubic")
    if view.opset < 11:
        return ResizeAttributes(mode, "asymmetric", "simple", 0.0, False, False, 0.0)
    return ResizeAttributes(
        mode,
        view.attr("coordinate_transformation_mode", "half_pixel"),
        view.attr("nearest_mode", "round_prefer_floor"),
        view.attr("cubic_coeff_a", -0.75),
        bool(view.attr("exclude_outside", 0)),
        bool(view.attr("antialias", 0)) and mode != "nearest",
        view.attr("extrapolation_value", 0.0),
    )


# Extents --------------------------------------------------------------------------------------------------------------


def stretches(view: View) -> tuple[ResizedAxis, ...]:
    """How each axis is resized, from known scales or sizes."""
    have = view.shape(0)
    named = tuple(view.axis(a, len(have)) for a in view.attr("axes", range(len(have))))
    out = [ResizedAxis(i, e, e) for i, e in enumerate(have)]
    sizes = view.ints(3) if view.has(3) and view.opset >= 11 and view.shape(3) != (ZERO,) else None
    view.lengths("what it is resized by", sizes if sizes is not None else _scales(view), len(named))
    for k, at in enumerate(named):
        if sizes is not None:
            out[at] = _sized(view, out[at], sizes[k])
        else:
            scale = _scales(view)[k]
            out[at] = replace(out[at], extent=_scaled(view, have[at], scale), scale=scale)
    if sizes is not None:
        out = _in_proportion(view, out, named)
    if view.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize" and view.has(1):
        roi = view.numbers(1)
        for k, at in enumerate(named):
            out[at] = replace(out[at], roi=(roi[k], roi[k + len(named)]))
    return tuple(out)


def resized(view: View) -> tuple[Index, ...]:
    """The extents of the result, also where its elements have no definition."""
    if not view.has(3) or view.opset < 11 or view.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return tuple(s.extent for s in stretches(view))
    shape = list(view.shape(0))
    for a, size in zip(view.attr("axes", range(len(shape))), view.ints(3), strict=True):
        shape[view.axis(a, len(shape))] = size
    return tuple(shape)


def _scales(view: View) -> Sequence[float]:
    at = 2 if view.node.op == "Resize" and view.opset >= 11 else 1
    named = view.node.op == "Upsample" and view.opset < 9
    if not named and not view.has(at):
        raise view.refuse("E-INVALID", "neither scales nor sizes are given")
    scales = tuple(float(F(s)) for s in (view.attr("scales", ()) if named else view.numbers(at)))
    if not all(0 < s < inf for s in scales):
        raise view.refuse("E-INVALID", f"scales are {scales}")
    return scales


def _scaled(view: View, have: Index, scale: float) -> Index:
    """floor(extent * scale), in single precision."""
    n = have.constant
    if n is not None:
        return Index.of(int(np.floor(F(scale) * F(n))))
    if scale == int(scale):
        return have * int(scale)
    parts = round(1 / scale)
    if (1 / scale).is_integer():
        return floor_div(have, Index.of(parts))
    if parts <= EVEN and -ROUNDED <= parts * scale - 1 <= 2 * ROUNDED:
        view.demand(Index.of(EVEN), "is at least", have)
        return floor_div(have, Index.of(parts))
    raise view.unsized(f"the symbolic extent {have!r} by {scale}", (have,))


def _sized(view: View, s: ResizedAxis, size: Index) -> ResizedAxis:
    n, m = s.have.constant, size.constant
    if n is not None and m is not None:
        return replace(s, extent=size, scale=float(F(m) / F(n)) if n else 1.0)
    up, down = divides(s.have, size), divides(size, s.have)
    if up is not None and up.constant:
        return replace(s, extent=size, scale=float(up.constant))
    if down is not None and down.constant and down.constant.bit_count() == 1:  # other reciprocals are not exact
        return replace(s, extent=size, scale=1.0 / down.constant)
    view.demand(s.have, "is at least", ONE)
    return replace(s, extent=size, scale=None)


def _in_proportion(view: View, out: list[ResizedAxis], named: tuple[int, ...]) -> list[ResizedAxis]:
    """The keep_aspect_ratio policies: all named axes have the smallest or the largest of their scales."""
    policy = view.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return out
    for at in named:
        if not out[at].static:
            raise view.unsized(f"{policy} of the symbolic extent {out[at].have!r}", view.shape(0)[2:])
    scale = (min if policy == "not_larger" else max)(out[at].ratio for at in named)
    for at in named:
        n = out[at].have.constant or 0
        out[at] = replace(out[at], extent=Index.of(int(np.floor(F(scale) * F(n) + F(0.5)))), scale=scale)
    return out


# Coordinates ----------------------------------------------------------------------------------------------------------


def coordinates(view: View, how: ResizeAttributes, s: ResizedAxis) -> Array:
    """The coordinate in the input of each output element, in single precision."""
    n, m = s.have.constant or 0, s.extent.constant or 0
    x, scale = np.arange(m, dtype=F), F(s.ratio)
    whole, made = F(n), F(m)
    first, last = map(F, s.roi)
    if how.coordinates == "asymmetric":
        return np.asarray(x / scale)
    if how.coordinates == "half_pixel" or (how.coordinates == "pytorch_half_pixel" and m > 1):
        return np.asarray((x + F(0.5)) / scale - F(0.5))
    if how.coordinates == "pytorch_half_pixel":
        return np.zeros(m, F)
    if how.coordinates == "align_corners":
        return np.asarray(x * (whole - F(1)) / (made - F(1))) if m > 1 else np.zeros(m, F)
    if how.coordinates == "tf_half_pixel_for_nn":
        return np.asarray((x + F(0.5)) / scale)
    if how.coordinates == "half_pixel_symmetric":
        offset = whole / F(2) * (F(1) - made / (whole * scale))
        return np.asarray(offset + (x + F(0.5)) / scale - F(0.5))
    if how.coordinates == "tf_crop_and_resize":
        if m > 1:
            return np.asarray(first * (whole - F(1)) + x * (last - first) * (whole - F(1)) / (made - F(1)))
        return np.full(m, F(0.5) * (first + last) * (whole - F(1)), F)
    said = f"coordinate transformation mode {how.coordinates} is not supported"
    raise view.refuse("E-NO-KERNEL", said, "coordinate_transformation_mode half_pixel, align_corners or asymmetric")


def _nearest(view: View, how: ResizeAttributes, x: Array, scale: float) -> Array:
    """The coordinate rounded to an integer, not yet clamped."""
    if how.nearest == "simple":
        return np.ceil(x) if scale < 1 else np.trunc(x)
    rounding: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda v: np.floor(v) + (v - np.floor(v) - F(0.5) >= F(TIE)),
        "round_prefer_ceil": lambda v: np.floor(v) + (v - np.floor(v) - F(0.5) > F(-TIE)),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if how.nearest not in rounding:
        raise view.refuse("E-NO-KERNEL", f"nearest mode {how.nearest} is not supported", NEAREST)
    return rounding[how.nearest](x)


# Taps -----------------------------------------------------------------------------------------------------------------


def _tabled(view: View, how: ResizeAttributes, s: ResizedAxis, at: Index, read: Read) -> Scalar:
    """Interpolation with constant tables of positions and weights."""
    n, x = s.have.constant or 0, coordinates(view, how, s)
    if how.mode == "nearest":
        places = np.clip(_nearest(view, how, x, s.ratio), 0, n - 1).astype(np.int64)
        return read(_closed(tuple(places.tolist()), at, s))
    places, weights = _filtered(how, x, n, s.ratio)
    units = np.round(weights / UNIT).astype(np.int64)
    count = places.shape[1]
    if count <= FEW:
        columns = zip(places.T.tolist(), units.T.tolist(), strict=True)
        return summed([_term(read, IndexTable(tuple(p)), IndexTable(tuple(w)), at) for p, w in columns])
    tap = Axis(f"{view.out()}:t{s.number}", Index.of(count))
    flat_places, flat_units = (IndexTable(tuple(v.reshape(-1).tolist())) for v in (places, units))
    return total("sum", (tap,), _term(read, flat_places, flat_units, at * count + tap))


def _term(read: Read, places: IndexTable, weights: IndexTable, at: Index) -> Scalar:
    value = read(entry(places, at))
    weight = apply("mul", FromIndex(entry(weights, at), value.dtype), const(UNIT, value.dtype))
    return apply("mul", value, weight)


def _closed(places: tuple[int, ...], at: Index, s: ResizedAxis) -> Index:
    """The positions in closed form, (a * at + b) // c, else as a table."""
    ratio = Fraction(s.ratio).limit_denominator(64)
    p, q = ratio.numerator, ratio.denominator
    for offset in range(-q, p + 1) if 0 < p <= 64 else ():
        if places == tuple((i * q + offset) // p for i in range(len(places))):
            return floor_div(at * q + offset, Index.of(p))
    return entry(IndexTable(places), at)


def _filtered(how: ResizeAttributes, x: Array, n: int, scale: float) -> tuple[Array, Array]:
    """Positions and weights of each output element: two for linear, four for cubic, more with antialias."""
    spread = max(1.0, 1.0 / scale) if how.antialias else 1.0
    if how.mode == "linear" and not how.antialias:
        x = np.clip(x, F(0), F(n - 1))
    reach = int(np.ceil((1 if how.mode == "linear" else 2) * spread))
    places = np.floor(x)[:, None].astype(np.int64) + np.arange(1 - reach, reach + 1)
    away = np.abs(x[:, None].astype(np.float64) - places) / spread
    weights = np.maximum(0.0, 1.0 - away) if how.mode == "linear" else _cubic(away, how.cubic)
    if how.outside:
        weights = np.where((places >= 0) & (places < n), weights, 0.0)
    if how.outside or how.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    used = (weights != 0).any(0)
    return np.clip(places, 0, n - 1)[:, used], weights[:, used]


def _cubic(d: Array, a: float) -> Array:
    """The cubic convolution kernel (Keys, 1981)."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


# The row --------------------------------------------------------------------------------------------------------------


def resize(view: View) -> tuple[Definition, ...]:
    """Resize and Upsample in every mode: one axis after the other, from the last."""
    how, made, dtype = manner(view), stretches(view), view.dtype(0)
    busy = [i for i, s in enumerate(made) if not s.idle]
    if how.mode != "nearest" and not dtype.floating and busy:
        raise view.refuse("E-DTYPE", f"{how.mode} of {dtype}: its rounding is specific to ONNX Runtime", FLOATS)
    view.nonempty((*view.shape(0), *(s.extent for s in made)))
    if any(made[i].static and (made[i].extent.constant or 0) > LONGEST for i in busy):
        raise view.refuse("E-RESOURCE", f"an axis is resized to more than {LONGEST} elements", "resize to fewer")
    stages, shape = Stages(view), list(view.shape(0))
    value: Element = wide(view) if how.mode != "nearest" else lambda at: view.load(0, at)
    for i in reversed(busy):
        shape[i] = made[i].extent
        value = _stretched(_along(stages, how, made[i]), i, value)
        if i != busy[0] and how.mode != "nearest":
            value = stages.value(f"%{i}", tuple(shape), value)
    stages.output(tuple(s.extent for s in made), lambda at: _within(view, how, made, at, value(at)))
    return tuple(stages.made)


def _along(stages: Stages, how: ResizeAttributes, s: ResizedAxis) -> Tapped:
    return partial(_tabled, stages.view, how, s) if s.static else stretched(stages, how, s)


def _stretched(along: Tapped, i: int, value: Element) -> Element:
    return lambda at: along(at[i], lambda place: value((*at[:i], place, *at[i + 1 :])))


def _within(view: View, how: ResizeAttributes, made: Sequence[ResizedAxis], at: At, value: Scalar) -> Scalar:
    """The value, or extrapolation_value where a coordinate of tf_crop_and_resize lies outside of the tensor."""
    if how.coordinates != "tf_crop_and_resize":
        return value
    for s, place in zip(made, at, strict=True):
        if s.idle:
            continue
        x, last = coordinates(view, how, s), (s.have.constant or 1) - 1
        held = IndexTable(tuple(((x >= 0) & (x <= last)).astype(int).tolist()))
        here = apply("equal", FromIndex(entry(held, place), I64), const(1, I64))
        if set(held.values) != {1}:
            value = apply("select", here, value, const(how.beyond, value.dtype))
    return value


ROWS: tuple[Row, ...] = (
    Row("Resize", resize, since=10, shape_inputs=(1, 2, 3)),
    Row("Upsample", resize, since=7, until=9, shape_inputs=(1,)),
)
