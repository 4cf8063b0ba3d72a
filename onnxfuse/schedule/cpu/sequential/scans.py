"""Scans: a loop along their axis; each line is the stored line before it, combined with one more element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.ir.compose import cost
from onnxfuse.ir.extents import never_empty
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import coefficient, product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt, When
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Guard, Load
from onnxfuse.lower.scans import Scan
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame, flat_in, goal_of, serial_time
from onnxfuse.schedule.nests.nest import Goal, Level, fused_axes, indices_to_fuse, order_of
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

ROWS = 8  # whose short lines are interleaved, which hides the latency of stores
SHORT = 4  # vectors of a line, below which it is short


@dataclass(frozen=True, slots=True)
class _Lines:
    """A scan whose other axes are fused to one of rows and, if lines are contiguous, one of vectors."""

    goal: Goal
    scan: Scan
    row: Level
    vectors: Sequence[Level]

    def at(self, n: Index) -> Goal:
        """The store of element `n`, counted from where the scan begins."""
        end = self.scan.axis.extent - 1
        return self.goal.substituted({self.scan.axis: end - n if self.scan.reverse else n})

    @property
    def first(self) -> Goal:
        """The store of the first line."""
        here = self.at(ZERO)
        idle = MONOIDS[self.scan.combine].init(self.goal.value.dtype)[0]
        return Goal(here.buffer, here.offset, idle) if self.scan.own else here

    def begun(self, over: Sequence[Level]) -> tuple[Stmt, ...]:
        """The first line, unless the axis has no place at all."""
        made, extent = written([self.first], over, "s"), self.scan.axis.extent
        return made if never_empty(extent) else (When((Guard(ZERO, extent),), made),)

    def next(self, n: Index, *, made: bool) -> Goal:
        """The store of a later line; with `made`, its elements are in place already."""
        here, dtype = self.at(n), self.goal.value.dtype
        held = Load(self.goal.buffer, (self.at(n - 1).offset,), dtype)
        element = Load(self.goal.buffer, (here.offset,), dtype) if made else self.at(n - self.scan.own).value
        (value,) = MONOIDS[self.scan.combine].merge((held,), (element,))
        return Goal(here.buffer, here.offset, value)

    def elements(self, over: Sequence[Level]) -> tuple[Stmt, ...]:
        """The stores of all elements, before they are combined."""
        axis, own = self.scan.axis, self.scan.own
        shift = own if self.scan.reverse else -own
        shifted = self.goal.substituted({axis: Index.of(axis) + shift})
        goal = Goal(self.goal.buffer, self.goal.offset, shifted.value)
        begin, end = Index.of(max(-shift, 0)), axis.extent - max(shift, 0)
        if not self.vectors:
            return written([goal], [*over, Level(axis, "vector", begin, end)], "e")
        one, values = fused_axes((axis, self.vectors[0].axis), indices_to_fuse(goal)) if not own else ((), {})
        if len(one) == 1:
            return written([goal.substituted(values)], [*over, Level(one[0], "vector")], "e")
        return written([goal], [*over, Level(axis, "serial", begin, end), *self.vectors], "e")


def scan_phase(t: AlignedJobs, places: dict[str, Place], target: Cpu) -> Phase:
    """The phase of a scan: rows, and vectors of long lines, are divided among tasks; the scanned axis is not."""
    (job,) = t.jobs
    scan = job.scan
    assert scan is not None
    frame = Frame({}, None, ZERO, 1, places)
    goal = goal_of(job, frame, flat_in(job.nest.value, frame))
    others = order_of([a for a in job.nest.axes if a != scan.axis], goal.offset)
    axes, values = fused_axes(tuple(others), indices_to_fuse(goal))
    goal = goal.substituted(values)
    vector = next((a for a in axes if coefficient(goal.offset, a) == ONE), None)
    rows = [a for a in axes if a != vector]
    m = Axis("m", product([a.extent for a in rows]))
    goal = goal.substituted(dict(zip(rows, unflatten(Index.of(m), tuple(a.extent for a in rows)), strict=True)))
    size = ONE if vector is None else vector.extent
    if vector is None or (size.constant or SHORT * target.lanes) < SHORT * target.lanes:
        lines = _Lines(goal, scan, Level(m), [Level(vector, "vector")] if vector is not None else [])
        return _side_by_side(
            lines, serial_time(t, target.serial), apart=cost(goal.value) > 0 and (size.constant or 0) < target.lanes
        )
    first, last, begin, end = (Axis(name, a.extent + at) for name, a, at in _edges(m, vector))
    lines = _Lines(goal, scan, Level(m), [Level(vector, "vector", Index.of(begin), Index.of(end))])
    n = Axis("n", scan.axis.extent)
    later = Loop(n, ONE, n.extent, "serial", written([lines.next(Index.of(n), made=False)], lines.vectors))
    body = (*lines.begun(lines.vectors), later)
    splits = (Split(first, last, m.extent), Split(begin, end, vector.extent, target.lanes))
    return Phase(splits, serial_time(t, target.serial), (), (Loop(m, Index.of(first), Index.of(last), "serial", body),))


def _edges(m: Axis, vector: Axis) -> Sequence[tuple[str, Axis, int]]:
    return (("r0", m, 0), ("r1", m, 1), ("c0", vector, 0), ("c1", vector, 1))


def _side_by_side(lines: _Lines, work: Index, *, apart: bool) -> Phase:
    """Blocks of rows whose scans are interleaved; with `apart`, elements are computed before, by whole vectors."""
    m, n = lines.row.axis, Axis("n", lines.scan.axis.extent)
    block = Axis("b", floor_div(m.extent + (ROWS - 1), Index.of(ROWS)))
    top, bottom = Axis("m0", m.extent), Axis("m1", m.extent + 1)
    rows = Level(m, "serial", Index.of(top), Index.of(bottom))
    body: list[Stmt] = [
        Bind(top, Index.of(block) * ROWS),
        Bind(bottom, Index.of(block) * ROWS + ROWS, m.extent),
    ]
    if apart:
        body += lines.elements([rows])
    if lines.scan.own or not apart:
        body += lines.begun([rows, *lines.vectors])
    following = written([lines.next(Index.of(n), made=apart)], [rows, *lines.vectors])
    body.append(Loop(n, ONE, n.extent, "serial", following))
    first, last = Axis("r0", block.extent), Axis("r1", block.extent + 1)
    loop = Loop(block, Index.of(first), Index.of(last), "serial", tuple(body))
    return Phase((Split(first, last, block.extent),), work, (), (loop,))
