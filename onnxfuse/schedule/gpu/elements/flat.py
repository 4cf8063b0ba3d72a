"""An elementwise phase: each thread has elements of its own, adjacent where one wide access loads and stores them.

Where most of what is read lies along another axis, neighbouring threads are at neighbours of that one. What differs
along an axis, as the operands of a Concat do, is computed in branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import loads, substitute_axes
from onnxfuse.ir.fragments import WARP
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, divides
from onnxfuse.ir.indexing import coefficient, flatten, product, substitute, unflatten
from onnxfuse.ir.kernel import Phase, Stmt, Store, When
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.elements.pieces import AxisPiece, pieces_of
from onnxfuse.schedule.gpu.thread_mapping import BLOCK, ThreadMapping, around, over_rows
from onnxfuse.schedule.gpu.writer import ThreadWriter, resolved
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level, fused_axes, indices_to_fuse, order_of
from onnxfuse.target import Gpu

WIDE = 4  # elements that are stored at once, from which on neighbouring threads may be at other neighbours
SEVERAL = 2  # loads, more of which are worth that


@dataclass(frozen=True, slots=True)
class Elements:
    """Jobs over the same axes, joined where that is possible, in the order in which the `last` one is stored.

    `values` are those of the jobs' own axes. What differs along an axis is in `pieces`, of the only job.
    """

    last: Job
    pieces: tuple[AxisPiece, ...]
    goals: tuple[Goal, ...]
    axes: tuple[Axis, ...]
    values: Mapping[Axis, Index]

    def read_along(self) -> Axis | None:
        """The axis that most of what is read lies along, if that is not the one that is stored along."""
        offsets = [substitute(x.index[0], self.values) for g in self.goals for x in loads(g.value) if x.index]
        moving = [e for e in offsets if len(axes_of(e)) > 1]
        along = {a: sum(coefficient(e, a) == ONE for e in moving) for a in self.axes}
        best = max(self.axes[:-1], key=lambda a: along[a], default=None)
        long = best is not None and (best.extent.constant or 0) >= WARP
        return best if long and best is not None and along[best] > max(SEVERAL, len(moving) // 2) else None

    def begins(self, a: Axis) -> Iterator[Index]:
        """Where pieces along an axis begin."""
        yield from (Index.of(p.begin) for p in self.pieces if p.axis == a and p.begin)


def elements_of(t: AlignedJobs, places: Mapping[str, Place]) -> Elements:
    """Jobs that run over the same axes."""
    last = t.jobs[-1]
    order = tuple(order_of(t.shared, offset_of(last, places)))
    pieces = pieces_of(last.nest.value, order[:-1]) if len(t.jobs) == 1 else ()
    goals = [
        Goal(j.nest.name, offset_of(j, places) if j.nest.name in places else ZERO, _flat(j, places)) for j in t.jobs
    ]
    if pieces:
        goals = [replace(goals[0], value=resolved(p.value, lambda _: None, places)) for p in pieces]
    apart = [Index.of(p.axis) for p in pieces]
    axes, values = fused_axes(order, [*apart, *(e for g in goals for e in indices_to_fuse(g))])
    return Elements(last, pieces, tuple(goals), tuple(axes), values)


def flat_phase(t: AlignedJobs, width: int, places: Mapping[str, Place], target: Gpu) -> Phase | None:
    """Jobs that run over the same axes, `width` elements of the last one at a time; None where that is no multiple.

    Where most of what is read lies along another axis, neighbouring threads are at neighbours of that one: what they
    read is coalesced, what they store is wide at least.
    """
    found = elements_of(t, places)
    last, pieces, axes, values = found.last, found.pieces, found.axes, found.values
    v = Axis("v", Index.of(width))
    extents = tuple(a.extent for a in axes)
    if width > 1:
        last_pieces = divides(v.extent, extents[-1]) if extents else None
        if last_pieces is None:
            return None
        extents = (*extents[:-1], last_pieces)
    row, launch = over_rows(ThreadMapping("thread", 1, BLOCK, width), product(extents), target.blocks)
    along = found.read_along() if width >= WIDE else None
    turned = sorted(zip(axes, extents, strict=True), key=lambda pair: pair[0] == along)
    over = unflatten(Index.of(row), tuple(extent for _, extent in turned))
    digits = {axis: e for (axis, _), e in zip(turned, over, strict=True)}
    if width > 1:
        digits[axes[-1]] = digits[axes[-1]] * width + v
    digits |= {a: substitute(e, digits) for a, e in values.items()}

    def written(each: Sequence[tuple[Job, Scalar]]) -> tuple[Stmt, ...]:
        writer = ThreadWriter([], at=[[]])
        made: dict[str, Scalar] = {}

        def fill() -> None:
            for job, value in each:
                mine = substitute_axes(value, digits)
                made[job.nest.name] = writer.value(resolved(mine, lambda load: _own(load, made), places))
                if job.nest.name in places:
                    dims = tuple(substitute(e, digits) for e in job.nest.dims)
                    place = places[job.nest.name]
                    writer.store(Store(place.buffer, writer.index(place.offset(dims)), made[job.nest.name]))

        writer.loop([Level(v, "vector")] if width > 1 else [], (), fill)
        return tuple(writer.at[0])

    inside: tuple[Stmt, ...] = tuple(
        When((Guard(substitute(p.guard.index, digits), p.guard.extent),), written([(last, p.value)])) for p in pieces
    )
    inside = inside or written([(job, job.nest.value) for job in t.jobs])
    body = around(ThreadMapping("thread", 1, BLOCK, width), row, inside)
    return Phase((), ONE, (), body, launch=launch)


def _flat(job: Job, places: Mapping[str, Place]) -> Scalar:
    """The value of a job, read from where all lies that does lie somewhere."""
    return resolved(job.nest.value, lambda _: None, places)


def _own(load: Load, made: Mapping[str, Scalar]) -> Scalar | None:
    """What stands for a value of the same phase."""
    return made.get(load.source)


def offset_of(job: Job, places: Mapping[str, Place]) -> Index:
    """Where a job stores its value; in the order of its own axes where it does not."""
    nest = job.nest
    place = places.get(nest.name)
    if place is not None:
        return place.offset(nest.dims)
    return flatten(tuple(map(Index.of, nest.axes)), tuple(a.extent for a in nest.axes))
