"""The row of GridSample: an image read at places that a grid of coordinates names.

Places and distances are intermediate values of the node, computed once for each point of the grid in the order of
operations of ONNX Runtime, whose last bit decides which elements are read. Nothing outside of the image is read, and a
coordinate that is not finite, or fits no integer, is the lower edge's, as in ONNX Runtime 1.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

from onnxfuse.ir.dtype import F32, F64, I32
from onnxfuse.ir.index import ONE, Index, Loaded
from onnxfuse.ir.indexing import product as count_of
from onnxfuse.ir.indexing import unflatten
from onnxfuse.ir.scalar import Scalar, apply, cast, const
from onnxfuse.ops.resampling.resize_axis import summed
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, Lift, Stages, number, wide

_FAR = 4  # elements beyond which no tap of a point outside reaches into the image
_FITS = 2.0**62  # the size of coordinates from which on the runtime takes the lower edge instead
_CUBIC = -0.75  # of the cubic convolution kernel (Keys, 1981)
_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # the names until opset 19
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}


@dataclass(frozen=True, slots=True)
class _Manner:
    """The attributes: `mode` is nearest, linear or cubic, `padding` is zeros, border or reflection."""

    mode: str
    padding: str
    corners: bool  # -1 and 1 are the centres of the outermost elements, not their outer edges


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of the image: the index that taps are counted from, and how far a point lies behind it."""

    extent: Index
    low: Element
    part: Element | None


def grid_sample(view: View) -> tuple[Definition, ...]:
    """GridSample of an image of one to three axes."""
    how = _manner(view)
    image, grid = view.shape(0), view.shape(1)
    view.lengths("the axes of the grid", grid, len(image))
    width = len(image) - 2
    view.demand(grid[-1], "equals", Index.of(width))
    if how.mode == "cubic" and (width != 2 or how.padding == "border"):  # versions of ONNX Runtime differ at borders
        raise view.refuse("E-NO-KERNEL", f"mode cubic is not supported for {width} axes with padding {how.padding}")
    if view.dtype(1) != F32 or not view.dtype(0).floating:
        raise view.refuse("E-DTYPE", f"{view.dtype(0)} at coordinates of {view.dtype(1)} has no kernel")
    view.demand(image[0], "equals", grid[0])
    for extent in image[2:]:
        view.demand(extent, "is at least", ONE)
    view.demand(Index.of(2**31 - 1), "is at least", count_of(image[2:]))  # places are 32-bit offsets
    stages, points = Stages(view), grid[:-1]
    axes = [_axis(stages, how, points, at, extent, width - 1 - at) for at, extent in enumerate(image[2:])]
    taps = [_tap(stages, how, points, axes, chosen) for chosen in product(range(_TAPS[how.mode]), repeat=width)]
    stages.output((*image[:2], *points[1:]), lambda at: summed([tap(at) for tap in taps]))
    return tuple(stages.made)


def _manner(view: View) -> _Manner:
    mode = view.attr("mode", "linear" if view.opset >= 20 else "bilinear")
    mode, padding = _MODES.get(mode, mode), view.attr("padding_mode", "zeros")
    for name, value, known in (("mode", mode, _TAPS), ("padding mode", padding, ("zeros", "border", "reflection"))):
        if value not in known:
            raise view.refuse("E-INVALID", f"{name} {value} is not known")
    return _Manner(mode, padding, bool(view.attr("align_corners", 0)))


def _axis(stages: Stages, how: _Manner, points: At, at: int, extent: Index, given: int) -> _Axis:
    """Axis `at` of the image, for points of this shape; the `given` element of a point is its coordinate there."""

    def coordinate(point: At) -> Scalar:
        return _kept(how, _pixels(how, stages.view.load(1, (*point, Index.of(given))), extent), extent)

    def low(point: At) -> Scalar:
        """As an integer; what is farther outside of the image than any tap reaches is brought nearer first."""
        x = apply("floor", coordinate(point))
        return cast(apply("max", apply("min", x, number(extent + _FAR, F32)), const(-_FAR, F32)), I32)

    def part(point: At) -> Scalar:
        x = coordinate(point)
        return apply("sub", x, apply("floor", x))

    first = stages.value(f"%low{at}", points, low)
    return _Axis(extent, first, None if how.mode == "nearest" else stages.value(f"%part{at}", points, part))


def _tap(stages: Stages, how: _Manner, points: At, axes: Sequence[_Axis], chosen: Sequence[int]) -> Element:
    """What one tap adds to an element. `chosen` says which one it is along each axis.

    Its place is one number, a row-major offset, and so is its weight: infinite where nothing is to be read.
    """
    view, read, name = stages.view, wide(stages.view), "_".join(map(str, chosen))
    extents = [axis.extent for axis in axes]
    shifts = [k - _TAPS[how.mode] // 4 for k in chosen]

    def meant(point: At) -> list[Scalar]:
        """The indices of the element."""
        pairs = zip(axes, shifts, strict=True)
        found = [
            apply("add", axis.low(point), const(shift, I32)) if shift else axis.low(point) for axis, shift in pairs
        ]
        if how.padding != "reflection":
            return found
        return [_mirrored(how, i, extent) for i, extent in zip(found, extents, strict=True)]

    def place(point: At) -> Scalar:
        offset: Scalar = const(0, I32)
        for i, extent in zip(meant(point), extents, strict=True):
            clamped = apply("max", apply("min", i, number(extent - 1, I32)), const(0, I32))
            offset = apply("add", apply("mul", offset, number(extent, I32)), clamped)
        return offset

    def weight(point: At) -> Scalar:
        made: Scalar = const(1, F32)
        for axis, k in zip(axes, chosen, strict=True):
            made = apply("mul", made, _weight(axis.part(point), k, _TAPS[how.mode])) if axis.part else made
        if how.padding == "zeros":
            for i, extent in zip(meant(point), extents, strict=True):
                held = (apply("greater_equal", i, const(0, I32)), apply("less", i, number(extent, I32)))
                made = apply("select", apply("and", *held), made, const(inf, F32))
        return made

    stages.value(f"%at{name}", points, place)
    weighed = how.mode != "nearest" or how.padding == "zeros"
    by = stages.value(f"%by{name}", points, weight) if weighed else None
    whole = count_of(extents)

    def term(at: At) -> Scalar:
        point = (at[0], *at[2:])
        offset = Index.of(Loaded(view.out() + f"%at{name}", point, whole, inside=True))
        found = read((*at[:2], *unflatten(offset, tuple(extents))))
        if by is None:
            return found
        w = by(point)
        value = apply("mul", cast(w, found.dtype), found)
        if how.padding != "zeros":
            return value
        return apply("select", apply("isinf", w), const(0, found.dtype), value)

    return term


def _weight(part: Scalar, tap: int, count: int) -> Scalar:
    """The weight of a tap of a point that lies `part` behind the element before it."""
    one = const(1, F32)
    before = apply("sub", one, part)
    if count == 2:
        return (before, part)[tap]
    d = (apply("add", part, one), part, before, apply("sub", const(2, F32), part))[tap]
    return _near(d) if tap in (1, 2) else _far(d)


def _near(d: Scalar) -> Scalar:
    """((a + 2) d - (a + 3)) d d + 1."""
    inner = apply("sub", apply("mul", const(_CUBIC + 2, F32), d), const(_CUBIC + 3, F32))
    return apply("add", apply("mul", apply("mul", inner, d), d), const(1, F32))


def _far(d: Scalar) -> Scalar:
    """((a d - 5 a) d + 8 a) d - 4 a."""
    a = _CUBIC
    inner = apply("sub", apply("mul", const(a, F32), d), const(5 * a, F32))
    inner = apply("add", apply("mul", inner, d), const(8 * a, F32))
    return apply("sub", apply("mul", inner, d), const(4 * a, F32))


def _pixels(how: _Manner, x: Scalar, extent: Index) -> Scalar:
    """A coordinate from -1 to 1 as one from 0 to extent - 1, or from the outer edges of the elements there.

    Sums and products are exact in double precision and then rounded once, as two operations of the runtime are: a
    compiler can contract neither of them with what stands before or behind.
    """
    half, one = const(0.5, F32), const(1, F64)
    up = cast(apply("add", cast(x, F64), one), F32)
    if how.corners:
        return apply("mul", apply("mul", up, half), number(extent - 1, F32))
    spread = cast(apply("mul", cast(up, F64), number(extent, F64)), F32)
    return apply("mul", cast(apply("sub", cast(spread, F64), one), F32), half)


def _kept(how: _Manner, x: Scalar, extent: Index) -> Scalar:
    """A coordinate brought into the image, where the padding mode does so; for the nearest element, rounded."""
    low, high = _edges(how, extent)
    x = apply("select", apply("less", apply("abs", x), const(_FITS, F32)), x, low)
    x = apply("round", x) if how.mode == "nearest" else x
    outside = apply("or", apply("less", x, low), apply("greater", x, high))
    if how.padding == "border":
        held = apply("max", apply("min", x, number(extent - 1, F32)), const(0, F32))
        return apply("select", outside, held, x)
    return _reflected(how, x, extent) if how.padding == "reflection" else x


def _edges(how: _Manner, extent: Index) -> tuple[Scalar, Scalar]:
    """The coordinates of the edges of the image."""
    if how.corners:
        return const(0, F32), number(extent - 1, F32)
    return const(-0.5, F32), apply("sub", number(extent, F32), const(0.5, F32))


def _reflected(how: _Manner, x: Scalar, extent: Index) -> Scalar:
    """A coordinate reflected at the edges of the image as often as it takes to be inside."""
    low, high = _edges(how, extent)
    span = apply("sub", high, low)

    def folded(beyond: Scalar, there: Lift, back: Lift) -> Scalar:
        times = apply("floor", apply("div", beyond, span))
        rest = apply("sub", beyond, apply("mul", times, span))
        half = apply("mul", times, const(0.5, F32))
        even = apply("equal", apply("floor", half), half)
        return apply("select", even, there(rest), back(rest))

    below = folded(apply("sub", low, x), lambda r: apply("add", low, r), lambda r: apply("sub", high, r))
    above = folded(apply("sub", x, high), lambda r: apply("sub", high, r), lambda r: apply("add", low, r))
    return apply("select", apply("less", x, low), below, apply("select", apply("greater", x, high), above, x))


def _mirrored(how: _Manner, i: Scalar, extent: Index) -> Scalar:
    """An index mirrored at the edges of the image, or at the centres of the outermost elements."""
    n, one = number(extent, I32), const(1, I32)
    last = apply("sub", n, one)
    if how.corners:
        period = apply("max", apply("add", last, last), one)
        at = apply("mod", i, period)
        return apply("select", apply("less", at, n), at, apply("sub", period, at))
    at = apply("mod", i, apply("add", n, n))
    return apply("select", apply("less", at, n), at, apply("sub", apply("add", n, last), at))


ROWS: tuple[Row, ...] = (Row("GridSample", grid_sample),)
