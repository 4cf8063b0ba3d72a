"""The context in which a phase is built: shared axes, window of rows, and the buffers of its values."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxfuse.cost.serial import elements, terms
from onnxfuse.ir.compose import cost, substitute_axes, walk
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.index import ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product, substitute
from onnxfuse.ir.kernel import Buffer, Space
from onnxfuse.ir.scalar import Reduce, Scalar
from onnxfuse.schedule.analysis.memory import Nest, Place, flat
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal
from onnxfuse.target.cpu import SerialTimes


@dataclass(slots=True)
class Frame:
    """The context of a phase: flat shared axes, the row window, places of values and local buffers."""

    shared: dict[Axis, Index]
    row: Axis | None
    first: Index  # first row of the window
    tile_rows: int  # rows of the window, at most
    places: dict[str, Place]
    locals: list[Buffer] = field(default_factory=list)
    stages: int = 0
    lanes: int = 1
    aliases: dict[str, Job] = field(default_factory=dict)  # values that are computed in the memory of an output

    def local(self, name: str, size: Index, dtype: DType = F32, space: Space = "local") -> str:
        """Declares a buffer that lives as long as one task; `size` counts elements."""
        self.locals.append(Buffer(name, dtype, size, space))
        return name


def inner_axes(nest: Nest, t: AlignedJobs) -> tuple[Axis, ...]:
    """Axes of a nest that the phase does not share."""
    return tuple(a for a in nest.axes if a not in t.shared)


def give_place(job: Job, t: AlignedJobs, frame: Frame, kept: set[str]) -> None:
    """Allocate the job's value, unless it is an output: in scratch if later phases read it, else local to the task."""
    nest = job.nest
    if nest.name in kept or nest.output:
        return
    if nest.name in frame.aliases:
        frame.places[nest.name] = frame.places[frame.aliases[nest.name].nest.name]
        return
    inner = inner_axes(nest, t)
    pitch = row_pitch(product([a.extent for a in inner]), frame.lanes)
    rows = frame.row is not None and not (job.right_side and len(t.jobs) > 1)

    def offset(index: tuple[Index, ...]) -> Index:
        found = nest.digits_at(index)
        within = flatten(tuple(found[a] for a in inner), tuple(a.extent for a in inner))
        if not rows or frame.tile_rows == 1:
            return within
        m = flatten(tuple(found[a] for a in t.rows), tuple(a.extent for a in t.rows))
        return within + (m - frame.first) * pitch

    tile_rows = (
        max(frame.tile_rows, frame.lanes)
        if rows and frame.tile_rows > 1 and not inner
        else frame.tile_rows
        if rows
        else 1
    )
    frame.local(nest.name, pitch * tile_rows, nest.dtype)
    frame.places[nest.name] = Place(nest.name, nest.dtype, offset)


def row_pitch(size: Index, lanes: int) -> Index:
    """The row pitch of a local buffer, in elements: whole vectors if a row is longer than one, to align rows."""
    if size.constant is not None and size.constant <= lanes:
        return size
    return floor_div(size + (lanes - 1), Index.of(lanes)) * lanes


def flat_in(x: Scalar, frame: Frame) -> Scalar:
    """x with the shared axes of the phase substituted and every load at a flat offset."""
    return flat(substitute_axes(x, frame.shared), frame.places)


def goal_of(job: Job, frame: Frame, value: Scalar) -> Goal:
    """The store of a job: buffer, offset and value."""
    dims = tuple(substitute(e, frame.shared) for e in job.nest.dims)
    return Goal(frame.places[job.nest.name].buffer, frame.places[job.nest.name].offset(dims), value)


def serial_time(t: AlignedJobs, times: SerialTimes) -> Index:
    """Picoseconds that the jobs take one core, roughly (`cost/serial.py`)."""
    total = ZERO
    for j in t.jobs:
        size = product([a.extent for a in j.nest.axes])
        reduces = [n for n in walk(j.nest.value) if isinstance(n, Reduce)]
        inside = sum(cost(b) for n in reduces for b in n.body)
        for n in reduces:
            steps = size * product([r.extent for r in n.ranges])
            tiled = j.tiled is not None
            total = total + (steps * times.tile_term if tiled else terms(steps, sum(map(cost, n.body)), times))
        total = total + elements(size, cost(j.nest.value) - inside, times)
    return total
