"""Scatters: the initial result, then a sequential loop over all updates.

Tasks own disjoint elements of the result, along the axes that have no looked-up index. Each task goes through all
updates, so that no element is updated by two tasks, and updates are applied in the order of the runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse.cost.serial import updates
from onnxfuse.ir.affine import split_axes
from onnxfuse.ir.compose import cost
from onnxfuse.ir.index import ONE, Axis, Index, Loaded, atoms, axes_of
from onnxfuse.ir.indexing import coefficient, product, unflatten
from onnxfuse.ir.kernel import Loop, Phase, Split, Stmt
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import serial_time
from onnxfuse.schedule.nests.nest import Level, free_loops, fused_axes, indices_to_fuse, order_of
from onnxfuse.schedule.nests.updates import Goals, goals_of, landed
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu


def scatter_phase(t: AlignedJobs, places: dict[str, Place], target: Cpu) -> Phase:
    """The phase of a scatter: rows of the result, and vectors of contiguous elements, are divided among tasks."""
    (job,) = t.jobs
    s = job.scatter
    assert s is not None
    before, update = goals_of(job.nest.name, s, places)
    goals = (before, replace(update, value=landed(s, update.buffer, update.offset, update.value)))
    compared = tuple(a for a, _ in s.places if a.extent != ONE)
    others = tuple(a for a in s.axes if a.extent != ONE and a not in compared)
    axes, values = split_axes(others, _indices(goals))
    goals = _substituted(goals, values)
    axes, values = fused_axes(tuple(order_of(axes, goals[0].offset)), _indices(goals))
    goals = _substituted(goals, values)
    inner = next((a for a in axes if coefficient(goals[0].offset, a) == ONE), None)
    rows = [a for a in axes if a != inner]
    m = Axis("m", product([a.extent for a in rows]))
    digits = zip(rows, unflatten(Index.of(m), tuple(a.extent for a in rows)), strict=True)
    before, landing = _substituted(goals, dict(digits))
    steps = [Level(r) for r in s.ranges]
    splits: tuple[Split, ...] = ()
    if inner is None:
        start = free_loops(before, compared)
    else:
        splits = (Split(Axis("c0", inner.extent), Axis("c1", inner.extent + 1), inner.extent, target.lanes),)
        begin, end = Index.of(splits[0].first), Index.of(splits[0].last)
        start = [*map(Level, compared), Level(inner, "vector", begin, end)]
        steps.append(Level(inner, "serial" if _looked_up_along(landing.offset, inner) else "vector", begin, end))
    body: tuple[Stmt, ...] = (*written([before], start, "s"), *written([landing], steps))
    if rows:
        first, last = Axis("r0", m.extent), Axis("r1", m.extent + 1)
        body = (Loop(m, Index.of(first), Index.of(last), "serial", body),)
        splits = (Split(first, last, m.extent), *splits)
    count = product([r.extent for r in s.ranges])
    updated = product([a.extent for a in others])
    work = serial_time(t, target.serial) + updates(count, updated, cost(s.element), target.serial)
    return Phase(splits, work, (), body)


def _indices(goals: Goals) -> list[Index]:
    return [e for goal in goals for e in indices_to_fuse(goal)]


def _substituted(goals: Goals, values: Mapping[Axis, Index]) -> Goals:
    return goals[0].substituted(values), goals[1].substituted(values)


def _looked_up_along(offset: Index, axis: Axis) -> bool:
    """Whether an offset contains an index that is looked up for each step along an axis."""
    found = (a for a in atoms(offset) if isinstance(a, Loaded))
    return any(axis in axes_of(e) for a in found for e in a.at)
