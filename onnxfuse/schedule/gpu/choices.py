"""How a phase is mapped to threads: mappings in the order in which they are tried; the first that fits is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from onnxfuse.ir.compose import elements_read, loads, walk
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.fragments import WARP
from onnxfuse.ir.index import ONE, Index, axes_of, divides
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.kernel import Loop, Phase, Stmt, Store, statements
from onnxfuse.ir.launch import ALIGNED, MOST_THREADS
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Reduce
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.thread_mapping import BLOCK, SEVERAL, ThreadMapping
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.target import Gpu

WIDTHS = (8, 4, 2, 1)  # elements of one access, the widest first
WIDE = 4
SHORT = 4  # elements of a row that a thread goes through alone, however they lie
POWERS = (4, 8, 16, 32, 64, 128, 256, 512, MOST_THREADS)  # numbers of threads at a row
FEW = 2  # accesses of each of them to a row, twice as many where they are not wide
MOST_ONCE = 512  # threads at a row that have one access each
AT_ONCE = 256  # threads of a multiprocessor up to which rows are few; four times as many if a row has several warps,
# which share it evenly then, as their number need be no power of two
MANY = 16  # accesses to rows that are too long for that, and still are kept in registers
MANY_ELEMENTS = 32  # of a row, that each of the most threads has in registers
NEAR, FAR = 16, 32  # elements of a long row that each thread has in registers at least, and accesses to all of it
LONG_BLOCK = 512  # threads at a long row that is not kept, or of which two are side by side
CLOSE = 4  # elements from one row to the next, of which lines of memory have several rows
LONG = 8  # accesses of each of the most threads from which on they are at a row that is not kept


def divisions(t: AlignedJobs, places: Mapping[str, Place], least: int, target: Gpu) -> Iterator[ThreadMapping]:
    """Divisions of the rows of a phase, whose elements have `least` bytes or more; the last one fits everything.

    Rows that lie side by side have a thread each where they fill the GPU so. Else threads of a row read with strides:
    they read more of each line than they need, which the cache holds for the rows beside it.
    """
    totals = [product([a.extent for a in j.nest.axes if a not in t.shared]) for j in t.jobs]
    reduces = [n for j in t.jobs for n in walk(j.nest.value) if isinstance(n, Reduce)]
    totals += [product([r.extent for r in n.ranges]) for n in reduces]
    alone = ThreadMapping("thread", 1, BLOCK, 1)
    longest = max((n.constant or 0 for n in totals), default=0)
    unknown = any(n.constant is None for n in totals)
    ordered = any(MONOIDS[n.combine].numpy is None for n in reduces)
    rows = product([a.extent for a in t.shared]).constant
    filling = rows is None or unknown or 2 * rows >= target.sms * BLOCK
    if ordered or (not unknown and longest <= SHORT) or (filling and _side_by_side(t, places)):
        yield alone
        yield ThreadMapping("thread", 1, BLOCK, 1, kept=False)
        return
    whole = [w for w in WIDTHS if w * least <= ALIGNED]
    widths = [w for w in whole if all(divides(Index.of(w), n) is not None for n in totals if n != ONE)]
    if not unknown:
        for width in widths:
            for threads in _teams(longest, width, rows, target):
                many = rows is None or rows > 2 * target.sms
                if many and threads == MOST_THREADS and width > WIDE and longest <= FEW * MOST_THREADS * width:
                    yield from _beside_registers(longest, width, width * least, target)
                yield _division(threads, width)
        for width in (w for w in widths if w >= WIDE):
            yield from _beside_registers(longest, width, width * least, target)
    for width in widths:
        block = LONG_BLOCK if longest > LONG_BLOCK * width else BLOCK
        block = MOST_THREADS if longest >= LONG * MOST_THREADS * width else block
        yield ThreadMapping("block", block, 1, width, kept=False)


def _division(threads: int, width: int) -> ThreadMapping:
    if threads <= WARP:
        return ThreadMapping("warp", threads, SEVERAL // threads, width)
    return ThreadMapping("block", threads, 1, width)


def _teams(longest: int, width: int, rows: int | None, target: Gpu) -> Iterator[int]:
    """Numbers of threads at a row: the smallest power of two that leaves each few accesses, and larger ones.

    As measured (benchmarks/gpu): two accesses of 16 bytes each are within 6 % of the best for all rows up to 32,768,
    where there are many. Few rows wait for one thing after another, so that each thread has one.
    """
    pieces = -(-longest // width)
    few = FEW if width >= WIDE else 2 * FEW
    once = next((n for n in POWERS if n >= pieces), WARP) if pieces <= WARP else -(-pieces // WARP) * WARP
    most = (AT_ONCE if once <= WARP else 4 * AT_ONCE) * target.sms
    if width >= WIDE and rows is not None and once <= MOST_ONCE and rows * once <= most:
        yield once
    for threads in POWERS:
        each = -(-pieces // threads)
        if each <= few or (threads == MOST_THREADS and each <= MANY and each * width <= MANY_ELEMENTS):
            yield threads


def _beside_registers(longest: int, width: int, size: int, target: Gpu) -> Iterator[ThreadMapping]:
    """Divisions of a row that is partly in shared memory, two blocks side by side first; accesses have `size` bytes.

    What is read a second time instead comes from memory again: rows of all blocks, and what they store, are more than
    half of L2 (benchmarks/gpu). A row of short elements for which the most threads have few accesses is too little for
    a multiprocessor to have under way.
    """
    for threads, blocks in ((LONG_BLOCK, 2), (MOST_THREADS, 1)):
        turns = -(-longest // (threads * width))
        for near in range(NEAR // width, MANY_ELEMENTS // width + 1):
            if near < turns <= FAR and blocks * (turns - near) * threads * size <= target.shared_bytes:
                yield ThreadMapping("block", threads, 1, width, near=near)


def _side_by_side(t: AlignedJobs, places: Mapping[str, Place]) -> bool:
    """Whether it is rows that lie side by side in memory, and not the elements of each.

    Those of windows, which overlap or follow each other closely, do, though elements of a window do too.
    """
    inner = within = 0
    for job in t.jobs:
        mine = set(t.shared)
        for offset in (e for e in _offsets(job, places) if axes_of(e) - mine):
            runs = {a: coefficient(offset, a) for a in axes_of(offset) if (a.extent.constant or 2) > 1}
            steps = {a: step.constant or 0 for a, step in runs.items() if step is not None}
            beside = any(a in mine and 1 <= step <= CLOSE for a, step in steps.items())
            inner += beside
            within += not beside and any(a not in mine and step == 1 for a, step in steps.items())
    return inner > within


def _offsets(job: Job, places: Mapping[str, Place]) -> Iterator[Index]:
    """Offsets that a job's elements are read from and stored to."""
    for load in loads(job.nest.value):
        if load.source in places:
            yield places[load.source].offset(load.index)
    if job.nest.name in places and set(job.nest.axes):
        yield places[job.nest.name].offset(job.nest.dims)


def aligned(phase: Phase, types: Mapping[str, DType]) -> bool:
    """Whether what a phase accesses at once is aligned and no wider than an access may be, and there is such at all."""
    private = {b.name for b in phase.locals if b.space in ("register", "fragment")}
    types = {**types, **{b.name: b.dtype for b in phase.locals}}
    found = 0
    for s in statements(phase.body):
        if not isinstance(s, Loop) or s.kind != "vector":
            continue
        width = s.axis.extent.constant or 1
        for name, offset in _accesses(s.body):
            if name in private or coefficient(offset, s.axis) != ONE:
                continue
            if width * types[name].bytes > ALIGNED or any(c % width for _, c in (offset - s.axis).terms):
                return False
            found += 1
    return found > 0


def _accesses(body: Sequence[Stmt]) -> Iterator[tuple[str, Index]]:
    for s in statements(tuple(body)):
        if isinstance(s, Store):
            yield s.buffer, s.offset
        for f in fields(s):
            yield from ((x.source, x.index[0]) for x in elements_read(getattr(s, f.name)) if f.name != "body")
