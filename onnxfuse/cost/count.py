"""What the statements of a phase do, counted: cycles of computing, and which elements of which buffer they touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod, sqrt
from typing import assert_never

from onnxfuse.cost.expressions import index_work, loaded_in, work_of
from onnxfuse.cost.means import Means
from onnxfuse.cost.statement_cost import StatementCost
from onnxfuse.cost.traffic import LINE, Access, EnclosingLoop
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    HorizontalReduce,
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
from onnxfuse.ir.launch import Asynchronous, Commit, CopyAsync, Mma, Sync, Wait
from onnxfuse.ir.scalar import Apply, Guard, Lanes, Load, Scalar
from onnxfuse.ir.tile import EVEN_ENTRIES, Channels, Packed, Pointers, Quantized, Tile
from onnxfuse.target import Cpu
from onnxfuse.target.cpu import LATENCY

LANE = 1.2  # cycles of an element that is loaded or stored by itself
SORTED = 2.0  # slots to sort two vectors by lanes that are near to each other
SET = 4096  # bytes between addresses that compete for the same lines of L1, of which it has one for each way
IN_ONE_SET = 24.0  # cycles of an element whose line the other lanes push out
CONFLICT = 0.1  # cycles of a step, times the square of how many rows of a tile find no place in a set that all are in
CHANNELS = 1.5  # cycles of a product of windows' elements, which are interleaved first
LOOKED_UP = 2.5  # cycles of an element whose index is looked up
HORIZONTAL = 12.0  # cycles to sum the lanes of one vector
STEP = 1.0  # clocks of a loop's own instructions
CALL = 20.0  # cycles around the steps of a register tile
SEGMENT = 5.0  # cycles of a tile between one segment and the next
PACKED = 0.35  # cycles of an element that is packed by transposing
APART = 10.0  # cycles of a step whose rows are stored a distance apart from those of the next
GUARDED = 1.2  # cycles of an element that is loaded by itself, if its guards hold
POINTER = 4.0  # cycles of an entry of a table of row pointers
PLACE = 4.0  # slots to find where a lane reads, or whether a guard of it holds
PREFETCH = 0.5  # cycles of fetching a line
POINTED = 1.5  # loads of a step for each row behind a pointer of its own: half of the pointers are not in registers


@dataclass(slots=True)
class Counter(Means):
    """Walks the statements of one phase. Loops over a split run as often as one thread's share of them."""

    phase: Phase
    target: Cpu
    shares: Sequence[float]  # of each split
    parts: Sequence[float]  # of each split that one thread gets: what stands outside its loop is done for each of them
    even: bool  # whether tasks are so many that no thread has longer ones than the others
    dtypes: Mapping[str, DType]
    accesses: list[Access] = field(default_factory=list)
    loops: list[EnclosingLoop] = field(default_factory=list)
    tables: dict[str, RowPointer] = field(default_factory=dict)
    kept: dict[Axis, list[float]] = field(default_factory=dict)  # values of axes that are computed
    vector: Axis | None = None
    carries: int = 1  # vectors of each reduction whose lanes the loop over it carries
    loop_count: int = 0

    def cycles(self) -> float:
        """Cycles of one thread. The accesses are there afterwards."""
        over = {self._split(s): s for s in statements(self.phase.body) if isinstance(s, Loop)}
        for at, s in enumerate(self.phase.splits):
            whole = self.number(s.extent)
            mine = whole if at in over else ceil(whole * self.shares[at] / self.parts[at])  # as blocks of one task
            self.values[s.first], self.values[s.last] = 0, mine
        self._tasks(over)
        return self._block(self.phase.body).cycles * prod(self.parts)

    def _tasks(self, over: Mapping[int | None, Loop]) -> None:
        """The tasks of a thread as loops around all others: what is outside of the loop over a split is done anew."""
        for split, parts in enumerate(self.parts):
            if parts > 1 and split in over:
                loop = over[split]
                each = (self.number(loop.end) - self.number(loop.begin)) * self.shares[split] / parts
                self.loops.append(EnclosingLoop(self.loop_count, loop.axis, parts, max(int(each), 1)))
                self.loop_count += 1

    def _split(self, s: Loop) -> int | None:
        """Which split of the phase a loop runs over."""
        return next((i for i, p in enumerate(self.phase.splits) if p.first in axes_of(s.begin)), None)

    # statements -------------------------------------------------------------------------------------------------------

    def _block(self, body: tuple[Stmt, ...]) -> StatementCost:
        block = StatementCost()
        for s in body:
            self._statement(s, block)
        return block

    def _statement(self, s: Stmt, block: StatementCost) -> None:
        match s:
            case Loop():  # what hardly ever runs costs nothing
                block.other += self._loop(s) if s.kind != "seldom" else 0.0
            case ReduceLoop():
                self._reduce_loop(s, block)
            case When():
                self._branch(s, block)
            case Bind():
                self._bind(s)
                block.ops += index_work(s.value)
            case Let():
                self._scalar(s.value, block)
            case Accumulate():
                self._accumulate(s, block)
            case Store():
                self._store(s, block)
            case RowPointer() | Tile() | Pack() | HorizontalReduce() | Prefetch():
                block.other += self._call(s)
            case Sync() | CopyAsync() | Commit() | Wait() | Mma() | Asynchronous():
                raise TypeError(f"{type(s).__name__} is a statement of threads, which are not counted")
            case _:
                assert_never(s)

    def _branch(self, s: When, block: StatementCost) -> None:
        """A branch, and what it touches, by how often it is taken."""
        before, share = len(self.accesses), prod(self._share(g) for g in s.guards)
        inside = self._block(s.body)
        block.add(inside, share)
        self.accesses[before:] = [a.in_share(share) for a in self.accesses[before:]]
        block.other += len(s.guards)
        block.chains |= inside.chains

    def _accumulate(self, s: Accumulate, block: StatementCost) -> None:
        for target, value in zip(s.targets, s.values, strict=True):
            fused = s.combine == "sum" and isinstance(value, Apply) and value.fn == "mul"
            self._scalar(value, block)
            block.ops += 0.0 if fused else FUNCTIONS[s.combine].cost if s.combine in FUNCTIONS else 1.0
            block.chains[target] = block.chains.get(target, 0.0) + self._latency / (self.carries if s.carried else 1)

    @property
    def _latency(self) -> float:
        """Cycles until a sum can be added to."""
        return LATENCY / self.target.clocks

    def _call(self, s: RowPointer | Tile | Pack | HorizontalReduce | Prefetch) -> float:
        """Cycles of a statement that is one call of a header's function."""
        match s:
            case RowPointer():
                self.tables[s.table] = s
                entries = EVEN_ENTRIES if s.even else max(self.number(s.end) - self.number(s.begin), 1)
                return POINTER * entries * prod([self.number(a.extent) for a in s.segments])
            case Tile():
                return self._tile(s)
            case Pack():
                return self._pack(s)
            case HorizontalReduce():
                return HORIZONTAL + self.number(s.rows) * 2
            case Prefetch():
                return PREFETCH * ceil(s.count * self.dtypes[s.buffer].bytes / LINE)
            case _:
                assert_never(s)

    def _loop(self, s: Loop) -> float:
        """Cycles of a whole loop."""
        whole = max(self.number(s.end) - self.number(s.begin), 0)
        split = self._split(s)
        mine = whole * self.shares[split] if split is not None else whole
        extent = mine / self.parts[split] if split is not None else mine  # of one task
        step = self.target.lanes if s.kind == "vector" else 1
        trips = ceil(extent / step) if step > 1 else extent
        run = EnclosingLoop(self.loop_count, s.axis, trips, step, whole if self.even else mine)
        self.loop_count += 1
        saved = self.vector, self.carries
        self._begin(s)
        self.loops.append(run)
        begin = self.number(s.begin)
        self.values[s.axis] = begin + max(run.reach - 1, 0) / 2
        if s.kind == "vector":
            self.vector, self.carries = s.axis, max(s.carries, 1)
        block = StatementCost()
        for inner in s.body:
            self._statement(inner, block)
        self.loops.pop()
        self.vector, self.carries = saved
        cut = min(1.0, trips * step - extent)  # how often the last vector is not whole, of loops of about this length
        tail = cut * block.stores * self.target.tail
        return tail + trips * (block.cycles + (STEP / self.target.clocks if s.kind != "unroll" else 0.0))

    def _begin(self, s: Loop) -> None:
        """Count the axis of a loop from where it begins, if that depends on the loops around it.

        What is touched in there is then seen to be another part of a buffer in each iteration of those.
        """
        begin = self.whole(s.begin)
        if any(run.axis in axes_of(begin) for run in self.loops):
            self.bound[s.axis] = begin + Index.of(s.axis)
        else:
            self.bound.pop(s.axis, None)

    def _reduce_loop(self, s: ReduceLoop, block: StatementCost) -> None:
        inside = StatementCost()
        for b in s.body:
            self._statement(b, inside)
        inside.chains.clear()  # of this block alone: the next iterations of the loop around it fill the gaps
        block.add(inside)
        if s.scope == "lane" and s.part is None:
            block.other += HORIZONTAL * len(s.targets)

    def _bind(self, s: Bind) -> None:
        """The mean of an axis that is computed, over the values of the innermost loop that it runs with."""
        self.bound[s.axis] = self.whole(s.value)
        run = next((r for r in reversed(self.loops) if r.axis in axes_of(self.bound[s.axis])), None)
        if run is None or s.most is None or run.reach <= 1:
            found = self.number(s.value)
            self.values[s.axis] = found if s.most is None else min(found, self.number(s.most))
            self.kept[s.axis] = [self.values[s.axis]] if s.most is not None else []
            return
        mean, most = self.values[run.axis], self.number(s.most)
        count = ceil(run.reach)
        cut: list[float] = []
        kept: list[float] = []
        for at in range(0, count, max(1, count // 64)):
            self.values[run.axis] = mean - (run.reach - 1) / 2 + at
            value = self.number(s.value)
            kept.append(min(value, most))
            cut.append(value - kept[-1])
        self.values[run.axis] = mean
        found = self.number(s.value) - sum(cut) / len(cut)  # of many, some are looked at: the rest may be far off
        self.values[s.axis] = found if min(kept) <= found <= max(kept) else sum(kept) / len(kept)
        self.kept[s.axis] = kept

    def _share(self, g: Guard) -> float:
        """How often a guard holds, where it is of one axis that has a most and of nothing else; else 1."""
        axes = axes_of(g.index)
        kept = self.kept.get(next(iter(axes)), []) if len(axes) == 1 else []
        means, holds = self.values, 0
        for value in kept:
            self.values = {**means, **dict.fromkeys(axes, value)}
            holds += 0 <= self.number(g.index) < self.number(g.extent)
        self.values = means
        return holds / len(kept) if kept else 1.0

    def _tile(self, s: Tile) -> float:
        kind, rows = s.core.product, max(self.number(s.rows), 1.0)
        whole = isinstance(s.left, Quantized) or s.right.columns == ZERO
        vectors = max(1.0, (s.core.width if whole else self.number(s.right.columns)) / self.target.lanes)
        depth = s.left.segments * self.number(s.left.length)
        loads = (rows * (POINTED if isinstance(s.left, Pointers) and not s.left.even else 1.0) + vectors) / 2
        short = kind.left.bytes < kind.sums.bytes  # steps that lie side by side are multiplied at once
        widened = 0.0 if short or kind.right == kind.sums else vectors
        at_once = self.target.codes if kind.exact else kind.step if short else 1
        step = max((rows * vectors + widened) / 2, loads, self._latency) / at_once
        step += self._in_one_set(s)
        if kind.unit is not None:
            step = rows * vectors / 2 / kind.step / kind.unit.speed
        self._touch_tile(s, rows, depth)
        if isinstance(s.left, Channels):
            multiplied = self.number(s.panel_depth) * rows * vectors * CHANNELS / self.target.codes
            return multiplied + 2 * rows * vectors + CALL
        return depth * step + s.left.segments * SEGMENT + 2 * rows * vectors + CALL

    def _in_one_set(self, s: Tile) -> float:
        """Cycles of a step of a tile whose rows push each other out of L1."""
        point = self.tables.get(s.left.buffer)
        over = s.core.most - self.target.l1_bytes // SET
        if point is None or isinstance(s.left, Packed) or over <= 0:
            return 0.0
        apart = self._apart(point) * point.load.dtype.bytes
        return CONFLICT * over**2 if apart and apart % SET == 0 else 0.0

    def _apart(self, point: RowPointer) -> float:
        """Elements from one row that is pointed to, to the next."""
        first = substitute(point.load.index[0], dict.fromkeys(point.segments, ZERO))
        at = [self.number(substitute(first, {point.row: Index.of(row)})) for row in (0, 1)]
        return abs(at[1] - at[0])

    def _touch_tile(self, s: Tile, rows: float, depth: float) -> None:
        left, right, sums = (t.bytes for t in (s.core.product.left, s.core.product.right, s.core.product.sums))
        self._access(s.right.buffer, s.right.at, depth * s.core.width, right)
        if s.ahead is not None and s.ahead.buffer == s.right.buffer:
            self._access(s.right.buffer, s.ahead.at, depth * s.core.width, right, early=True)
        if isinstance(s.left, Packed):
            self._access(s.left.buffer, s.left.at, depth * rows, left)
            if s.out not in {b.name for b in self.phase.locals}:
                self._access(s.out, s.out_at, rows * s.core.width, sums, stores=True)
            return
        point = self.tables.get(s.left.buffer)
        if point is None:
            return
        windows = isinstance(s.left, Channels)
        lines = (s.left.length.constant or 1) if windows else ceil(sqrt(s.left.segments))
        start = substitute(point.load.index[0], {point.row: point.begin} | dict.fromkeys(point.segments, ZERO))
        length = self.number(point.length)
        line = (rows - 1) * min(length, self._apart(point) or length) + length  # windows of adjacent rows overlap
        self._access(point.load.source, start, min(rows * length * lines, s.left.segments * line), left)

    def _pack(self, s: Pack) -> float:
        rows = max(self.number(s.end) - self.number(s.begin), 1.0)
        elements = rows * self.number(s.k.extent)
        start = substitute(s.load.index[0], {s.row: s.begin, s.k: ZERO})
        self._access(s.load.source, start, elements, s.load.dtype.bytes)
        self._access(s.out, s.at, elements, s.load.dtype.bytes, stores=True)
        apart = APART * self.number(s.k.extent) if s.apart else 0.0
        return CALL + PACKED * elements * max(1.0, self.target.lanes / rows) + apart

    def _scalar(self, x: Scalar, block: StatementCost) -> None:
        """Count an expression; equal parts of it count once."""
        ops, reads = work_of(x)
        block.ops += ops
        for node in reads:
            if isinstance(node, Load):
                self._load(node, block)
            else:
                self._guards(node.guards, block)
                if node.lanes is not None and node.lanes.kind == "gathered":
                    block.other += LANE * self.target.lanes * node.dtype.bytes / 4

    def _load(self, node: Load, block: StatementCost) -> None:
        """Count one load by how its lanes are made, and remember what it touches."""
        self._guards(node.guards, block)
        wide, lanes = max(1.0, node.dtype.bytes / 4), node.lanes or Lanes("broadcast")
        apart = self._touch(node.source, node.index[0], node.dtype)
        match lanes.kind:
            case "gathered" | "guarded":
                looked_up = [e for a in loaded_in(node.index[0]) for e in a.at]
                each = GUARDED if lanes.kind == "guarded" else 0.0
                each += LOOKED_UP if any(self._varies(e) for e in looked_up) else self._alone(apart, node.dtype)
                block.other += each * self.target.lanes
            case "piecewise":
                block.loads += wide
                block.ops += 2 * PLACE * (1 + len(node.guards))
            case "strided" | "masked":
                block.loads += wide * max(lanes.step, 1)
                block.ops += SORTED * wide * max(lanes.step - 1, 0)
            case _:
                block.loads += wide

    def _alone(self, apart: int | None, dtype: DType) -> float:
        """Cycles of an element that is loaded or stored by itself, so far apart from that of the next lane."""
        if apart in (0, 1):
            return 0.0
        return LANE if (apart or 1) * dtype.bytes % SET else IN_ONE_SET

    def _varies(self, e: Index) -> bool:
        """Whether an index differs between the lanes of a vector."""
        return self.vector is not None and self.vector in axes_of(self.whole(e))

    def _guards(self, guards: tuple[Guard, ...], block: StatementCost) -> None:
        """Count guards: those that differ between the lanes of a vector are masks."""
        block.ops += sum(2.0 if self._varies(g.index) else 1.0 for g in guards)

    def _touch(self, buffer: str, offset: Index, dtype: DType, *, stores: bool = False) -> int | None:
        """Remember what an access touches; the elements from lane to lane, None where that is no number."""
        whole = self.whole(offset)
        for a in loaded_in(offset):
            self._access(a.source, a.at[0] if a.at else ZERO, 1.0, 8)
        varies = self.vector is not None and self.vector in axes_of(whole)
        stride = coefficient(whole, self.vector) if varies and self.vector else ZERO
        apart = abs(stride.constant or 1) if stride is not None else 1
        elements = float(self.target.lanes) if varies else 1.0
        self._access(buffer, offset, elements, dtype.bytes, stores=stores, apart=apart)
        return stride.constant if stride is not None else None

    def _store(self, s: Store, block: StatementCost) -> None:
        """Count what is stored. Vectors whose lanes are stored side by side are put together, each from all of them."""
        for value in s.values:
            self._scalar(value, block)
        dtype, count = self.dtypes[s.buffer], len(s.values)
        if s.behind:
            block.ops += count * (count - 1)
            block.stores += count
            self._access(s.buffer, s.offset, float(count * self.target.lanes), dtype.bytes, stores=True)
            return
        apart = self._touch(s.buffer, s.offset, dtype, stores=True)
        if s.scattered:
            block.other += self._alone(apart, dtype) * self.target.lanes
        else:
            block.stores += max(1.0, dtype.bytes / 4)

    def _access(
        self,
        buffer: str,
        offset: Index,
        elements: float,
        size: int,
        *,
        stores: bool = False,
        apart: int = 1,
        early: bool = False,
    ) -> None:
        found = Access(buffer, self.whole(offset), elements, size, tuple(self.loops), stores, apart, early=early)
        self.accesses.append(found)
