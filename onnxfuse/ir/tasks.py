"""How a phase of a kernel is divided among tasks, as the header of its loops does it at launch."""

from __future__ import annotations

TASK = 10_000_000  # picoseconds of work for which a task is started
TASKS = 16  # of a core, at most
PLENTY = 4  # tasks of a core with which the second axis is not divided any more, since its parts may repeat work
SLOTS = 256  # of the run's memory for local buffers, at most
ALIGNMENT = 64  # bytes: of every buffer of a run and of a task


def parts_of(cores: int, picoseconds: int, first: int, second: int) -> tuple[int, int]:
    """How the two splits of a phase are divided among tasks (`parts_of` in loops.h)."""
    if first <= 0 or second <= 0:
        return 0, 0
    wanted, most = picoseconds // TASK, TASKS * cores
    wanted = 1 if cores == 1 or wanted < 2 else min(-(-wanted // cores) * cores, most)
    outer = min(wanted, first)
    if outer > 1 and first % outer and first <= most:
        outer = first
    return outer, 1 if outer >= PLENTY * cores else min(-(-wanted // outer), second)


def few_parts_of(cores: int, picoseconds: int, first: int) -> tuple[int, int]:
    """The same where every task reads all weights (`few_parts_of` in loops.h)."""
    return (1 if picoseconds < 2 * TASK else min(cores, first), 1) if first > 0 else (0, 0)
