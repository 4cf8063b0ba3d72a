"""How the symbols of a kernel get their values at launch."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.ir.extents import solved
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Computed, ExtentBind, Param
from onnxfuse.schedule.analysis.canonical import Canonical


def binds_of(c: Canonical, inputs: Sequence[Param]) -> tuple[ExtentBind | Computed, ...]:
    """For each symbol the input dimension that it is read from, or the expression of other symbols that computes it."""
    spots: dict[Index, tuple[int, int]] = {}
    for i, p in enumerate(inputs):
        for axis, e in enumerate(p.storage):
            spots.setdefault(e, (i, axis))
    known = solved(spots)
    read = [ExtentBind(s, *spots[e], rest, factor) for s, (e, rest, factor) in known.items() if s in c.symbols]
    made = [Computed(s, e) for s, e in c.computed]
    assert len(read) + len(made) == len(c.symbols), "schedule: a symbol has no bind"
    return (*read, *made)
