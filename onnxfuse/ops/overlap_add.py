"""Rows of operators that add overlapping blocks (Col2Im, ConvTranspose), in gather form: a sum per result element.

With stride s and dilation d, tap t of input position q contributes to y = s*q + d*t - low. So the taps of y are those
with d*t = y + low (mod s): every s/gcd(s, d)-th one, from a first one that depends on y. Only these are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import gcd, prod

from onnxfuse.ir.compose import inside
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, modulo
from onnxfuse.ir.scalar import Guard, Scalar, apply, cast, const
from onnxfuse.ops.contraction import one_each
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, Element, Stages, here, total, wide
from onnxfuse.ops.window import groups_of

MOST_KINDS = 16  # remainders modulo the stride that have a contraction each


@dataclass(frozen=True, slots=True)
class OverlapAxis:
    """One spatial axis: extents of the positions and of the result, stride, dilation, cut margin and number of taps."""

    have: Index
    extent: Index
    stride: int
    dilation: int
    low: int
    size: int

    @property
    def apart(self) -> int:
        """The distance of two taps that contribute to the same element."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def count(self) -> int:
        """The maximum number of taps that contribute to an element."""
        return -(-self.size // self.apart)

    def reached_by(self, y: Index, j: Index) -> OverlapTap:
        """Tap number j of those that contribute to y."""
        shared = gcd(self.stride, self.dilation)
        place = y + self.low
        step = self.dilation // shared
        inverse = pow(step, -1, self.apart) if self.apart > 1 else 0
        first = modulo(floor_div(place, Index.of(shared)) * inverse, Index.of(self.apart))
        # place - d*first is a multiple of s; for d = 1, d*first is the remainder itself
        base = floor_div(place if self.dilation == 1 else place - first * self.dilation, Index.of(self.stride))
        position, tap = base - j * step, first + j * self.apart
        inner = (Guard(tap, Index.of(self.size)),) if self.size % self.apart else ()
        whole = (Guard(modulo(place, Index.of(shared)), ONE),) if shared > 1 else ()
        return OverlapTap(position, tap, inner, (*whole, *inner, Guard(position, self.have)))


@dataclass(frozen=True, slots=True)
class OverlapTap:
    """A tap that contributes to an element, and its position. `inner` guards the tap, `guards` the tap and position."""

    position: Index
    tap: Index
    inner: tuple[Guard, ...]
    guards: tuple[Guard, ...]


def reaching(
    view: View, spots: Sequence[OverlapAxis], place: At
) -> tuple[tuple[Axis, ...], tuple[OverlapTap, ...], tuple[Guard, ...]]:
    """Ranges over the taps that contribute to an element, axis by axis; the taps; and all their guards."""
    steps = [Axis(f"{view.out()}:k{i}", Index.of(s.count)) for i, s in enumerate(spots)]
    found = tuple(
        s.reached_by(y, Index.of(j) if s.count > 1 else ZERO) for s, y, j in zip(spots, place, steps, strict=True)
    )
    ranges = tuple(j for s, j in zip(spots, steps, strict=True) if s.count > 1)
    return ranges, found, tuple(g for r in found for g in r.guards)


def landings(view: View, kernel: tuple[int, ...]) -> tuple[OverlapAxis, ...]:
    """The spatial axes of a ConvTranspose."""
    have = view.shape(0)[2:]
    rank = len(have)
    strides = tuple(view.attr("strides", None) or (1,) * rank)
    dilations = tuple(view.attr("dilations", None) or (1,) * rank)
    pads = tuple(view.attr("pads", None) or (0,) * (2 * rank))
    more = tuple(view.attr("output_padding", None) or (0,) * rank)
    asked = tuple(view.attr("output_shape", None) or ())[-rank:]
    for name, values in (
        ("strides", strides),
        ("dilations", dilations),
        ("output_padding", more),
        ("output_shape", asked or more),
        ("the kernel", kernel),
    ):
        view.lengths(name, values, rank)
    view.lengths("pads", pads, 2 * rank)
    view.positive("strides, dilations and kernels", (*strides, *dilations, *kernel))
    auto = view.attr("auto_pad", "NOTSET")
    out: list[OverlapAxis] = []
    for i, (n, k, s, d) in enumerate(zip(have, kernel, strides, dilations, strict=True)):
        whole = (n - 1) * s + (d * (k - 1) + 1 + more[i])
        low, high = (pads[i], pads[i + rank]) if auto == "NOTSET" else (0, 0)
        if asked or auto.startswith("SAME"):
            extent = Index.of(asked[i]) if asked else n * s
            cut = (whole - extent).constant
            if cut is None:
                raise view.unsized(f"output_shape on the symbolic extent {n!r}", have)
            cut = max(0, cut)
            extent = extent if asked else whole - cut  # with short kernels the full result is smaller than "SAME" says
            low = cut // 2 if auto == "SAME_UPPER" else cut - cut // 2
            high = cut - low
        else:
            extent = whole - (low + high)
        out.append(OverlapAxis(n, extent, s, d, low, k))
    return tuple(out)


def conv_transpose(view: View) -> tuple[Definition, ...]:
    """ConvTranspose of any rank, with groups, strides, dilations, padding and output padding."""
    x = view.ranked(0, 3)
    w = view.ranked(1, len(x), len(x))
    kernel = tuple(e.constant or 0 for e in w[2:])
    if not all(kernel):
        raise view.unsized("the kernel's shape is not static", w[2:])
    spots = landings(view, kernel)
    group = groups_of(view, w[0])
    view.demand(x[1], "equals", w[0])
    view.nonempty(w[:2])
    stages = Stages(view)
    value: Element = partial(_by_tap, view, spots)
    uneven = prod(s.stride for s in spots if s.size % s.stride)
    if group == 1 and all(s.dilation == 1 for s in spots) and uneven <= MOST_KINDS:
        value = _by_remainder(stages, spots)
    bias = wide(view, 2) if view.has(2) else None
    if bias:
        one_each(view, 2, w[1] * group)
    shape = (x[0], w[1] * group, *(s.extent for s in spots))
    stages.output(shape, lambda at: apply("add", value(at), bias(at[1:2])) if bias else value(at))
    return tuple(stages.made)


def _by_remainder(stages: Stages, spots: Sequence[OverlapAxis]) -> Element:
    """Sub-pixel decomposition: elements with equal remainders modulo the stride are the result of one convolution.

    Where the stride divides the kernel, all of these have equally many taps, so that they are one contraction with as
    many times the channels. Otherwise each remainder is a contraction of its own: padding the kernel with zero taps
    would give NaN for infinite inputs.
    """
    kinds = [(None,) if s.size % s.stride == 0 else tuple(range(s.stride)) for s in spots]
    parts = [(k, _convolved(stages, spots, k, f"%sums{at}")) for at, k in enumerate(product(*kinds))]

    def value(at: At) -> Scalar:
        (_, first), *others = parts
        found = first(at)
        for kind, part in others:
            own = tuple(
                Guard(modulo(y, Index.of(s.stride)) - r, ONE)
                for s, y, r in zip(spots, at[2:], kind, strict=True)
                if r is not None
            )
            found = inside(own, part(at), found)
        return found

    return value


@dataclass(frozen=True, slots=True)
class _Line:
    """An axis of a convolution for the elements y with y % stride == `kind` (None: all), of which `extent` are taken.

    Its elements are numbered from the first of its result on; at number q, tap `tap` + k*stride reads q + `first` - k.
    """

    spot: OverlapAxis
    kind: int | None

    @property
    def low(self) -> int:
        """How far the first element is behind the first position."""
        return self.spot.low + (self.kind or 0)

    @property
    def first(self) -> int:
        return self.low // self.spot.stride

    @property
    def tap(self) -> int:
        return self.low % self.spot.stride

    @property
    def taps(self) -> int:
        """How many taps contribute to each element."""
        s = self.spot
        return s.count if self.kind is None else max(0, -(-(s.size - self.tap) // s.stride))

    @property
    def extent(self) -> Index:
        s, stride = self.spot, Index.of(self.spot.stride)
        if self.kind is None:
            return floor_div(s.extent + (s.low - 1), stride) + (1 - self.first)
        return floor_div(s.extent + (s.stride - 1 - self.kind), stride)

    def place(self, y: Index) -> tuple[Index, ...]:
        """The number of an element of the whole result, and its remainder where these are not all equal."""
        stride, at = Index.of(self.spot.stride), y + self.spot.low
        if self.kind is None:
            return floor_div(at, stride) - self.first, modulo(at, stride)
        return (floor_div(y, stride),)


def _convolved(stages: Stages, spots: Sequence[OverlapAxis], kind: Sequence[int | None], tag: str) -> Element:
    """The convolution for elements with these remainders (None: all of them), read at an index of the result.

    Those of all remainders lie in the order of the result, channels last. Those of one have channels first: to put them
    between others, pixels of a line are to be adjacent.
    """
    view, lines = stages.view, [_Line(s, r) for s, r in zip(spots, kind, strict=True)]
    x, w, dtype = view.shape(0), view.shape(1), view.dtype(0).accumulator
    if any(line.taps == 0 for line in lines):
        return lambda at: const(0, dtype)
    channel = Axis(f"{view.out()}{tag}:c", x[1])
    steps = [Axis(f"{view.out()}{tag}:j{i}", Index.of(line.taps)) for i, line in enumerate(lines)]
    ranges = tuple(a for a in (*steps, channel) if a.extent != ONE)
    together = any(line.kind is None for line in lines)

    def summed(at: At) -> Scalar:
        column, places = (at[-1], iter(at[1:-1])) if together else (at[1], iter(at[2:]))
        position, tap = [], []
        for line, k in zip(lines, steps, strict=True):
            j = Index.of(k) if k in ranges else ZERO
            position.append(next(places) + line.first - j)
            tap.append((next(places) if line.kind is None else line.tap) + j * line.spot.stride)
        c = Index.of(channel) if channel in ranges else ZERO
        held = tuple(Guard(p, s.have) for s, p in zip(spots, position, strict=True))
        left = inside(held, view.load(0, (at[0], c, *position)), const(0, view.dtype(0)))
        right = view.load(1, (c, column, *tap))
        return total("sum", ranges, apply("mul", cast(left, dtype), cast(right, dtype)))

    extents = [e for n in lines for e in ((n.extent, Index.of(n.spot.stride)) if n.kind is None else (n.extent,))]
    made = stages.value(tag, (x[0], *extents, w[1]) if together else (x[0], w[1], *extents), summed)

    def value(at: At) -> Scalar:
        places = [p for line, y in zip(lines, at[2:], strict=True) for p in line.place(y)]
        return made((at[0], *places, at[1]) if together else (at[0], at[1], *places))

    return value


def _by_tap(view: View, spots: Sequence[OverlapAxis], at: At) -> Scalar:
    """An element as the sum over the taps that contribute to it: with groups and dilations."""
    w = view.shape(1)
    groups = view.attr("group", 1)
    own = floor_div(view.shape(0)[1], Index.of(groups))  # input channels of a group
    n, oc = at[:2]
    channel = Axis(f"{view.out()}:c", own)
    c = Index.of(channel) if own != ONE else ZERO
    ic, column = (floor_div(oc, w[1]) * own + c, modulo(oc, w[1])) if groups > 1 else (c, oc)
    ranges, reach, guards = reaching(view, spots, at[2:])
    left = inside(guards, view.load(0, (n, ic, *(r.position for r in reach))), const(0, view.dtype(0)))
    inner = tuple(g for r in reach for g in r.inner)
    right = inside(inner, view.load(1, (ic, column, *(r.tap for r in reach))), const(0, view.dtype(1)))
    dtype = view.dtype(0).accumulator
    term = apply("mul", cast(left, dtype), cast(right, dtype))
    return total("sum", ranges if own == ONE else (*ranges, channel), term)


def col2im(view: View) -> tuple[Definition, ...]:
    """Col2Im: columns of blocks are added into an image."""
    have, image, block = view.ranked(0, 3, 3), view.static_ints(1), view.static_ints(2)
    rank = len(image)
    strides = tuple(view.attr("strides", None) or (1,) * rank)
    dilations = tuple(view.attr("dilations", None) or (1,) * rank)
    pads = tuple(view.attr("pads", None) or (0,) * (2 * rank))
    for name, values in (("the block", block), ("strides", strides), ("dilations", dilations)):
        view.lengths(name, values, rank)
    view.lengths("pads", pads, 2 * rank)
    view.positive("strides, dilations and blocks", (*strides, *dilations, *block))
    spots: list[OverlapAxis] = []
    for i, (m, k, s, d) in enumerate(zip(image, block, strides, dilations, strict=True)):
        blocks = (m + pads[i] + pads[i + rank] - d * (k - 1) - 1) // s + 1
        spots.append(OverlapAxis(Index.of(blocks), Index.of(m), s, d, pads[i], k))
    size = prod(block)
    axes = view.axes((have[0], floor_div(have[1], Index.of(size)), *map(Index.of, image)))
    ranges, reach, guards = reaching(view, spots, here(axes[2:]))
    row, column = Index.of(axes[1]), ZERO
    for s, r in zip(spots, reach, strict=True):
        row, column = row * s.size + r.tap, column * s.have + r.position
    value = inside(guards, view.load(0, (Index.of(axes[0]), row, column)), const(0, view.dtype(0)))
    return (Definition(view.out(), axes, cast(total("sum", ranges, value), view.dtype(0))),)


ROWS: tuple[Row, ...] = (
    Row("ConvTranspose", conv_transpose, images="convolution"),
    Row("Col2Im", col2im, shape_inputs=(1, 2)),
)
