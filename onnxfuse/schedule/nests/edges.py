"""Where the guards of loads hold along an axis: the interior of an image, and the ends, at which one side can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxfuse.ir.compose import rebuild, walk
from onnxfuse.ir.dtype import BOOL
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of, floor_div, greatest, least, lower, upper
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.scalar import Apply, FromIndex, Guard, Load, Reduce, Scalar, const

FAR = Index.of(1 << 40)  # elements: beyond the end of every image


@dataclass(frozen=True, slots=True)
class Interior:
    """The `count` iterations from `begin` on in which every guard holds, and how many follow, if that is one number."""

    begin: int
    count: Index
    behind: int | None


def guards_along(value: Scalar, axis: Axis) -> list[Guard]:
    """The guards of all loads in a value that depend on an axis."""
    return [g for n in walk(value) if isinstance(n, Load) for g in n.guards if axis in axes_of(g.index)]


def range_inside(x: Axis, reduce: Reduce, width: int) -> tuple[int, int] | None:
    """The range of x, of known extent, in which every guard that depends on it holds for all taps."""
    first, last = 0, width
    for g in guards_along(reduce, x):
        found, extent = _reach(g, x), g.extent.constant
        if found is None or extent is None:
            return None
        stride, low, high = found
        first = max(first, -(low // stride) if low < 0 else 0)
        last = min(last, (extent - 1 - high) // stride + 1)
    return (first, last) if last > first else None


def unmasked_points(values: Sequence[Scalar], axis: Axis, lanes: int) -> tuple[int, ...] | None:
    """Points at which to split a vector loop so that its longest part has whole vectors without masks, ends included.

    None if no masks are needed, or all of the loop is near an edge.
    """
    width = axis.extent.constant
    reduces = [n for x in values for n in walk(x) if isinstance(n, Reduce)]
    spans = [range_inside(axis, n, width) for n in reduces] if width is not None else []
    known = [span for span in spans if span is not None]
    if width is None or not spans or len(known) < len(spans):
        return None
    first, last = max(a for a, _ in known), min(b for _, b in known)
    first, last = -(-first // lanes) * lanes, (last // lanes * lanes if last < width else width)
    masked = first > 0 or last < width
    return tuple(sorted({0, first, last, width})) if masked and 2 * (last - first) >= max(width, 2 * lanes) else None


def interior(x: Axis, value: Scalar) -> Interior | None:
    """The iterations of x, of any extent, in which every guard that depends on it holds for all taps."""
    found: list[tuple[int, int, Index]] = []
    for g in guards_along(value, x):
        reach = _reach(g, x)
        if reach is None:
            return None
        stride, low, high = reach
        found.append((stride, low, g.extent - high))
    first = max((-(low // stride) for stride, low, _ in found if low < 0), default=0)
    count = greatest(ZERO, x.extent - first)
    for stride, _, end in found:
        count = least(count, floor_div(greatest(ZERO, end + (stride - 1) - stride * first), Index.of(stride)))
    over = [(stride, (stride * (x.extent - 1) - end).constant) for stride, _, end in found]
    behind = [max(0, by // stride + 1) for stride, by in over if by is not None]
    return Interior(first, count, max(behind, default=0) if len(behind) == len(over) else None)


def _reach(g: Guard, x: Axis) -> tuple[int, int, int] | None:
    """The step of a guard's index along x, and its least and greatest value at x = 0; None where they vary."""
    rest = substitute(g.index, {x: ZERO})
    bounds = (coefficient(g.index, x), _least(rest), upper(rest))
    stride, low, high = (e.constant if e is not None else None for e in bounds)
    return None if not stride or stride < 0 or low is None or high is None else (stride, low, high)


def _least(e: Index) -> Index | None:
    """The minimum of an index, which may be negative."""
    shift = next((c for m, c in e.terms if not m), 0)
    low = lower(e - shift)
    return None if low is None else low + shift


def inside(x: Scalar, axis: Axis) -> Scalar:
    """A value without the guards that depend on an axis, and comparisons that say the same."""
    return _decided(x, axis, lambda _: None, ("greater_equal", "less"))


def near_begin(x: Scalar, axis: Axis) -> Scalar:
    """A value far from the end of an axis: of the guards that depend on it only the lower side is left."""
    return _decided(x, axis, lambda g: Guard(g.index, FAR), ("less",))


def near_end(x: Scalar, axis: Axis) -> Scalar:
    """A value far from the begin of an axis: of the guards that depend on it only the upper side is left."""
    return _decided(x, axis, lambda g: Guard(g.index - g.extent + FAR, FAR), ("greater_equal",))


def _decided(x: Scalar, axis: Axis, left: Callable[[Guard], Guard | None], sides: Sequence[str]) -> Scalar:
    """A value with what is `left` of the guards along an axis; comparisons that say one of the `sides` are true."""
    held = guards_along(x, axis)
    said = {"greater_equal": {g.index for g in held}, "less": {g.index - g.extent for g in held}}

    def known(n: Scalar) -> Scalar | None:
        if isinstance(n, Apply) and n.fn in sides:
            one, other = n.args
            if isinstance(one, FromIndex) and one.index in said[n.fn] and other == const(0, one.dtype):
                return const(value=True, dtype=BOOL)
            return None
        if not isinstance(n, Load) or not any(axis in axes_of(g.index) for g in n.guards):
            return None
        kept = (left(g) if axis in axes_of(g.index) else g for g in n.guards)
        guards = tuple(g for g in kept if g is not None)
        return Load(n.source, n.index, n.dtype, guards, n.otherwise if guards else None)

    return rebuild(x, known, lambda i: i)
