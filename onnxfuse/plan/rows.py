"""The rows of a reduction: independent units of work for thread blocks or tasks."""

from __future__ import annotations

from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.index import Index, axes_of
from onnxfuse.ir.scalar import Reduce
from onnxfuse.plan.kinds import Kind

Rows = tuple[Index, ...]


def rows_of(kind: Kind) -> Rows | None:
    """Extents above 1 of the axes that a reduction keeps, if it reduces the last dimensions of its inputs.

    None if it reduces others, as a sum over columns, whose results need elements of all rows.
    """
    found: Rows | None = None
    for d in kind.definitions:
        for r in (x for x in walk(d.value) if isinstance(x, Reduce)):
            kept = tuple(a.extent for a in d.axes if a.extent.constant != 1 and any(a in axes_of(e) for e in _kept(r)))
            if not _last(r) or (found is not None and kept != found):
                return None
            found = kept
    return found


def _kept(r: Reduce) -> list[Index]:
    """Coordinates of the loads of a reduction that do not depend on its reduction axes."""
    ranges = set(r.ranges)
    return [e for x in r.body for n in loads(x) for e in n.index if not axes_of(e) & ranges]


def _last(r: Reduce) -> bool:
    """Whether the reduction axes are in the last coordinates of all loads, and in no others."""
    ranges = set(r.ranges)
    for n in (n for x in r.body for n in loads(x)):
        reduced = [bool(axes_of(e) & ranges) for e in n.index if e.constant is None]
        if reduced != sorted(reduced):
            return False
    return True
