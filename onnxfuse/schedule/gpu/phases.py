"""Groups values into phases: those whose loops over rows can be fused.

The operands of a concatenation are computed where they are stored, each element once, and need no phase of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from onnxfuse.cost.gpu import TURN_US
from onnxfuse.ir.compose import free_axes, inline, loads, size, sources, walk
from onnxfuse.ir.index import Axis, Index, axes_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.gpu.thread_mapping import BLOCK
from onnxfuse.schedule.gpu.windows import window_of
from onnxfuse.schedule.nests.align import AlignedJobs, align
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.target import Gpu

FEW = 8  # rows that are too few for any GPU, where they are long
LONG = 1 << 16  # elements of such a row
LARGEST = 1000  # nodes of an expression that pieces may be put into


def pieces_joined(definitions: Sequence[Definition], outputs: Collection[str]) -> tuple[Definition, ...]:
    """The definitions with elementwise values of inputs put in for the one load that reads them, behind a guard.

    Such are the pieces of a concatenation that cost too much to be made more than once. They are made once here too, as
    the load reads each element at most once.
    """
    made = {d.name for d in definitions}
    uses = Counter(name for d in definitions for name in sources(d.value))
    read = Counter(load.source for d in definitions for load in loads(d.value))
    pieces: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}
    kept: list[Definition] = []
    for d in definitions:
        mine = {n.source for n in loads(d.value) if n.source in pieces and n.guards and _each_once(n.index)}
        value = inline(d.value, {name: pieces.pop(name) for name in sorted(mine)}) if _elementwise(d) else d.value
        if mine and size(value) <= LARGEST:
            kept = [each for each in kept if each.name not in mine]
            d = replace(d, value=value)
        if (
            d.name not in outputs
            and uses[d.name] == read[d.name] == 1
            and _elementwise(d)
            and not sources(value) & made
        ):
            pieces[d.name] = (d.axes, value)
        kept.append(d)
    return tuple(kept)


def _elementwise(d: Definition) -> bool:
    return not any(isinstance(n, Reduce) for n in walk(d.value))


def _each_once(index: Sequence[Index]) -> bool:
    """Whether no two elements of the reader read the same: each extent has an axis of its own."""
    found = [(axes_of(e), e.terms) for e in index]
    axes = [axis for mine, _ in found for axis in mine]
    plain = all(len(mine) <= 1 and all(c == 1 for m, c in terms if m) for mine, terms in found)
    return plain and len(set(axes)) == len(axes)


def partition(jobs: Sequence[Job], target: Gpu, apart: Collection[str] = ()) -> list[AlignedJobs]:
    """Phases in order: values joined to the phase before them as long as their rows are the same.

    Those `apart` are joined to each other alone. Rows that are too few for the GPU stay as they are where they are
    long, and where threads would reduce alone what all of a block could reduce together in a phase of its own.
    """
    phases: list[AlignedJobs] = []
    current: list[Job] = []
    for job in jobs:
        beside = not current or (current[-1].nest.name in apart) == (job.nest.name in apart)
        if current and beside and _joined([*current, job], target) is not None:
            current.append(job)
            continue
        phases += _closed(current, target)
        current = [job]
    return [*phases, *_closed(current, target)]


def _closed(jobs: Sequence[Job], target: Gpu) -> list[AlignedJobs]:
    found = _joined(jobs, target) if jobs else None
    assert found is not None or not jobs, "schedule: a value is in no phase"
    return [found] if found is not None else []


def _joined(jobs: Sequence[Job], target: Gpu) -> AlignedJobs | None:
    """The jobs under common axes; those of little work as one row, where they have none in common."""
    found = align(jobs)
    if len(jobs) > 1 and any(map(slides, jobs)) and not _alike(jobs, found):
        return None
    size = max(_size(j) for j in jobs)
    if found is None:
        looked_up = {name for j in jobs for name in j.looks_up}
        alone = size <= LONG and not looked_up & {j.nest.name for j in jobs}
        one = AlignedJobs(tuple(jobs), (), ())
        return one if alone and any(map(reduces, jobs)) and not _waits(one, target) else None
    rows = product([a.extent for a in found.shared]).constant
    few = max(FEW, target.sms // 2)
    if len(jobs) > 1 and rows is not None and rows < few and size // max(rows, 1) > LONG:
        return None
    return None if len(jobs) > 1 and rows is not None and rows < few and _waits(found, target) else found


def _alike(jobs: Sequence[Job], found: AlignedJobs | None) -> bool:
    """Whether all jobs are over the same axes, and one of them alone reduces."""
    return (
        found is not None
        and all(set(j.nest.axes) == set(found.shared) for j in found.jobs)
        and sum(map(reduces, jobs)) == 1
    )


def slides(job: Job) -> bool:
    """Whether a job combines the elements of windows that overlap, which a thread with several of them reads once."""
    w = window_of([job.nest.value], job.nest.axes)
    return w is not None and w.down != job.nest.axes[-1] and w.step < w.apart * (w.along.extent.constant or 0)


def _waits(t: AlignedJobs, target: Gpu) -> bool:
    """Whether a phase of its own would cost less than the turns of loops that a thread goes through alone."""
    turns = sum(n for j in t.jobs for n in _turns(j, t))
    return turns * TURN_US > target.boundary_us + target.latency_us


def _turns(job: Job, t: AlignedJobs) -> Iterator[int]:
    """Turns of a thread for each reduction that is not one of a whole row."""
    inner = [a for a in job.nest.axes if a not in t.shared]
    elements = product([a.extent for a in inner]).constant
    for x in {replace(n, slot=0) for n in walk(job.nest.value) if isinstance(n, Reduce)}:
        terms = product([r.extent for r in x.ranges]).constant
        if elements is not None and terms is not None and free_axes(x) & {*inner}:
            yield -(-elements // BLOCK) * terms


def reduces(job: Job) -> bool:
    """Whether a job combines elements."""
    return any(isinstance(n, Reduce) for n in walk(job.nest.value))


def _size(job: Job) -> int:
    """Elements that a job goes through, as far as that is known."""
    count = product([a.extent for a in job.nest.axes])
    ranges = [product([r.extent for r in n.ranges]) for n in walk(job.nest.value) if isinstance(n, Reduce)]
    return max([(count * r).constant or LONG + 1 for r in ranges] or [count.constant or LONG + 1])
