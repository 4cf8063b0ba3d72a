"""Values that depend on where an element lies along an axis, as those of a Concat: each piece of the axis by itself.

A thread computes all operands of a selection; where its pieces are branches, it computes that of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import cost, rebuild
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar

MOST = 8  # pieces
LEAST = 32.0  # operations of all pieces from which on a branch is cheaper


@dataclass(frozen=True, slots=True)
class AxisPiece:
    """A value where an axis is from `begin` up to `end`."""

    axis: Axis
    begin: int
    end: int
    value: Scalar

    @property
    def guard(self) -> Guard:
        """Holds in the piece."""
        return Guard(Index.of(self.axis) - self.begin, Index.of(self.end - self.begin))


def pieces_of(value: Scalar, axes: Sequence[Axis]) -> tuple[AxisPiece, ...]:
    """The pieces of a value that is chosen by places along one axis; none where it is not, or little is computed."""
    for axis in axes:
        found = _along(value, axis)
        if 1 < len(found) <= MOST and cost(value) >= LEAST:
            return tuple(replace(p, value=_within(p)) for p in found)
    return ()


def _along(value: Scalar, axis: Axis) -> list[AxisPiece]:
    """Pieces of an axis one behind the other."""
    found: list[AxisPiece] = []
    begin, end = 0, axis.extent.constant
    while end is not None and begin < end and isinstance(value, Apply) and value.fn == "select":
        bounds = _bounds(value.args[0], axis)
        if bounds is None or bounds[0] > begin or bounds[1] <= begin:
            break
        at = min(bounds[1], end)
        found.append(AxisPiece(axis, begin, at, value.args[1]))
        begin, value = at, value.args[2]
    return [*found, AxisPiece(axis, begin, end, value)] if end is not None and begin < end else found


def _bounds(test: Scalar, axis: Axis) -> tuple[int, int] | None:
    """Where along an axis a test holds; None for another test."""
    if not isinstance(test, Apply):
        return None
    if test.fn == "and":
        both = [_bounds(t, axis) for t in test.args]
        known = [b for b in both if b is not None]
        return (max(b[0] for b in known), min(b[1] for b in known)) if len(known) == len(both) else None
    if test.fn not in ("greater_equal", "less"):
        return None
    place, limit = test.args
    if not isinstance(place, FromIndex) or place.guards or not isinstance(limit, Const):
        return None
    behind = _behind(place.index, axis)
    if behind is None:
        return None
    at = int(limit.value) - behind
    return (at, axis.extent.constant or 0) if test.fn == "greater_equal" else (0, at)


def _behind(e: Index, axis: Axis) -> int | None:
    """How far an index is behind that along an axis, if it is so far everywhere."""
    return (e - axis).constant if coefficient(e, axis) == ONE else None


def _within(p: AxisPiece) -> Scalar:
    """The value of a piece without guards that hold everywhere in it."""

    def holds(g: Guard) -> bool:
        behind, extent = _behind(g.index, p.axis), g.extent.constant
        return behind is not None and extent is not None and p.begin + behind >= 0 and p.end + behind <= extent

    def leaf(x: Scalar) -> Scalar | None:
        if not isinstance(x, (Load, FromIndex)) or not any(map(holds, x.guards)):
            return None
        left = tuple(g for g in x.guards if not holds(g))
        if isinstance(x, FromIndex):
            return replace(x, guards=left)
        otherwise = rebuild(x.otherwise, leaf, lambda e: e) if left and x.otherwise is not None else None
        return replace(x, guards=left, otherwise=otherwise)

    return rebuild(p.value, leaf, lambda e: e)
