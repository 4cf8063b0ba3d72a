"""Resizing along one axis of symbolic extent.

For an integer scale or its reciprocal, coordinates are fractions with a small denominator, and positions have closed
forms. Otherwise coordinates are intermediate values of the node, computed at run time in single precision as ONNX
Runtime does, once for each position of the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from onnxfuse.ir.dtype import F32, F64, I64
from onnxfuse.ir.graph import Refused
from onnxfuse.ir.index import ZERO, Index, Loaded, floor_div, greatest, least, modulo
from onnxfuse.ir.scalar import FromIndex, Scalar, apply, cast, const
from onnxfuse.ops.spec import View
from onnxfuse.ops.stages import At, Lift, Stages, number

Read = Callable[[Index], Scalar]  # the element at a position along an axis
Tapped = Callable[[Index, Read], Scalar]
NEAREST = "nearest_mode floor, ceil, round_prefer_floor or round_prefer_ceil"
TIE = 1e-6  # distance up to which the runtime treats a coordinate as the midpoint of two elements


@dataclass(frozen=True, slots=True)
class ResizedAxis:
    """Axis `number`: extents before and after, the scale, and the region of interest of tf_crop_and_resize.

    Without a scale, it is the ratio of the extents, computed at run time.
    """

    number: int
    have: Index
    extent: Index
    scale: float | None = 1.0
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def idle(self) -> bool:
        """Whether the axis is not resized."""
        return self.have == self.extent and self.scale == 1.0

    @property
    def static(self) -> bool:
        """Whether all coordinates are compile-time constants."""
        return self.have.constant is not None and self.extent.constant is not None

    @property
    def ratio(self) -> float:
        """The scale, which is known."""
        assert self.scale is not None, "resize: a scale of extents that are not known"
        return self.scale


@dataclass(frozen=True, slots=True)
class ResizeAttributes:
    """The attributes of a Resize, with the defaults of its opset."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    outside: bool  # exclude_outside: taps outside of the axis have weight 0
    antialias: bool
    beyond: float  # extrapolation_value of tf_crop_and_resize


def summed(terms: Sequence[Scalar]) -> Scalar:
    """The sum of some terms."""
    result = terms[0]
    for t in terms[1:]:
        result = apply("add", result, t)
    return result


def stretched(stages: Stages, how: ResizeAttributes, s: ResizedAxis) -> Tapped:
    """Interpolation along an axis of symbolic extent: the element at a position, given those of the source axis."""
    if how.mode == "cubic":
        return _cubic(stages, how, s)
    return partial(_symbolic, stages.view, how, s) if _exact(how, s) else _computed(stages, how, s)


def _exact(how: ResizeAttributes, s: ResizedAxis) -> bool:
    """Whether the coordinates of symbolic extents are fractions with a small denominator."""
    halves = how.coordinates in ("half_pixel", "half_pixel_symmetric")
    halves = halves or (how.coordinates == "pytorch_half_pixel" and (s.scale or 0) > 1)
    small = s.scale is not None and (s.scale.is_integer() or (1 / s.scale).is_integer())
    return small and (halves or how.coordinates == "asymmetric")


def _symbolic(view: View, how: ResizeAttributes, s: ResizedAxis, at: Index, read: Read) -> Scalar:
    """The same by exact fractions: the coordinate of output element i is (num * i + offset) / den."""
    scale = Fraction(s.ratio)
    num, den = scale.denominator * 2, scale.numerator * 2
    offset = scale.denominator - scale.numerator if how.coordinates != "asymmetric" else 0
    x, last = at * num + offset, s.have - 1
    if how.mode == "nearest":
        shifts = {"floor": 0, "ceil": den - 1, "round_prefer_floor": den // 2 - 1, "round_prefer_ceil": den // 2}
        shift = (shifts | {"simple": den - 1 if scale < 1 else 0}).get(how.nearest)
        if shift is None:
            raise view.refuse("E-NO-KERNEL", f"nearest mode {how.nearest} is not supported", NEAREST)
        return read(greatest(ZERO, least(floor_div(x + shift, Index.of(den)), last)))
    _only_linear(view, how, s)
    low = floor_div(x, Index.of(den))
    one, two = (read(greatest(ZERO, least(place, last))) for place in (low, low + 1))
    part = apply("mul", FromIndex(modulo(x, Index.of(den)), one.dtype), const(1 / den, one.dtype))
    return _between(one, two, part)


def _only_linear(view: View, how: ResizeAttributes, s: ResizedAxis) -> None:
    """Raise Refused for interpolation with more than two taps along an axis of symbolic extent."""
    if how.mode != "linear" or how.antialias or how.outside:
        raise _open(view, how, s)


def _open(view: View, how: ResizeAttributes, s: ResizedAxis) -> Refused:
    filtered = " with antialias" if how.antialias else ""
    return view.unsized(f"{how.mode}{filtered} of the symbolic extent {s.have!r}", (s.have, s.extent))


def _between(one: Scalar, two: Scalar, part: Scalar) -> Scalar:
    rest = apply("sub", const(1, part.dtype), part)
    return summed([apply("mul", one, rest), apply("mul", two, part)])


def _computed(stages: Stages, how: ResizeAttributes, s: ResizedAxis) -> Tapped:
    """Interpolation at positions that are computed at run time, once for each position of the axis."""
    view, last = stages.view, number(s.have - 1, I64)

    def places(tag: str, body: Lift) -> Callable[[Index], Index]:
        def place(at: At) -> Scalar:
            return apply("max", apply("min", cast(body(_coordinate(view, how, s, at[0])), I64), last), const(0, I64))

        name = f"%{tag}{s.number}"
        stages.value(name, (s.extent,), place)
        return lambda at: Index.of(Loaded(view.out() + name, (at,), s.have, inside=True))

    if how.mode == "nearest":
        nearest = places("at", lambda x: _rounded(view, how, x))
        return lambda at, read: read(nearest(at))
    _only_linear(view, how, s)
    low = places("low", lambda x: apply("floor", x))
    high = places("high", lambda x: apply("add", apply("floor", x), const(1, F32)))

    def held(at: At) -> Scalar:
        x = apply("min", _coordinate(view, how, s, at[0]), number(s.have - 1, F32))
        x = apply("max", x, const(0, F32))
        return apply("sub", x, apply("floor", x))

    part = stages.value(f"%part{s.number}", (s.extent,), held)

    def value(at: Index, read: Read) -> Scalar:
        one, two = read(low(at)), read(high(at))
        return _between(one, two, cast(part((at,)), one.dtype))

    return value


def _cubic(stages: Stages, how: ResizeAttributes, s: ResizedAxis) -> Tapped:
    """Four elements by the cubic convolution kernel (Keys, 1981): places and weights are two tables of (extent, 4)."""
    view, taps = stages.view, Index.of(4)
    if how.antialias:
        raise _open(view, how, s)
    a, one, last = how.cubic, const(1, F32), number(s.have - 1, I64)

    def below(at: At) -> Scalar:
        return apply("floor", _coordinate(view, how, s, at[0]))

    def meant(at: At) -> Scalar:
        return apply("add", cast(below(at), I64), FromIndex(at[1] - 1, I64))

    def weight(at: At) -> Scalar:
        part = apply("sub", _coordinate(view, how, s, at[0]), below(at))
        d = apply("abs", apply("sub", part, cast(FromIndex(at[1] - 1, I64), F32)))
        near, far = (_polynomial(d, c) for c in ((a + 2, -(a + 3), 0, 1), (a, -5 * a, 8 * a, -4 * a)))
        return apply("select", apply("less_equal", d, one), near, far)

    def inside(at: At) -> Scalar:
        held = apply("and", apply("greater_equal", meant(at), const(0, I64)), apply("less_equal", meant(at), last))
        return apply("select", held, weight(at), const(0, F32))

    def shared(at: At) -> Scalar:
        whole = summed([inside((at[0], Index.of(k))) for k in range(4)])
        return apply("div", inside(at), whole)

    def clamped(at: At) -> Scalar:
        return apply("max", apply("min", meant(at), last), const(0, I64))

    name = f"%taps{s.number}"
    stages.value(name, (s.extent, taps), clamped)
    weights = stages.value(f"%weights{s.number}", (s.extent, taps), shared if how.outside else weight)

    def term(at: Index, k: int, read: Read) -> Scalar:
        found = read(Index.of(Loaded(view.out() + name, (at, Index.of(k)), s.have, inside=True)))
        return apply("mul", found, cast(weights((at, Index.of(k))), found.dtype))

    return lambda at, read: summed([term(at, k, read) for k in range(4)])


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """By Horner's rule, the highest power first."""
    value: Scalar = const(coefficients[0], x.dtype)
    for c in coefficients[1:]:
        value = apply("add", apply("mul", value, x), const(c, x.dtype))
    return value


def _quotient(x: Scalar, y: Scalar) -> Scalar:
    """x / y, rounded once, though a kernel may multiply by the reciprocal of y.

    No quotient of two numbers of 24 bits is nearer than 2^-49 of itself to the middle of two neighbours, so that one
    that is off by a few roundings in double precision is rounded to the same number.
    """
    return cast(apply("div", cast(x, F64), cast(y, F64)), F32)


def _coordinate(view: View, how: ResizeAttributes, s: ResizedAxis, at: Index) -> Scalar:
    """The coordinate in the input of an output element, step by step in single precision as `coordinates` has it."""
    x, n, m = (number(e, F32) for e in (at, s.have, s.extent))
    half, one, zero = (const(v, F32) for v in (0.5, 1, 0))
    scale = const(s.scale, F32) if s.scale is not None else _quotient(m, n)
    several = apply("greater", m, one)
    if how.coordinates == "asymmetric":
        return _quotient(x, scale)
    if how.coordinates == "align_corners":
        spread = _quotient(apply("mul", x, apply("sub", n, one)), apply("sub", m, one))
        return apply("select", several, spread, zero)
    centre = _quotient(apply("add", x, half), scale)
    if how.coordinates == "tf_half_pixel_for_nn":
        return apply("select", apply("equal", n, m), x, centre)
    if how.coordinates == "half_pixel":
        return apply("sub", centre, half)
    if how.coordinates == "pytorch_half_pixel":
        return apply("select", several, apply("sub", centre, half), zero)
    raise view.unsized(f"coordinates {how.coordinates} of the symbolic extent {s.have!r}", (s.have, s.extent))


def _rounded(view: View, how: ResizeAttributes, x: Scalar) -> Scalar:
    """The coordinate rounded to an integer, not yet clamped."""
    if how.nearest in ("floor", "ceil"):
        return apply(how.nearest, x)
    low = apply("floor", x)
    beyond = apply("sub", apply("sub", x, low), const(0.5, F32))
    if how.nearest == "round_prefer_floor":
        below = apply("less", beyond, const(TIE, F32))
    elif how.nearest == "round_prefer_ceil":
        below = apply("less_equal", beyond, const(-TIE, F32))
    else:
        raise view.refuse("E-NO-KERNEL", f"nearest mode {how.nearest} is not supported", NEAREST)
    return apply("select", below, low, apply("add", low, const(1, F32)))
