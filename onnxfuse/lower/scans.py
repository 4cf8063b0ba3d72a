"""Recognition of scans (prefix reductions): each result is the previous one combined with one more element."""

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
    """A scan of `element` along `axis`, from the end where it is `reverse` (a suffix reduction).

    `own` is 0 for an inclusive scan, 1 for an exclusive one.
    """

    axis: Axis
    combine: str
    element: Scalar
    own: int
    reverse: bool


def scan_of(d: Definition) -> Scan | None:
    """The scan that a definition computes, None where it computes something else."""
    x = d.value
    if not isinstance(x, Reduce) or len(x.ranges) != 1 or len(x.body) != 1:
        return None
    return next((made for axis, own, sign in _places(d, x) if (made := _scan(x, axis, own, sign)) is not None), None)


def _places(d: Definition, x: Reduce) -> Iterator[tuple[Axis, int, int]]:
    """Axes of a definition that are only compared with the reduction's range: (axis, own, sign).

    `own` is 1 for an exclusive scan, `sign` is -1 for one that runs from the end.
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
    """Whether an axis appears in comparisons only: in no load's index, and converted to no number."""
    if any(axis in axes_of(e) for n in loads(body) for e in n.index):
        return False
    users = (n for n in walk(body) if not (isinstance(n, Apply) and n.dtype == BOOL))
    return not any(isinstance(c, FromIndex) and axis in axes_of(c.index) for n in users for c in children(n))


def _scan(x: Reduce, axis: Axis, own: int, sign: int) -> Scan | None:
    """The scan, where the terms beyond the current element are the monoid's identity."""
    (j,), (body,) = x.ranges, x.body

    def ahead(by: int) -> Scalar:
        return simplify(substitute_axes(body, {axis: Index.of(j) + (own + by) * sign}))

    if ahead(-1) != MONOIDS[x.combine].init(body.dtype)[0]:
        return None
    return Scan(axis, x.combine, substitute_axes(ahead(0), {j: Index.of(axis)}), own, sign < 0)
