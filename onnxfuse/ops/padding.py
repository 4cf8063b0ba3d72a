"""Rows of padding and cropping: constant padding is a guarded load, all other modes are index maps."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.compose import inside
from onnxfuse.ir.index import ONE, ZERO, Index, greatest, least
from onnxfuse.ir.index import modulo as index_modulo
from onnxfuse.ir.scalar import Guard, Scalar, const
from onnxfuse.ops.proofs import never_negative
from onnxfuse.ops.spec import Definition, Row, View


@dataclass(frozen=True, slots=True)
class Margin:
    """The padding before and after one axis of extent `have`; negative amounts crop."""

    have: Index
    low: Index = ZERO
    high: Index = ZERO

    @property
    def extent(self) -> Index:
        """The extent of the result."""
        return self.have + self.low + self.high

    @property
    def kept(self) -> Index:
        """What is left when one side is cut: cropping comes first, and what is cut off is not reflected or repeated."""
        return self.have + sum((n for n in (self.low, self.high) if not _adds(n)), ZERO)

    def source(self, mode: str, at: Index) -> Index:
        """The source position of the result's position `at`; out of range in the padding of mode constant."""
        if mode == "constant" or not (_adds(self.low) or _adds(self.high)):
            return at - self.low
        kept, cut = self.kept, ZERO if _adds(self.low) else self.low
        place = at - (self.low - cut)
        if mode == "edge":
            place = greatest(ZERO, least(place, kept - 1))
        elif mode == "wrap":
            place = index_modulo(place, kept)
        elif mode == "reflect":
            place = self._reflected(place, kept)
        return place - cut

    def _reflected(self, place: Index, kept: Index) -> Index:
        """The position reflected at both ends, repeatedly; once only where the extent is symbolic."""
        last = kept - 1
        n = last.constant
        if n is not None and any(m.constant is None or m.constant > n for m in (self.low, self.high)):
            if n == 0:
                return ZERO
            place = index_modulo(place, last * 2)
            return least(place, last * 2 - place)
        place = greatest(place, -place)
        return greatest(ZERO, least(place, last * 2 - place))


def _adds(amount: Index) -> bool:
    """Whether an amount is positive; one that depends on symbols is assumed to be, and does not crop."""
    n = amount.constant
    return n is None or n > 0


def margins(view: View) -> tuple[Margin, ...]:
    """The padding of a Pad, axis by axis; amounts are an attribute before opset 11, axes an input since opset 18."""
    have = view.shape(0)
    pads = view.ints(1) if view.opset >= 11 else tuple(map(Index.of, view.attr("pads", ())))
    axes = view.static_ints(3) if view.has(3) else tuple(range(len(have)))
    view.lengths("pads", pads, 2 * len(axes))
    out = [Margin(e) for e in have]
    for k, a in enumerate(axes):
        at = view.axis(a, len(have))
        out[at] = Margin(have[at], pads[k], pads[k + len(axes)])
    return tuple(out)


def pad(view: View) -> tuple[Definition, ...]:
    """Pad in every mode."""
    mode = view.attr("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise view.refuse("E-NO-KERNEL", f"mode {mode} is not supported", "mode constant, edge, reflect or wrap")
    made = margins(view)
    for m in made:
        _demand(view, mode, m)
    if mode != "constant":
        view.nonempty(m.kept for m in made)
    axes = view.axes(tuple(m.extent for m in made))
    index = tuple(m.source(mode, Index.of(a)) for m, a in zip(made, axes, strict=True))
    if mode != "constant":
        return (Definition(view.out(), axes, view.load(0, index)),)
    guards = tuple(Guard(i, m.have) for i, m in zip(index, made, strict=True) if m.low.terms or m.high.terms)
    return (Definition(view.out(), axes, inside(guards, view.load(0, index), _fill(view))),)


def _demand(view: View, mode: str, m: Margin) -> None:
    """State the constraints of a mode on extents; refused where it is not known whether an amount pads or crops."""
    numbers = [n for e in (m.low, m.high) if (n := e.constant) is not None]
    unknown = [e for e in (m.low, m.high) if e.constant is None]
    if mode == "constant":
        for e in (m.extent,) if unknown else ():
            view.demand(e, "is at least", ZERO)
    elif not all(map(never_negative, unknown)):
        raise view.unsized(f"whether amounts of {unknown} pad or crop depends on symbols", unknown)
    if mode == "reflect" and m.have.constant is None:  # known extents are reflected repeatedly, as the runtime does
        for e in (*unknown, *([Index.of(max(numbers))] if numbers else ())):
            view.demand(m.have, "is at least", e + 1)


def _fill(view: View) -> Scalar:
    """The value of constant padding."""
    if view.opset < 11:
        return const(view.attr("value", 0.0), view.dtype(0))
    if not view.has(2):
        return const(0, view.dtype(0))
    for extent in view.shape(2):
        view.demand(extent, "equals", ONE)
    return view.load(2, (ZERO,) * len(view.shape(2)))


def center_crop_pad(view: View) -> tuple[Definition, ...]:
    """CenterCropPad: named axes are cropped or zero-padded to given extents, equally on both sides."""
    have = view.shape(0)
    named = tuple(view.axis(a, len(have)) for a in view.attr("axes", range(len(have))))
    wanted = list(have)
    view.lengths("the shape", view.extents(1), len(named))
    for at, extent in zip(named, view.extents(1), strict=True):
        wanted[at] = extent
    axes = view.axes(tuple(wanted))
    index: list[Index] = []
    guards: list[Guard] = []
    for a, n, e in zip(axes, have, wanted, strict=True):
        more = (e - n).constant
        if more is None:
            raise view.unsized(f"{n!r} centred in {e!r}", (n, e))
        index.append(Index.of(a) - more // 2 if more > 0 else Index.of(a) + -more // 2)
        if more > 0:
            guards.append(Guard(index[-1], n))
    value = inside(tuple(guards), view.load(0, tuple(index)), const(0, view.dtype(0)))
    return (Definition(view.out(), axes, value),)


def trilu(view: View) -> tuple[Definition, ...]:
    """Trilu: zeros below or above a diagonal of each matrix."""
    have, dtype = view.ranked(0, 2), view.dtype(0)
    k = view.single(1).constant if view.has(1) else 0
    if k is None:
        raise view.unsized(f"{view.node.inputs[1]} depends on a symbol", view.ints(1))
    axes = view.axes(have)
    i, j = (Index.of(a) for a in axes[-2:])
    if view.attr("upper", 1):
        guard = Guard(j - i - k, have[-1] + max(0, -k))
    else:
        guard = Guard(i + k - j, have[-2] + max(0, k))
    value = inside((guard,), view.load(0, tuple(map(Index.of, axes))), const(0, dtype))
    return (Definition(view.out(), axes, value),)


ROWS: tuple[Row, ...] = (
    Row("Pad", pad, since=2, shape_inputs=(1, 3)),
    Row("CenterCropPad", center_crop_pad, shape_inputs=(1,)),
    Row("Trilu", trilu, shape_inputs=(1,)),
)
