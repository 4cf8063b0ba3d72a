"""Which values a phase makes: those whose rows can be gone through by the same threads, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.ir.compose import walk
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Reduce
from onnxfuse.schedule.nests.align import Together, together
from onnxfuse.schedule.nests.jobs import Job

FEW = 8  # rows that are too few for a GPU, where they are long
LONG = 1 << 16  # elements of such a row


def partition(jobs: Sequence[Job]) -> list[Together]:
    """Phases in order: values joined to the phase before them as long as their rows are the same."""
    phases: list[Together] = []
    current: list[Job] = []
    for job in jobs:
        if current and _joined([*current, job]) is not None:
            current.append(job)
            continue
        phases += _closed(current)
        current = [job]
    return [*phases, *_closed(current)]


def _closed(jobs: Sequence[Job]) -> list[Together]:
    found = _joined(jobs) if jobs else None
    assert found is not None or not jobs, "schedule: a value is in no phase"
    return [found] if found is not None else []


def _joined(jobs: Sequence[Job]) -> Together | None:
    """The jobs under common axes; those of little work as one row, where they have none in common."""
    found = together(jobs)
    size = max(_size(j) for j in jobs)
    if found is None:
        looked_up = {name for j in jobs for name in j.looks_up}
        alone = size <= LONG and not looked_up & {j.nest.name for j in jobs}
        return Together(tuple(jobs), (), ()) if alone and any(map(reduces, jobs)) else None
    rows = product([a.extent for a in found.shared]).constant
    if len(jobs) > 1 and rows is not None and rows < FEW and size // max(rows, 1) > LONG:
        return None
    return found


def reduces(job: Job) -> bool:
    """Whether a job combines elements."""
    return any(isinstance(n, Reduce) for n in walk(job.nest.value))


def _size(job: Job) -> int:
    """Elements that a job goes through, as far as that is known."""
    count = product([a.extent for a in job.nest.axes])
    ranges = [product([r.extent for r in n.ranges]) for n in walk(job.nest.value) if isinstance(n, Reduce)]
    return max([(count * r).constant or LONG + 1 for r in ranges] or [count.constant or LONG + 1])
