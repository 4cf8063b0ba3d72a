"""The partition of a phase into tasks; the same computation as in `tiles/loops.h`, which does it at launch."""

from __future__ import annotations

TASK = 10_000_000  # picoseconds of work per task
SHARED = 8_000_000  # picoseconds of work from which a phase has two tasks
TASKS = 16  # maximum tasks per core
PLENTY = 4  # tasks per core from which on the second axis is not divided, since its parts may repeat work
SLOTS = 256  # maximum slots for local buffers of concurrent tasks
ALIGNMENT = 64  # bytes, of every scratch and local buffer


def parts_of(cores: int, picoseconds: int, first: int, second: int) -> tuple[int, int]:
    """The number of ranges that the two splits of a phase are divided into (`parts_of` in loops.h)."""
    if first <= 0 or second <= 0:
        return 0, 0
    wanted, most = picoseconds // TASK, TASKS * cores
    wanted = (1 if picoseconds < SHARED else 2) if wanted < 2 else min(-(-wanted // cores) * cores, most)
    wanted = 1 if cores == 1 else wanted
    outer = min(wanted, first)
    if outer > 1 and first % outer and first <= most:
        outer = first
    return outer, 1 if outer >= PLENTY * cores else min(-(-wanted // outer), second)


def few_parts_of(cores: int, picoseconds: int, first: int, second: int = 1) -> tuple[int, int]:
    """The same where every task reads all weights, or its share of them (`few_parts_of` in loops.h)."""
    if first <= 0 or second <= 0:
        return 0, 0
    wanted = cores if picoseconds >= 2 * TASK else 2 if picoseconds >= SHARED and cores > 1 else 1
    outer = min(wanted, first)
    return outer, min(wanted // outer, second)
