"""What the statements of a phase do, counted: cycles of computing, and which elements of which buffer they touch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod, sqrt
from typing import assert_never

from onnxfuse.cost.expressions import index_work
from onnxfuse.cost.means import Means, substituted
from onnxfuse.cost.statement_cost import StatementCost
from onnxfuse.cost.straight import SET, Block, Nested, PhaseFacts, Straight
from onnxfuse.cost.traffic import LINE, Access, EnclosingLoop, Visit, largest, merged
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    HorizontalReduce,
    Let,
    Loop,
    Pack,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Store,
    When,
)
from onnxfuse.ir.launch import Asynchronous, Commit, CopyAsync, Mma, Sync, Wait
from onnxfuse.ir.scalar import Guard
from onnxfuse.ir.tile import EVEN_ENTRIES, Channels, Packed, Pointers, Quantized, Tile
from onnxfuse.target import Cpu
from onnxfuse.target.cpu import LATENCY

CONFLICT = 0.1  # cycles of a step, times the square of how many rows of a tile find no place in a set that all are in
CHANNELS = 1.5  # cycles of a product of windows' elements, which are interleaved first
HORIZONTAL = 12.0  # cycles to sum the lanes of one vector
STEP = 1.0  # clocks of a loop's own instructions
CALL = 20.0  # cycles around the steps of a register tile
CHAINS = 4  # of sums of a tile of one row, which do not wait for each other
SEGMENT = 5.0  # cycles of a tile between one segment and the next
PACKED = 0.35  # cycles of an element that is packed by transposing
APART = 10.0  # cycles of a step whose rows are stored a distance apart from those of the next
COPIED = 0.5  # cycles of a vector that a tile copies to its panel beside its products
POINTER = 4.0  # cycles of an entry of a table of row pointers
PREFETCH = 0.5  # cycles of fetching a line
POINTED = 1.5  # loads of a step for each row behind a pointer of its own: half of the pointers are not in registers


def latency_of(target: Cpu) -> float:
    """Cycles until a sum can be added to."""
    return LATENCY / target.clocks


@dataclass(slots=True)
class Counter(Means):
    """Walks the statements of one phase. Loops over a split run as often as one thread's share of them."""

    facts: PhaseFacts
    target: Cpu
    shares: Sequence[float]  # of each split
    parts: Sequence[float]  # of each split that one thread gets: what stands outside its loop is done for each of them
    even: bool  # whether tasks are so many that no thread has longer ones than the others
    visits: list[Visit] = field(default_factory=list)
    loops: list[EnclosingLoop] = field(default_factory=list)
    tables: dict[str, RowPointer] = field(default_factory=dict)
    kept: dict[Axis, list[tuple[float, float]]] = field(default_factory=dict)  # values of computed axes, and how often
    loop_count: int = 0

    def cycles(self) -> float:
        """Cycles of one thread. The accesses are there afterwards."""
        over = self.facts.over
        for at, s in enumerate(self.facts.splits):
            whole = self.number(s.extent)
            mine = whole if at in over else ceil(whole * self.shares[at] / self.parts[at])  # as blocks of one task
            self.values[s.first], self.values[s.last] = 0, mine
        self._tasks(over)
        return self._block(self.facts.body).cycles * prod(self.parts)

    def accesses(self) -> list[Access]:
        """What one thread touches, those at constant distances from each other as one."""
        if self.facts.merged is None:
            self.facts.merged = merged(self.visits)
        return [largest(self.visits, group) for group in self.facts.merged]

    def _tasks(self, over: Mapping[int | None, Loop]) -> None:
        """The tasks of a thread as loops around all others: what is outside of the loop over a split is done anew."""
        for split, parts in enumerate(self.parts):
            if parts > 1 and split in over:
                loop = over[split]
                each = (self.number(loop.end) - self.number(loop.begin)) * self.shares[split] / parts
                self.loops.append(EnclosingLoop(self.loop_count, loop.axis, parts, max(int(each), 1)))
                self.loop_count += 1

    # statements -------------------------------------------------------------------------------------------------------

    def _block(self, body: Block) -> StatementCost:
        block = StatementCost()
        for s in body:
            if isinstance(s, Straight):
                block.add(s.cost)
                block.wait(s.cost.chains)
                for cycles in s.others:
                    block.other += cycles
                if s.touched:
                    self.visits.append(Visit(s.touched, tuple(self.loops)))
            else:
                self._statement(s, block)
        return block

    def _statement(self, nested: Nested, block: StatementCost) -> None:
        match s := nested.statement:
            case Loop():  # what hardly ever runs costs nothing
                block.other += self._loop(s, nested) if s.kind != "seldom" else 0.0
            case ReduceLoop():
                inside = self._block(nested.inside)
                inside.chains.clear()  # of this block alone: the next iterations of the loop around it fill the gaps
                block.add(inside)
                if s.scope == "lane" and s.part is None:
                    block.other += HORIZONTAL * len(s.targets)
            case When():
                self._branch(s, nested.inside, block)
            case Bind():
                self._bind(s)
                block.ops += index_work(s.value)
            case RowPointer() | Tile() | Pack() | HorizontalReduce() | Prefetch():
                block.other += self._call(s)
            case Let() | Accumulate() | Store():
                raise TypeError(f"{type(s).__name__} is a statement of a row")
            case Sync() | CopyAsync() | Commit() | Wait() | Mma() | Asynchronous():
                raise TypeError(f"{type(s).__name__} is a statement of threads, which are not counted")
            case _:
                assert_never(s)

    def _branch(self, s: When, body: Block, block: StatementCost) -> None:
        """A branch, and what it touches, by how often it is taken."""
        before, share = len(self.visits), prod(self._share(g) for g in s.guards)
        inside = self._block(body)
        block.add(inside, share)
        for visit in self.visits[before:]:
            visit.share *= share
        block.other += len(s.guards)
        block.chains |= inside.chains

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
                return PREFETCH * ceil(s.count * self.facts.dtypes[s.buffer].bytes / LINE)
            case _:
                assert_never(s)

    def _loop(self, s: Loop, nested: Nested) -> float:
        """Cycles of a whole loop."""
        whole, split = max(self.number(s.end) - self.number(s.begin), 0), nested.split
        mine = whole * self.shares[split] if split is not None else whole
        extent = mine / self.parts[split] if split is not None else mine  # of one task
        step = self.target.lanes if s.kind == "vector" else 1
        trips = ceil(extent / step) if step > 1 else extent
        run = EnclosingLoop(self.loop_count, s.axis, trips, step, whole if self.even else mine)
        self.loop_count += 1
        self.begins(s.axis, s.begin, [r.axis for r in self.loops])
        self.loops.append(run)
        begin = self.number(s.begin)
        self.values[s.axis] = begin + max(run.reach - 1, 0) / 2
        block = self._block(nested.inside)
        self.loops.pop()
        cut = min(1.0, trips * step - extent)  # how often the last vector is not whole, of loops of about this length
        tail = cut * block.stores * self.target.tail
        return tail + trips * (block.cycles + (STEP / self.target.clocks if s.kind != "unroll" else 0.0))

    def _bind(self, s: Bind) -> None:
        """The mean of an axis that is computed, over the values of the innermost loop that it runs with."""
        self.bound[s.axis] = self.whole(s.value)
        run = next((r for r in reversed(self.loops) if r.axis in axes_of(self.bound[s.axis])), None)
        if run is None or s.most is None or run.reach <= 1:
            found = self.number(s.value)
            self.values[s.axis] = found if s.most is None else min(found, self.number(s.most))
            self.kept[s.axis] = [(self.values[s.axis], 1.0)] if s.most is not None else []
            return
        mean, most = self.values[run.axis], self.number(s.most)
        count, cut, often = ceil(run.reach), 0.0, 0.0
        kept: list[tuple[float, float]] = []
        for at in range(0, count, max(1, count // 64)):
            self.values[run.axis] = mean - (run.reach - 1) / 2 + at
            value = self.number(s.value)
            kept.append((min(value, most), min(1.0, run.reach - at)))  # the last iteration is there now and then
            cut += (value - kept[-1][0]) * kept[-1][1]
            often += kept[-1][1]
        self.values[run.axis] = mean
        found = self.number(s.value) - cut / often  # of many, some are looked at: the rest may be far off
        inside = min(kept)[0] <= found <= max(kept)[0]
        self.values[s.axis] = found if inside else sum(value * share for value, share in kept) / often
        self.kept[s.axis] = kept

    def _share(self, g: Guard) -> float:
        """How often a guard holds, where it is of one axis that has a most and of nothing else; else 1."""
        axes = axes_of(g.index)
        kept = self.kept.get(next(iter(axes)), []) if len(axes) == 1 else []
        means, holds = self.values, 0.0
        for value, often in kept:
            self.values = {**means, **dict.fromkeys(axes, value)}
            holds += often * (0 <= self.number(g.index) < self.number(g.extent))
        self.values = means
        return holds / sum(often for _, often in kept) if kept else 1.0

    def _tile(self, s: Tile) -> float:
        kind, rows = s.core.product, max(self.number(s.rows), 1.0)
        whole = isinstance(s.left, Quantized) or s.right.columns == ZERO
        vectors = max(1.0, (s.core.width if whole else self.number(s.right.columns)) / self.target.lanes)
        depth = s.left.segments * self.number(s.left.length) * self._inside(s, rows)
        loads = (rows * (POINTED if isinstance(s.left, Pointers) and not s.left.even else 1.0) + vectors) / 2
        short = kind.left.bytes < kind.sums.bytes  # steps that lie side by side are multiplied at once
        widened = 0.0 if short or kind.right == kind.sums else vectors
        at_once = self.target.codes if kind.exact else kind.step if short else 1
        chains = CHAINS if rows == 1 and not kind.exact else 1
        step = max((rows * vectors + widened) / 2, loads, latency_of(self.target) / chains) / at_once
        step += self._in_one_set(s)
        step += COPIED * vectors if s.right.source is not None else 0.0
        if kind.unit is not None:
            step = rows * vectors / 2 / kind.step / kind.unit.speed
        self._touch_tile(s, rows, depth)
        if isinstance(s.left, Channels):
            multiplied = self.number(s.panel_depth) * rows * vectors * CHANNELS / self.target.codes
            return multiplied + 2 * rows * vectors + CALL
        return depth * step + s.left.segments * SEGMENT + 2 * rows * vectors + CALL

    def _inside(self, s: Tile, rows: float) -> float:
        """The share of a tile's segments that are multiplied: those that are padding in all rows are skipped."""
        point = self.tables.get(s.left.buffer)
        if point is None or point.padding or not isinstance(s.left, Pointers):
            return 1.0
        share = 1.0
        for g in point.load.guards:
            (*taps,) = axes_of(g.index) & set(point.segments)
            count = taps[0].extent.constant if len(taps) == 1 else None
            if count is not None:
                share *= sum(self._met(g, point.row, {taps[0]: Index.of(k)}, rows) for k in range(count)) / count
        return share

    def _met(self, g: Guard, row: Axis, tap: Mapping[Axis, Index], rows: float) -> float:
        """How often a guard holds for one of so many adjacent rows at least, where all rows are as frequent."""
        first, second, last = (
            self.number(substituted(g.index, ((row, Index.of(at)), *tap.items()))) for at in (ZERO, ONE, row.extent - 1)
        )
        held = min(last, self.number(g.extent) - 1) - max(first, 0) + 1
        wide = abs(second - first) * (rows - 1)
        return min(1.0, (held + wide) / max(last - first + 1, 1)) if held > 0 else 0.0

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
        point = self.tables.get(s.right.source.buffer) if s.right.source is not None else None
        if point is not None:
            self._touch_source(s, point, right)
        self._access(s.right.buffer, s.right.at, depth * s.core.width, right, stores=point is not None)
        if s.ahead is not None and s.ahead.buffer == s.right.buffer:
            self._access(s.right.buffer, s.ahead.at, depth * s.core.width, right, early=True)
        if isinstance(s.left, Packed):
            self._access(s.left.buffer, s.left.at, depth * rows, left)
            if s.out not in {b.name for b in self.facts.locals}:
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

    def _touch_source(self, s: Tile, point: RowPointer, size: int) -> None:
        """What a tile makes its panel of: the first of a loop of tiles reads it, once for all of them."""
        *around, tiles = self.loops
        lane, lanes = Axis("j", Index.of(s.core.width)), self.target.lanes
        for axis, step in (*((a, 1) for a in (*point.segments, point.row)), (lane, lanes)):
            trips = self.number(axis.extent) / step
            around.append(EnclosingLoop(self.loop_count, axis, trips, step, trips * step))
            self.loop_count += 1
        found = Access(point.load.source, self.whole(point.load.index[0] + lane), lanes, size, ())
        self.visits.append(Visit((found,), tuple(around), tiles.trips))

    def _pack(self, s: Pack) -> float:
        rows = max(self.number(s.end) - self.number(s.begin), 1.0)
        elements = rows * self.number(s.k.extent)
        start = substitute(s.load.index[0], {s.row: s.begin, s.k: ZERO})
        self._access(s.load.source, start, elements, s.load.dtype.bytes)
        self._access(s.out, s.at, elements, s.load.dtype.bytes, stores=True)
        apart = APART * self.number(s.k.extent) if s.apart else 0.0
        return CALL + PACKED * elements * max(1.0, self.target.lanes / rows) + apart

    def _access(
        self, buffer: str, offset: Index, elements: float, size: int, *, stores: bool = False, early: bool = False
    ) -> None:
        found = Access(buffer, self.whole(offset), elements, size, (), stores, early=early)
        self.visits.append(Visit((found,), tuple(self.loops)))
