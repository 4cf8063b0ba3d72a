"""An elementwise phase: each thread has elements of its own, adjacent where one wide access loads and stores them."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, divides
from onnxfuse.ir.indexing import flatten, product, substitute, unflatten
from onnxfuse.ir.kernel import Phase, Store
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.thread_mapping import BLOCK, ThreadMapping, around, over_rows
from onnxfuse.schedule.gpu.writer import ThreadWriter, resolved
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level, fused_axes, indices_to_fuse, order_of
from onnxfuse.target import Gpu


def flat_phase(t: AlignedJobs, width: int, places: Mapping[str, Place], target: Gpu) -> Phase | None:
    """Jobs that run over the same axes, `width` elements of the last one at a time; None where that is no multiple."""
    last = t.jobs[-1]
    order = tuple(order_of(t.shared, _offset(last, places)))
    goals = [Goal(j.nest.name, _offset(j, places) if j.nest.name in places else ZERO, _flat(j, places)) for j in t.jobs]
    axes, values = fused_axes(order, [e for g in goals for e in indices_to_fuse(g)])
    v = Axis("v", Index.of(width))
    extents = tuple(a.extent for a in axes)
    if width > 1:
        last_pieces = divides(v.extent, extents[-1]) if extents else None
        if last_pieces is None:
            return None
        extents = (*extents[:-1], last_pieces)
    row, launch = over_rows(ThreadMapping("thread", 1, BLOCK, width), product(extents), target)
    digits = dict(zip(axes, unflatten(Index.of(row), extents), strict=True))
    if width > 1:
        digits[axes[-1]] = digits[axes[-1]] * width + v
    digits |= {a: substitute(e, digits) for a, e in values.items()}
    writer = ThreadWriter([], at=[[]])
    made: dict[str, Scalar] = {}

    def fill() -> None:
        for job in t.jobs:
            value = substitute_axes(job.nest.value, digits)
            made[job.nest.name] = writer.value(resolved(value, lambda load: _own(load, made), places))
            if job.nest.name in places:
                dims = tuple(substitute(e, digits) for e in job.nest.dims)
                place = places[job.nest.name]
                writer.store(Store(place.buffer, writer.index(place.offset(dims)), made[job.nest.name]))

    writer.loop([Level(v, "vector")] if width > 1 else [], (), fill)
    body = around(ThreadMapping("thread", 1, BLOCK, width), row, tuple(writer.at[0]))
    return Phase((), ONE, (), body, launch=launch)


def _flat(job: Job, places: Mapping[str, Place]) -> Scalar:
    """The value of a job, read from where all lies that does lie somewhere."""
    return resolved(job.nest.value, lambda _: None, places)


def _own(load: Load, made: Mapping[str, Scalar]) -> Scalar | None:
    """What stands for a value of the same phase."""
    return made.get(load.source)


def _offset(job: Job, places: Mapping[str, Place]) -> Index:
    """Where a job stores its value; in the order of its own axes where it does not."""
    nest = job.nest
    place = places.get(nest.name)
    if place is not None:
        return place.offset(nest.dims)
    return flatten(tuple(map(Index.of, nest.axes)), tuple(a.extent for a in nest.axes))
