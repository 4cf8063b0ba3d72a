"""Scans (prefix reductions): a thread for each line where there are many or they lie side by side, else a block.

In a block each thread has a segment of the line: it combines its elements, what is before each segment is found in
steps of doubled distance through shared memory, and then each thread goes through its segment again and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import loads, substitute_axes
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Buffer, Loop, Phase, Stmt, Store
from onnxfuse.ir.launch import Sync
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.lower.scans import Scan, scan_of
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.memory import Nest, Place, nest_of
from onnxfuse.schedule.gpu.thread_mapping import BLOCK, ThreadMapping, around, over_rows
from onnxfuse.schedule.gpu.writer import ThreadWriter, resolved
from onnxfuse.schedule.nests.nest import Level, order_of
from onnxfuse.target import Gpu

SEGMENT = 8  # elements of a line that a thread has, at least
THREADS = (32, 64, 128, 256)  # of a block at a line
SUM, PARTS = "scanned", "segments"


@dataclass(frozen=True, slots=True)
class Lines:
    """A scan; the value of `nest` is the element that is combined."""

    nest: Nest
    scan: Scan

    @property
    def reads(self) -> frozenset[str]:
        """Values that it reads."""
        return frozenset(x.source for x in loads(self.nest.value) if x.index)

    @property
    def idle(self) -> Scalar:
        """What is combined with nothing."""
        return MONOIDS[self.scan.combine].init(self.nest.dtype)[0]

    def merged(self, before: Scalar, more: Scalar) -> Scalar:
        """Two parts combined, in their order."""
        return MONOIDS[self.scan.combine].merge((before,), (more,))[0]


def lines_of(d: Definition, outputs: Sequence[str], places: Mapping[str, Place]) -> Lines | None:
    """The scan that a definition is, None for any other."""
    scan = scan_of(d)
    if scan is None:
        return None
    nest = nest_of(replace(d, value=scan.element), places, uncut=(scan.axis,))
    return Lines(replace(nest, output=d.name in outputs), scan)


def scan_phase(s: Lines, places: Mapping[str, Place], target: Gpu) -> Phase:
    """The phase of a scan."""
    offset, axis = places[s.nest.name].offset(s.nest.dims), s.scan.axis
    others = order_of([a for a in s.nest.axes if a != axis], offset)
    extents = tuple(a.extent for a in others)
    threads = _threads(s, offset, extents, target)
    d = ThreadMapping("thread", 1, BLOCK, 1) if threads == 1 else ThreadMapping("block", threads, 1, 1)
    row, launch = over_rows(d, product(extents), target.blocks)
    digits = dict(zip(others, unflatten(Index.of(row), extents), strict=True))
    made = _Body(s, places, digits, threads)
    body = made.alone() if threads == 1 else made.together()
    size = s.nest.dtype.bytes * 2 * threads if threads > 1 else 0
    buffers = [Buffer(SUM, s.nest.dtype, ONE, "register")]
    buffers += [Buffer(PARTS, s.nest.dtype, Index.of(2 * threads), "shared", 0)] if threads > 1 else []
    return Phase((), ONE, tuple(buffers), around(d, row, body), launch=replace(launch, shared=Index.of(size)))


def _threads(s: Lines, offset: Index, extents: tuple[Index, ...], target: Gpu) -> int:
    """How many threads are at a line."""
    length, rows = s.scan.axis.extent.constant, product(extents).constant
    beside = coefficient(offset, s.scan.axis) != ONE
    many = rows is not None and 2 * rows >= target.sms * BLOCK
    if many or (length is not None and length < 2 * SEGMENT) or (beside and rows is not None and rows >= target.sms):
        return 1
    return next((n for n in THREADS if length is not None and n * SEGMENT >= length), THREADS[-1])


class _Body:
    """The statements about a line, whose place is given by `digits`."""

    def __init__(self, s: Lines, places: Mapping[str, Place], digits: Mapping[Axis, Index], threads: int) -> None:
        self.s, self.places, self.digits = s, places, digits
        self.length = s.scan.axis.extent
        self.each = floor_div(self.length + (threads - 1), Index.of(threads))
        self.threads = threads
        self.writer = ThreadWriter([], at=[[]])
        self.total = Load(SUM, (ZERO,), s.nest.dtype)

    def alone(self) -> tuple[Stmt, ...]:
        """A thread goes through the line."""
        self.writer.at[0].append(Store(SUM, ZERO, self.s.idle))
        i = Axis("i", self.length)
        self.writer.loop([Level(i, "serial")], (), lambda: self.step(Index.of(i), store=True))
        return tuple(self.writer.at[0])

    def together(self) -> tuple[Stmt, ...]:
        """The threads of a block go through their segments, find what is before them, and go through them again."""
        self.begin(lambda _: self.s.idle)
        self.segment(store=False)
        t = Axis("t", Index.of(self.threads))
        self.put(t, Store(PARTS, Index.of(t), self.total))
        half, distance = 0, 1
        while distance < self.threads:
            here = Index.of(t) + half * self.threads
            before = self.part(Index.of(t) - distance, half)
            more = self.s.merged(before, Load(PARTS, (here,), self.s.nest.dtype))
            self.put(t, Store(PARTS, Index.of(t) + (1 - half) * self.threads, more))
            half, distance = 1 - half, 2 * distance
        self.begin(lambda t: self.part(Index.of(t) - 1, half))
        self.segment(store=True)
        self.writer.at[0].append(Sync("block"))
        return tuple(self.writer.at[0])

    def part(self, at: Index, half: int) -> Load:
        """What the segments up to one of them combine to; nothing before the first."""
        guard = Guard(at, Index.of(self.threads))
        return Load(PARTS, (at + half * self.threads,), self.s.nest.dtype, (guard,), self.s.idle)

    def put(self, t: Axis, s: Store) -> None:
        """A store of every thread, and a barrier."""
        self.writer.at[0] += [Loop(t, ZERO, t.extent, "thread", (s,)), Sync("block")]

    def begin(self, value: Callable[[Axis], Scalar]) -> None:
        """What each thread begins with."""
        t = Axis("t", Index.of(self.threads))
        self.writer.at[0].append(Loop(t, ZERO, t.extent, "thread", (Store(SUM, ZERO, value(t)),)))

    def segment(self, *, store: bool) -> None:
        """Each thread goes through its segment."""
        t, i = Axis("t", Index.of(self.threads)), Axis("i", self.each)
        at = Index.of(t) * self.each + i
        guards = () if self.each * self.threads == self.length else (Guard(at, self.length),)
        levels = [Level(t, "thread"), Level(i, "serial")]
        self.writer.loop(levels, guards, lambda: self.step(at, store=store))

    def step(self, at: Index, *, store: bool) -> None:
        """One element, counted from where the scan begins: combined with those before it, and stored."""
        spot = self.length - 1 - at if self.s.scan.reverse else at
        digits = {**self.digits, self.s.scan.axis: spot}
        element = resolved(substitute_axes(self.s.nest.value, digits), lambda _: None, self.places)
        place = self.places[self.s.nest.name]
        offset = place.offset(tuple(substitute(e, digits) for e in self.s.nest.dims))
        if store and self.s.scan.own:
            self.writer.store(Store(place.buffer, offset, self.total))
        self.writer.store(Store(SUM, ZERO, self.s.merged(self.total, self.writer.value(element))))
        if store and not self.s.scan.own:
            self.writer.store(Store(place.buffer, offset, self.total))
