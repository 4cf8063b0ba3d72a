"""Prefix reductions (scans): each result is the one before it combined with one element more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, substitute_axes, walk
from onnxfuse.ir.dtype import BOOL
from onnxfuse.ir.index import ONE, Axis, Index, axes_of
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, FromIndex, Reduce, Scalar, children
from onnxfuse.ops.spec import Definition


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan along `axis`: `element` is what is combined at a place of it, from the last one on where it is `turned`.

    A result holds its own element where `own` is 0; where it is 1, only those before it.
    """

    axis: Axis
    combine: str
    element: Scalar
    own: int
    turned: bool


def scan_of(d: Definition) -> Scan | None:
    """The scan that a definition is, if it is one."""
    x = d.value
    if not isinstance(x, Reduce) or len(x.ranges) != 1 or len(x.body) != 1:
        return None
    return next((made for axis, own, sign in _places(d, x) if (made := _scan(x, axis, own, sign)) is not None), None)


def _places(d: Definition, x: Reduce) -> Iterator[tuple[Axis, int, int]]:
    """An axis of a definition whose place is compared with that in the range and used for nothing else.

    With it comes how far behind the place the range ends, and 1 or, where it runs from there to the end, -1.
    """
    (j,), (body,) = x.ranges, x.body
    for axis in d.axes:
        found = {e for e in indices_of(body) if axis in axes_of(e)}
        if axis.extent != j.extent or axis.extent == ONE or not found or not _only_compared(body, axis):
            continue
        for own, sign in ((0, 1), (1, 1), (0, -1), (1, -1)):
            ahead = (Index.of(axis) - j) * sign - own
            if ahead in found and found <= {ahead, ahead - j.extent}:
                yield axis, own, sign


def _only_compared(body: Scalar, axis: Axis) -> bool:
    """Whether nothing is read at a place that an axis says, and no number made of it."""
    if any(axis in axes_of(e) for n in loads(body) for e in n.index):
        return False
    users = (n for n in walk(body) if not (isinstance(n, Apply) and n.dtype == BOOL))
    return not any(isinstance(c, FromIndex) and axis in axes_of(c.index) for n in users for c in children(n))


def _scan(x: Reduce, axis: Axis, own: int, sign: int) -> Scan | None:
    """The scan, where nothing is combined behind the place."""
    (j,), (body,) = x.ranges, x.body

    def ahead(by: int) -> Scalar:
        return simplify(substitute_axes(body, {axis: Index.of(j) + (own + by) * sign}))

    if ahead(-1) != MONOIDS[x.combine].init(body.dtype)[0]:
        return None
    return Scan(axis, x.combine, substitute_axes(ahead(0), {j: Index.of(axis)}), own, sign < 0)
