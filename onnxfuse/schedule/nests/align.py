"""Which jobs may share a phase: their axes matched through what they read of each other, or of a common source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import indices_of, loads, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, Atom, Axis, Index, axes_of
from onnxfuse.ir.indexing import WIDEST, coefficient, product
from onnxfuse.ir.products import SINGLE
from onnxfuse.ir.scalar import Reduce
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.nests.jobs import Job

NARROW = 4  # elements of a row, at most, for which vector lanes are over rows
MANY = 256  # such rows, at least


@dataclass(frozen=True, slots=True)
class AlignedJobs:
    """Jobs of one phase under common axis names: `batch` axes outermost, then `rows`, then what each has inside."""

    jobs: tuple[Job, ...]
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]

    @property
    def shared(self) -> tuple[Axis, ...]:
        """Axes that all jobs (right sides aside) run over."""
        return self.batch + self.rows


def _single_axis(e: Index) -> Axis | None:
    if len(e.terms) == 1 and e.terms[0][1] == 1 and len(e.terms[0][0]) == 1:
        atom: Atom = e.terms[0][0][0]
        return atom if isinstance(atom, Axis) else None
    return None


def _matched(producer: Job, readers: Sequence[Job]) -> dict[Axis, Axis]:
    """Axes of a producer that every read of it sets to one and the same axis of the reader."""
    names: dict[Axis, Axis] = {}
    dropped: set[Axis] = set()
    for r in readers:
        own = set(r.nest.axes)
        for load in r.reads:
            if load.source != producer.nest.name:
                continue
            for axis, e in producer.nest.digits_at(load.index).items():
                to = _single_axis(e)
                if to is None or to not in own or to.extent != axis.extent or names.get(axis, to) != to:
                    dropped.add(axis)
                elif axis not in dropped:
                    names[axis] = to
    kept = {a: b for a, b in names.items() if a not in dropped}
    return kept if len(set(kept.values())) == len(kept) else {}


def _beside(job: Job, others: Sequence[Job]) -> dict[Axis, Axis]:
    """Axes of a job matched with those of a job that reads the same element, but not the job's result."""
    for other in others if job.tiled is None else ():
        spots = {x.source: x.index for x in other.reads if other.tiled is None}
        pairs = [pair for x in job.reads for pair in zip(x.index, spots.get(x.source, ()), strict=False)]
        names = dict(p for e, f in pairs if (p := _same_extent(_single_axis(e), _single_axis(f))) is not None)
        names = {a: b for a, b in names.items() if a in job.nest.axes and b in other.nest.axes}
        if names and len(set(names.values())) == len(names):
            return names
    return {}


def _same_extent(a: Axis | None, b: Axis | None) -> tuple[Axis, Axis] | None:
    return (a, b) if a is not None and b is not None and a.extent == b.extent else None


def align(jobs: Sequence[Job]) -> AlignedJobs | None:
    """The jobs under common axes; None if they share no axis that a phase could iterate over."""
    renamed: list[Job] = []
    for job in reversed(jobs):
        readers = [r for r in renamed if any(read.source == job.nest.name for read in r.reads)]
        names = _matched(job, readers) if readers else _beside(job, renamed)
        if renamed and ((not readers and not names) or any(job.nest.name in r.looks_up for r in renamed)):
            return None
        renamed.insert(0, job.rename(names))
    if _packed_too_early(renamed):
        return None
    tiles = [j.tiled for j in renamed if j.tiled is not None]
    batch = tuple(tiles[-1].batch) if tiles else ()
    if any(set(t.batch) != set(batch) for t in tiles):
        return None
    rest = [j for j in renamed if not j.right_side] or renamed
    shared = [a for a in rest[-1].nest.axes if all(a in j.nest.axes for j in rest)]
    if tiles and len(renamed) == 1:
        shared = [a for a in shared if a in batch or a in tiles[0].rows]
    if any(a not in shared for a in batch) or any(not set(batch) <= set(j.nest.axes) for j in renamed):
        return None
    rows = tuple(a for a in shared if a not in batch)
    if any(set(t.rows) != set(rows) for t in tiles):
        return None
    if len(jobs) > 1 and not shared:
        return None
    return AlignedJobs(tuple(renamed), batch, rows)


def _packed_too_early(jobs: Sequence[Job]) -> bool:
    """Whether a right side, which is packed before the rows of a phase, reads what other jobs compute per row."""
    made = {j.nest.name for j in jobs if not j.right_side}
    return any(read.source in made for j in jobs if j.right_side for read in j.reads)


def enough_parallel(t: AlignedJobs) -> bool:
    """Whether the shared axes have iterations for several tasks, or no other axes would."""
    n = product([a.extent for a in t.shared]).constant
    return n is None or n >= 4 or len(t.jobs) == 1


def _across(t: AlignedJobs, places: Mapping[str, Place]) -> bool:
    """Whether rows that are strided in memory are reduced and processed further.

    In a phase of their own the reductions use vector lanes over the rows.
    """
    if all(set(j.nest.axes) <= set(t.shared) for j in t.jobs) or any(j.tiled is not None for j in t.jobs):
        return False
    sums = [n for j in t.jobs for n in walk(j.nest.value) if isinstance(n, Reduce)]
    reads = [(places[x.source].offset(x.index), n.ranges) for n in sums for x in loads(n) if x.source in places]
    moving = [(offset, ranges) for offset, ranges in reads if axes_of(offset) & set(ranges)]
    side = [a for a in t.shared if (a.extent.constant or WIDEST) >= WIDEST]
    return any(
        any(coefficient(offset, a) == ONE for a in side) and not any(coefficient(offset, r) == ONE for r in ranges)
        for offset, ranges in moving
    )


def _narrow(t: AlignedJobs) -> bool:
    """Whether many rows are reduced that are so short that each would leave most lanes of its vectors empty.

    In phases of their own all jobs use vector lanes over the rows.
    """
    reduces = any(isinstance(n, Reduce) for j in t.jobs for n in walk(j.nest.value))
    if not reduces or any(j.tiled is not None for j in t.jobs):
        return False
    inner = [product([a.extent for a in j.nest.axes if a not in t.shared]).constant for j in t.jobs]
    rows = product([a.extent for a in t.rows]).constant
    short = all(n is not None and n <= NARROW for n in inner) and inner.count(1) < len(inner)
    return short and (rows is None or rows >= MANY)


def _copied(t: AlignedJobs, places: Mapping[str, Place]) -> bool:
    """Whether elements of adjacent rows lie side by side in memory, and those of a row apart, as of a Concat of levels.

    In a phase of their own such values are stored by vectors. Reductions are worth a loop over rows instead.
    """
    if any(j.tiled is not None or any(isinstance(n, Reduce) for n in walk(j.nest.value)) for j in t.jobs):
        return False
    made = [j.nest for j in t.jobs if not set(j.nest.axes) <= set(t.shared) and j.nest.name in places]
    side = [a for a in t.shared if a.extent != ONE]
    return any(coefficient(places[n.name].offset(n.dims), a) == ONE for n in made for a in side)


def partition(jobs: Sequence[Job], places: Mapping[str, Place], *, prologues: bool = False) -> list[AlignedJobs]:
    """Phases in order: each job joins the phase before it if they share axes.

    A contraction with weights shares a phase only with contractions that read its rows.
    """
    joined_before = with_prologue if prologues else chained
    phases: list[AlignedJobs] = []
    current: list[Job] = []
    for unit in _units(jobs):
        both = [*current, *unit]
        joins = current and (joined_before(both) or (not _alone(current[-1]) and not _alone(unit[-1])))
        joined = align(both) if joins else None
        if (
            joined is not None
            and enough_parallel(joined)
            and not _across(joined, places)
            and not _narrow(joined)
            and not _copied(joined, places)
        ):
            current.extend(unit)
            continue
        phases.extend(_closed(current, joined_before))
        current = unit
    return list(_shared_packed_first([*phases, *_closed(current, joined_before)]))


def _shared_packed_first(phases: Sequence[AlignedJobs]) -> Iterator[AlignedJobs]:
    """The phases; right sides that later ones read as well are packed in phases of their own, not by each task."""
    for at, t in enumerate(phases):
        later = {x.source for other in phases[at + 1 :] for j in other.jobs for x in j.reads}
        shared = [j for j in t.jobs if j.right_side and j.nest.name in later and len(t.jobs) > 1]
        alone = [align([j]) for j in shared]
        yield from (each for each in alone if each is not None)
        yield replace(t, jobs=tuple(j for j in t.jobs if j not in shared)) if shared else t


def _units(jobs: Sequence[Job]) -> list[list[Job]]:
    """Each job with the operand copies made for it in front."""
    units: list[list[Job]] = []
    waiting: list[Job] = []
    for job in jobs:
        waiting.append(job)
        if not job.operand:
            units.append(waiting)
            waiting = []
    return units


def chained(jobs: Sequence[Job]) -> bool:
    """Whether several jobs are contractions with weights, each of which reads the same rows of the one before."""
    return len(jobs) > 1 and all(map(goes_by_rows, jobs)) and all(j.nest.dtype == F32 for j in jobs[:-1])


def with_prologue(jobs: Sequence[Job]) -> bool:
    """Whether jobs are chained contractions, or one, perhaps behind jobs that make the rows which it reads."""
    at = next((k for k, j in enumerate(jobs) if j.tiled is not None), len(jobs))
    before, products = jobs[:at], jobs[at:]
    plain = not any(j.right_side or j.apart or _is_sequential(j) or windows(j) for j in before)
    floats = all(j.nest.dtype == F32 for j in jobs[:-1])
    return len(jobs) > 1 and len(products) > 0 and plain and floats and all(map(goes_by_rows, products))


def goes_by_rows(job: Job, *, images: bool = False) -> bool:
    """Whether a job is a contraction with weights, by plain float32 tiles, of a known number of rows.

    Of rows for each of any number of `images`, if that is asked for.
    """
    t = job.tiled
    if t is None or t.product != SINGLE or t.parts or t.lines is not None or t.batch or t.along_rows:
        return False
    open_axes = [a for a in t.rows if a.extent.constant is None]
    return bool(t.rows) and (not open_axes or (images and open_axes == [t.rows[0]] and len(t.rows) > 1))


def _alone(job: Job) -> bool:
    """Whether a job needs a phase of its own: product with weights, windows, scan, scatter, recurrence."""
    if job.tiled is not None:
        return job.apart or not job.tiled.batch
    return job.apart or _is_sequential(job) or windows(job)


def _is_sequential(job: Job) -> bool:
    """Whether a job computes elements one after the other."""
    return job.scan is not None or job.scatter is not None or job.recurrence is not None


def windows(job: Job) -> bool:
    """Whether a job reduces windows: an index depends on a free axis and on a reduction axis."""
    reduces = [n for n in walk(job.nest.value) if isinstance(n, Reduce)]
    ranges = {r for n in reduces for r in n.ranges}
    indices = [e for n in reduces for b in n.body for e in indices_of(b)]
    return any(axes_of(e) & ranges and axes_of(e) & set(job.nest.axes) for e in indices)


def _closed(jobs: Sequence[Job], joined_before: Callable[[Sequence[Job]], bool]) -> list[AlignedJobs]:
    """The jobs as one phase, or, if they share no axes, one phase each."""
    if not jobs:
        return []
    found = align(jobs) if len(jobs) == 1 or joined_before(jobs) or not _alone(jobs[-1]) else None
    if found is not None:
        return [found]
    singles = [align([j]) for j in jobs]
    return [s for s in singles if s is not None]
