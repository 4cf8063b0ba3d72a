"""Scatters: the result as it is before, then a loop over all that lands on it, in order.

Tasks have elements of the result of their own: along the axes that no place is looked up for. Each goes through all
that lands, so that nothing is combined by two of them, and every element in the order of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.affine import split_axes
from onnxfuse.ir.compose import cost, substitute_axes
from onnxfuse.ir.dtype import I64
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, atoms, axes_of
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Loop, Phase, Split, Stmt
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import FromIndex, Load
from onnxfuse.lower.scatters import Scatter
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.nests.align import Together
from onnxfuse.schedule.nests.frame import work_of
from onnxfuse.schedule.nests.nest import Goal, Level, free_loops, fused_axes, indices_to_fuse, order_of
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

LANDING = 4000  # picoseconds of an element: its place is looked up and loaded, and nothing is known of where it lies


def scatter_phase(t: Together, places: dict[str, Place], target: Cpu) -> Phase:
    """The phase of a scatter: rows of the result, and vectors of what lies side by side in them, go to tasks."""
    (job,) = t.jobs
    s = job.scatter
    assert s is not None
    before, landing = _goals(job.nest.name, s, places)
    compared = [a for a, _ in s.places if a.extent != ONE]
    others = [a for a in s.axes if a.extent != ONE and a not in compared]
    axes, values = split_axes(tuple(others), [*indices_to_fuse(before), *indices_to_fuse(landing)])
    before, landing = before.substituted(values), landing.substituted(values)
    ordered = tuple(order_of(axes, before.offset))
    axes, values = fused_axes(ordered, [*indices_to_fuse(before), *indices_to_fuse(landing)])
    before, landing = before.substituted(values), landing.substituted(values)
    inner = next((a for a in axes if coefficient(before.offset, a) == ONE), None)
    rows = [a for a in axes if a != inner]
    m = Axis("m", product([a.extent for a in rows]))
    digits = dict(zip(rows, unflatten(Index.of(m), tuple(a.extent for a in rows)), strict=True))
    before, landing = before.substituted(digits), landing.substituted(digits)
    first, last = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    splits = (Split(first, last, m.extent),) if rows else ()
    start, steps = free_loops(before, tuple(compared)), [Level(r) for r in s.ranges]
    if inner is not None:
        begin, end = Axis("c0", inner.extent), Axis("c1", inner.extent + 1)
        splits = (*splits, Split(begin, end, inner.extent, target.lanes))
        along = Level(inner, "vector", Index.of(begin), Index.of(end))
        start = [*map(Level, compared), along]
        steps.append(Level(inner, "serial" if _looked_up_along(landing.offset, inner) else "vector", along.begin, along.end))
    body: tuple[Stmt, ...] = (*written([before], start, "s"), *written([landing], steps))
    if rows:
        body = (Loop(m, Index.of(first), Index.of(last), "serial", body),)
    count = product([a.extent for a in (*others, *s.ranges)])
    work = work_of(t) + count * int(60 + 15 * cost(s.element)) + product([r.extent for r in s.ranges]) * LANDING
    return Phase(splits, work, (), body)


def _goals(name: str, s: Scatter, places: Mapping[str, Place]) -> tuple[Goal, Goal]:
    """What an element of the result is before, and what it is with one more that lands on it."""
    there = dict(s.places)
    units = {a: ZERO for a in s.axes if a.extent == ONE and a not in there}
    place = places[name]
    here = place.offset(tuple(units.get(a, Index.of(a)) for a in s.axes))
    before = Goal(place.buffer, here, flat(substitute_axes(s.start, units), places))
    at = place.offset(tuple(units.get(a, substitute(there.get(a, Index.of(a)), units)) for a in s.axes))
    offset = flat(FromIndex(at, I64), places)
    assert isinstance(offset, FromIndex)
    held = Load(place.buffer, (offset.index,), s.element.dtype)
    (value,) = MONOIDS[s.combine].merge((held,), (flat(substitute_axes(s.element, units), places),))
    return before, Goal(place.buffer, offset.index, value)


def _looked_up_along(offset: Index, axis: Axis) -> bool:
    """Whether places are looked up for each step along an axis."""
    found = (a for a in atoms(offset) if isinstance(a, Loaded))
    return any(axis in axes_of(e) for a in found for e in a.at)
