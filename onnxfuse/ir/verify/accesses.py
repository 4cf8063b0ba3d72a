"""Verification of a kernel's memory accesses, by sampled iterations.

Every finding has a witness, an iteration that is out of bounds or races with another task: there are no false
positives, but there may be false negatives. Samples are the corners of all loops, where affine indices are extreme, and
some inner iterations.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import mul
from typing import Any, assert_never

import numpy as np

from onnxfuse.ir.compose import walk
from onnxfuse.ir.dtype import BF16, F32, DType
from onnxfuse.ir.fragments import LINE
from onnxfuse.ir.index import ONE, ZERO, Axis, Entry, Loaded, atoms
from onnxfuse.ir.indexing import WIDEST, coefficient
from onnxfuse.ir.interpret.elements import Array, KernelFault, Where
from onnxfuse.ir.interpret.values import both
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Call,
    Computed,
    HorizontalReduce,
    Kernel,
    Let,
    Loop,
    Pack,
    Phase,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
    When,
    statements,
)
from onnxfuse.ir.launch import Asynchronous, Commit, CopyAsync, CopyBox, Mma, Sync, Threaded, Wait, WarpgroupMma
from onnxfuse.ir.products import PAIR, QUAD
from onnxfuse.ir.scalar import FromIndex, Load, Scalar
from onnxfuse.ir.tile import EVEN_ENTRIES, ZERO_ROW, Channels, Packed, Pointers, Quantized, Tile
from onnxfuse.ir.verify.samples import (
    ALONE,
    EXTENTS,
    GROUP,
    GROUPS,
    LARGEST_TENSOR,
    SAMPLES,
    SampledIterations,
    pattern_of,
    picked,
)

ZERO_BYTES = ZERO_ROW * F32.bytes
UNKNOWN = -1  # a task that runs the whole phase


def access_faults(kernel: Kernel) -> list[str]:
    """Accesses of sampled iterations that are out of bounds, or race with those of another task."""
    return _Check(kernel).findings()


Accesses = dict[str, list[tuple[Array, Where]]]


class _Check:
    """Walks the statements of one kernel and collects findings."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.found: list[str] = []
        self.sizes: dict[str, Any] = {}
        self.dtypes: dict[str, DType] = {}
        self.shared = {p.name for p in kernel.outputs} | {b.name for b in kernel.scratch}
        self.stored: Accesses = {}  # in the current phase, to buffers shared by tasks
        self.read: Accesses = {}
        self.across: dict[str, HorizontalReduce] = {}  # by the buffer of vector accumulators
        self.where = ""
        self.depth = 0
        self.vector: Axis | None = None
        self.task = np.zeros(SAMPLES, np.int64)

    def findings(self) -> list[str]:
        """All findings."""
        p = SampledIterations(self.symbols(), self.reads)
        possible = np.ones(SAMPLES, bool)
        for e in self.kernel.requires:
            possible &= p.index(e) >= 0
        for x in (*self.kernel.inputs, *self.kernel.outputs):
            extents = [np.asarray(p.index(e)) for e in x.storage]
            for extent in extents:
                possible &= extent >= 0
            self.sizes[x.name], self.dtypes[x.name] = reduce(mul, extents, np.ones(1, np.int64)), x.dtype
            possible &= self.sizes[x.name] <= LARGEST_TENSOR
        for b in self.kernel.scratch:
            self.sizes[b.name], self.dtypes[b.name] = p.index(b.size), b.dtype
        for number, phase in enumerate(self.kernel.phases):
            self.where = f"phase {number}"
            self.phase(phase, p.within(possible))
        return self.found

    def symbols(self) -> Mapping[str, Any]:
        """Extents of each group of samples."""
        values: dict[str, Any] = {}
        here = SampledIterations(values, self.reads)
        free = 0
        for b in self.kernel.binds:
            if isinstance(b, Computed):
                values[b.symbol.name] = here.index(b.value)
            else:
                picked = [max(extents[free % len(extents)], b.symbol.least) for extents in EXTENTS]
                values[b.symbol.name] = np.repeat(np.array(picked, np.int64), GROUP)
                free += 1
        return values

    def phase(self, phase: Phase, p: SampledIterations) -> None:
        """Check bounds of all accesses of one task per sample, and races between tasks."""
        self.stored, self.read, self.depth, self.task = {}, {}, 0, np.zeros(SAMPLES, np.int64)
        for s in phase.splits:
            extent = np.broadcast_to(p.index(s.extent), (SAMPLES,))
            pattern = pattern_of(self.depth).copy()
            pattern[2 * GROUP : 3 * GROUP] = np.minimum(pattern[2 * GROUP : 3 * GROUP], 1)
            step = picked(-(-extent // s.step), pattern)
            p.axes[s.first.name] = np.where(ALONE, step * s.step, 0)
            p.axes[s.last.name] = np.where(ALONE, np.minimum((step + 1) * s.step, extent), extent)
            p.alive = both(p.alive, extent > 0)
            self.task = np.where(ALONE, self.task << 32 | step, UNKNOWN)
            self.depth += 1
        for b in phase.locals:
            self.sizes[b.name], self.dtypes[b.name] = p.index(b.size), b.dtype
        self.across = {s.source: s for s in statements(phase.body) if isinstance(s, HorizontalReduce)}
        self.body(phase.body, p)
        if phase.launch is None:
            self.meetings()

    def meetings(self) -> None:
        """Find races: two tasks that store one element, or a task that reads what another one stores.

        Threads of a launch are checked in `launches.py`.
        """
        for name, stored in self.stored.items():
            at, task = self.places(stored)
            order = np.argsort(at, kind="stable")
            at, task = at[order], task[order]
            if ((at[1:] == at[:-1]) & (task[1:] != task[:-1])).any():
                self.found.append(f"{self.where}: two tasks store into one element of {name}")
            there, reader = self.places(self.read.get(name, []))
            if not len(at) or not len(there):
                continue
            first = np.minimum(np.searchsorted(at, there), len(at) - 1)
            if ((at[first] == there) & (task[first] != reader)).any():
                self.found.append(f"{self.where}: a task reads an element of {name} that another one stores")

    def places(self, accesses: list[tuple[Array, Where]]) -> tuple[Array, Array]:
        """The elements that samples with known tasks access, distinct for each group of samples, and the tasks."""
        group = np.repeat(np.arange(GROUPS), GROUP) if self.kernel.binds else np.zeros(SAMPLES, np.int64)
        at, task = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for offset, where in accesses:
            known = both(self.task != UNKNOWN, where)
            assert known is not None
            at.append((np.broadcast_to(offset, known.shape) * GROUPS + group)[known])
            task.append(self.task[known])
        return np.concatenate(at), np.concatenate(task)

    # Accesses ---------------------------------------------------------------------------------------------------------

    def reads(self, name: str, offset: Any, count: Any, where: Where) -> None:
        """Record and check reads of `count` elements from an offset on."""
        self.inside(name, offset, count, where, "reads")
        if name in self.shared:
            self.read.setdefault(name, []).append((np.asarray(offset), where))

    def stores(self, name: str, offset: Any, count: Any, where: Where) -> None:
        """Record and check stores of `count` elements from an offset on."""
        self.inside(name, offset, count, where, "stores")
        if name in self.shared:
            self.stored.setdefault(name, []).append((np.asarray(offset), where))

    def inside(self, name: str, offset: Any, count: Any, where: Where, doing: str) -> None:
        """Find accesses out of bounds."""
        size = self.sizes[name]
        outside = (np.asarray(count) > 0) & ((offset < 0) | (offset + count > size))
        if where is not None:
            outside = outside & where
        if outside.any():
            low, n, all_ = (np.broadcast_to(x, outside.shape)[outside][0] for x in (offset, count, size))
            last = f" to {low + n - 1}" if n > 1 else ""
            self.found.append(f"{self.where}: {doing} {name}[{low}{last}], which has {all_} elements")

    def multiple(self, name: str, offset: Any, of: int, where: Where) -> None:
        """Find offsets that are not aligned to a multiple of `of`."""
        wrong = np.asarray(offset % of != 0)
        if (wrong if where is None else wrong & where).any():
            self.found.append(f"{self.where}: an offset in {name} is not a multiple of {of}")

    def value(self, x: Scalar, p: SampledIterations) -> None:
        """Check all reads of a value."""
        for n in walk(x):
            if isinstance(n, Load) and n.index:
                where = p.holds(n.guards)
                self.reads(n.source, p.index(n.index[0], where), 1, where)
            elif isinstance(n, FromIndex) and any(isinstance(a, (Entry, Loaded)) for a in atoms(n.index)):
                p.index(n.index, p.holds(n.guards))

    # Statements -------------------------------------------------------------------------------------------------------

    def body(self, body: tuple[Stmt, ...], p: SampledIterations) -> None:
        """Check statements, continuing after findings."""
        for s in body:
            try:
                self.statement(s, p)
            except KernelFault as fault:
                self.found.append(f"{self.where}: {fault}")

    def statement(self, s: Stmt, p: SampledIterations) -> None:
        """One statement."""
        match s:
            case Bind():
                where = p.holds(s.guards)
                value = p.index(s.value, where)
                value = value if s.most is None else np.minimum(value, p.index(s.most))
                p.axes[s.axis.name] = np.where(where, value, 0) if s.guards and where is not None else value
            case Loop():
                self.loop(s, p)
            case When():
                where = p.holds(s.guards)
                if where is None or where.any():
                    self.body(s.body, p.within(where))
            case ReduceLoop():
                self.body(s.body, p)
                if s.part is not None:
                    name, lanes = s.part[0], self.across[s.part[0]].lanes
                    at = p.index(s.part[1])
                    self.stores(name, at, lanes, p.alive)
                    self.multiple(name, at, lanes, p.alive)
            case Let() | Accumulate():
                for v in (s.value,) if isinstance(s, Let) else s.values:
                    self.value(v, p)
            case Store():
                self.store(s, p)
            case RowPointer() | Tile() | Pack() | HorizontalReduce() | Prefetch():
                self.call(s, p)
            case Sync() | CopyAsync() | Commit() | Wait() | Mma() | Asynchronous():
                self.threaded(s, p)
            case _:
                assert_never(s)

    def threaded(self, s: Threaded, p: SampledIterations) -> None:
        """A statement of cooperating threads: copies, and the registers of fragments."""
        if isinstance(s, CopyAsync):
            self.reads(s.source, p.index(s.at), s.count, p.alive)
            self.stores(s.target, p.index(s.to), s.count, p.alive)
        if isinstance(s, CopyBox):
            rows = p.index(s.all_rows)
            self.reads(s.source, 0, np.where(rows > 0, (rows - 1) * s.pitch + s.all_columns, 0), p.alive)
            self.stores(s.target, p.index(s.to), s.rows * LINE, p.alive)
        if isinstance(s, WarpgroupMma):
            for name, at, pitch, (rows, columns) in (
                (s.left, s.left_at, s.left_pitch, s.extent(right=False)),
                (s.right, s.right_at, s.right_pitch, s.extent(right=True)),
            ):
                self.reads(name, p.index(at), (columns // LINE - 1) * pitch + rows * LINE, p.alive)
            self.stores(s.sums, p.index(s.sums_at), s.core.sums.registers, p.alive)
        if not isinstance(s, Mma):
            return
        for name, at, f in (
            (s.left, s.left_at, s.core.left),
            (s.right, s.right_at, s.core.right),
            (s.sums, s.sums_at, s.core.sums),
        ):
            self.reads(name, p.index(at), f.registers, p.alive)
        self.stores(s.sums, p.index(s.sums_at), s.core.sums.registers, p.alive)

    def loop(self, s: Loop, p: SampledIterations) -> None:
        """One iteration of a loop in each sample."""
        begin = p.index(s.begin)
        count = p.index(s.end) - begin
        inner = p.within(np.broadcast_to(np.asarray(count) > 0, (SAMPLES,)))
        assert inner.alive is not None
        if not inner.alive.any():
            return
        if s.aligned:
            self.multiple(f"the loop over {s.axis!r}", begin, WIDEST, inner.alive)
        inner.axes[s.axis.name] = begin + picked(count, pattern_of(self.depth))
        outer = self.depth, self.vector
        self.depth, self.vector = self.depth + 1, s.axis if s.kind == "vector" else self.vector
        self.body(s.body, inner)
        self.depth, self.vector = outer

    def store(self, s: Store, p: SampledIterations) -> None:
        """A store, and the requirements of vector stores."""
        for v in s.values:
            self.value(v, p)
        self.stores(s.buffer, p.index(s.offset), len(s.values), p.alive)
        if s.behind and (self.vector is None or coefficient(s.offset, self.vector) != len(s.values)):
            self.found.append(f"{self.where}: vectors interleaved into {s.buffer} are not contiguous")
        if s.stream and (self.vector is None or coefficient(s.offset, self.vector) != ONE):
            self.found.append(f"{self.where}: a value streamed into {s.buffer} is not a vector")

    def call(self, s: Call, p: SampledIterations) -> None:
        """A call; prefetches may be out of bounds."""
        match s:
            case RowPointer():
                self.row_pointer(s, p)
            case Tile():
                self.tile(s, p)
            case Pack():
                self.pack(s, p)
            case HorizontalReduce():
                rows = p.index(s.rows)
                if (np.broadcast_to(rows, (SAMPLES,)) > s.lanes)[p.alive if p.alive is not None else ...].any():
                    self.found.append(f"{self.where}: {s.target} has {s.lanes} lanes, for more rows")
                self.reads(s.source, 0, p.index(s.read), p.alive)
                self.stores(s.target, 0, s.lanes, p.alive)
            case Prefetch():
                pass
            case _:
                assert_never(s)

    def piece(self, load: Load, length: Any, p: SampledIterations, padding: str) -> None:
        """A contiguous segment of a row, or its padding."""
        where = p.holds(load.guards)
        self.reads(load.source, p.index(load.index[0], where), length, where)
        if load.guards and padding:
            self.reads(padding, 0, length, p.alive)
        elif load.guards and (np.asarray(length) * self.dtypes[load.source].bytes > ZERO_BYTES).any():
            self.found.append(f"{self.where}: padding of {load.source} is longer than the zeros that there are")

    def row_pointer(self, s: RowPointer, p: SampledIterations) -> None:
        """Entries of a pointer table, and the segments that they address."""
        begin = p.index(s.begin)
        rows = np.broadcast_to(p.index(s.end) - begin, (SAMPLES,))
        counts = [p.index(a.extent) for a in s.segments]
        segments = reduce(mul, counts, 1)
        entries = (segments - 1) * (EVEN_ENTRIES if s.even else s.pitch) + (EVEN_ENTRIES if s.even else rows)
        here = p.within(rows > 0)
        self.stores(s.table, p.index(s.at), entries, here.alive)
        here.axes[s.row.name] = begin + picked(rows, pattern_of(self.depth))
        for number, (a, n) in enumerate(zip(s.segments, counts, strict=True), self.depth + 1):
            here.axes[a.name] = picked(n, pattern_of(number))
        self.piece(s.load, p.index(s.length), here, s.padding)

    def pack(self, s: Pack, p: SampledIterations) -> None:
        """The rows that a pack reads, and the block that it writes."""
        t, begin, depth, at = self.dtypes[s.out], p.index(s.begin), p.index(s.k.extent), p.index(s.at)
        rows = np.broadcast_to(p.index(s.end) - begin, (SAMPLES,))
        if coefficient(s.load.index[0], s.k) != ONE:
            self.found.append(f"{self.where}: rows of {s.load.source} that are packed are not contiguous")
        here = p.within((rows > 0) & (depth > 0))
        here.axes |= {s.row.name: begin + picked(rows, pattern_of(self.depth)), s.k.name: np.zeros(1, np.int64)}
        self.piece(s.load, depth, here, "")
        pitch = rows if s.pitch == ZERO else p.index(s.pitch)
        piece = s.unit.piece // t.bytes if s.unit is not None else PAIR if t == BF16 else 1
        steps = depth + p.index(s.skip)
        last = (-(-steps // piece) - 1) * pitch + (rows if s.apart else pitch)
        self.stores(s.out, at, last * piece if s.unit is not None else (last - 1) * piece + 1, here.alive)

    def tile(self, s: Tile, p: SampledIterations) -> None:
        """Both operands of a tile and its sums."""
        core, rows, length, unit = s.core, p.index(s.rows), p.index(s.left.length), s.core.product.unit
        where = both(p.alive, np.broadcast_to(np.asarray(rows) > 0, (SAMPLES,)))
        if (
            (np.asarray(rows) > core.most).any()
            and where is not None
            and (where & (np.asarray(rows) > core.most)).any()
        ):
            self.found.append(f"{self.where}: a tile has more rows than {core.most}")
        self.stores(s.out, p.index(s.out_at), (core.most if unit is not None else rows) * core.width, where)
        a, b = p.index(s.left.at), p.index(s.right.at)
        depth = length * s.left.segments
        if isinstance(s.left, Packed):
            t = core.product.left
            piece = unit.piece // t.bytes if unit is not None else PAIR if t == BF16 else 1
            self.reads(
                s.left.buffer, a, depth * rows if unit is None else -(-depth // piece) * piece * core.most, where
            )
            self.multiple(s.left.buffer, a, piece, where)
        else:
            even = isinstance(s.left, Pointers) and s.left.even
            pieces = s.left.pointers if isinstance(s.left, Channels) else s.left.segments
            entries = (pieces - 1) * (EVEN_ENTRIES if even else core.most) + (EVEN_ENTRIES if even else rows)
            self.reads(s.left.buffer, a, entries, where)
        if isinstance(s.left, Quantized):
            self.reads(s.right.buffer, b, (-(-length // QUAD) * s.left.segments + 1) * core.width * QUAD, where)
            self.multiple(s.right.buffer, b, QUAD, where)
            if isinstance(zero := s.left.coding.right_zero, tuple):
                self.reads(zero[0], p.index(zero[1]), np.minimum(p.index(s.right.columns), core.width), where)
        elif s.right.source is not None:
            self.reads(s.right.source.buffer, p.index(s.right.source.at), depth, where)
            self.stores(s.right.buffer, b, depth * core.width, where)
        elif s.right.columns != ZERO:
            self.reads(s.right.buffer, b, (depth - 1) * core.width + p.index(s.right.columns), where)
        else:
            self.reads(s.right.buffer, b, depth * core.width, where)
            self.multiple(s.right.buffer, b, core.product.step, where)
