"""What does not depend on sizes and on the number of cores, found once for each phase.

These are the statements between loops, in rows: what a row costs, and what it touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import TypeAlias

from onnxfuse.cost.expressions import loaded_in, work_of
from onnxfuse.cost.means import Means
from onnxfuse.cost.statement_cost import StatementCost
from onnxfuse.cost.traffic import Access, Merged
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import ZERO, Axis, Div, Index, Mod, atoms, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Buffer,
    Let,
    Loop,
    Pack,
    Phase,
    ReduceLoop,
    Split,
    Stmt,
    Store,
    When,
    statements,
)
from onnxfuse.ir.scalar import Apply, Guard, Lanes, Load, Scalar
from onnxfuse.ir.tile import Tile

LANE = 1.2  # cycles of an element that is loaded or stored by itself
SORTED = 2.0  # slots to sort two vectors by lanes that are near to each other
SET = 4096  # bytes between addresses that compete for the same lines of L1, of which it has one for each way
IN_ONE_SET = 24.0  # cycles of an element whose line the other lanes push out
IN_FEW_SETS = 10.0  # of one whose line was pushed out by those of the same lane, from a distance of
FEW_SETS = 512  # bytes: lines that far apart are in an eighth of L1
OPEN = 4.0  # of one at an open distance, often a multiple of SET: where the sides of images are multiples of 32
LOOKED_UP = 2.5  # cycles of an element whose index is looked up
DIVIDED = 7.0  # cycles of a division by a number that only the run knows
GUARDED = 1.2  # cycles of an element that is loaded by itself, if its guards hold
TERM = 0.25  # cycles of each further term of the index of a guard that each lane asks for itself
FEW_TERMS = 4  # terms that are cheap: compilers keep sums of few extents in registers
PLACE = 4.0  # slots to find where a lane reads, or whether a guard of it holds


@dataclass(frozen=True, slots=True)
class Straight:
    """Statements in a row without a loop: what they cost, but for the cycles of `others`, and what they touch."""

    cost: StatementCost
    others: tuple[float, ...]  # cycles that share nothing with the units, one by one: sums of them depend on the order
    touched: tuple[Access, ...]  # without the loops around


@dataclass(frozen=True, slots=True)
class Nested:
    """Another statement; of a loop which split of the phase it runs over, and what is `inside` of it."""

    statement: Stmt
    split: int | None = None
    inside: Block = ()


Block: TypeAlias = tuple[Straight | Nested, ...]


@dataclass(slots=True, eq=False)
class PhaseFacts:
    """The body of a phase; by split the loop over it, where there is one; the buffers it stores to; merged accesses.

    Which accesses are `merged` is the same for all sizes, and is told by the first count. Equal phases have one object.
    """

    splits: tuple[Split, ...]
    locals: tuple[Buffer, ...]
    dtypes: Mapping[str, DType]
    body: Block
    over: Mapping[int | None, Loop]
    stored: frozenset[str]
    merged: tuple[Merged, ...] | None = None


Dtypes: TypeAlias = tuple[tuple[str, DType], ...]  # of the buffers of a kernel
_LATEST: dict[
    int, tuple[Phase, tuple[object, ...], PhaseFacts]
] = {}  # with the phase, so that no other gets its number
_REMEMBERED = 64  # phases that are looked at again soon: to hash one, and to compare two, is a walk through both


def facts_of(phase: Phase, lanes: int, latency: float, dtypes: Dtypes) -> PhaseFacts:
    """The facts of a phase on machines with so many lanes and cycles until a sum can be added to."""
    around = (lanes, latency, dtypes)
    known = _LATEST.get(id(phase))
    if known is not None and known[1] == around:
        return known[2]
    if len(_LATEST) >= _REMEMBERED:
        _LATEST.clear()
    found = _facts(phase.splits, phase.locals, phase.body, *around)
    _LATEST[id(phase)] = (phase, around, found)
    return found


@lru_cache(1 << 9)
def _facts(
    splits: tuple[Split, ...],
    locals_: tuple[Buffer, ...],
    body: tuple[Stmt, ...],
    lanes: int,
    latency: float,
    dtypes: Dtypes,
) -> PhaseFacts:
    all_ = {**dict(dtypes), **{b.name: b.dtype for b in locals_}}
    reader = _Reader(splits=splits, lanes=lanes, latency=latency, dtypes=all_, symbols={})
    found = (s for s in statements(body) if isinstance(s, (Store, Tile, Pack)))
    stored = frozenset(s.buffer if isinstance(s, Store) else s.out for s in found)
    return PhaseFacts(splits, locals_, all_, reader.block(body), reader.over, stored)


@dataclass(slots=True)
class _Reader(Means):
    """Walks the statements of one phase."""

    splits: Sequence[Split]
    lanes: int
    latency: float
    dtypes: Mapping[str, DType]
    over: dict[int | None, Loop] = field(default_factory=dict)
    vector: Axis | None = None
    carries: int = 1  # vectors of each reduction whose lanes the loop over it carries
    around: list[Axis] = field(default_factory=list)  # of the loops that are open
    others: list[float] = field(default_factory=list)  # of the row that is walked
    touched: list[Access] = field(default_factory=list)

    def block(self, body: tuple[Stmt, ...]) -> Block:
        """The statements of a block, those in a row together."""
        found: list[Straight | Nested] = []
        row: list[Let | Accumulate | Store] = []
        for s in body:
            if isinstance(s, (Let, Accumulate, Store)):
                row.append(s)
                continue
            found += [self._row(row)] if row else []
            row = []
            found.append(self._nested(s))
        return (*found, self._row(row)) if row else tuple(found)

    def _nested(self, s: Stmt) -> Nested:
        if isinstance(s, (When, ReduceLoop)):
            return Nested(s, None, self.block(s.body))
        if isinstance(s, Bind):
            self.bound[s.axis] = self.whole(s.value)
        if not isinstance(s, Loop):
            return Nested(s)
        split = next((i for i, p in enumerate(self.splits) if p.first in axes_of(s.begin)), None)
        self.over[split] = s
        saved = self.vector, self.carries
        if s.kind == "vector":
            self.vector, self.carries = s.axis, max(s.carries, 1)
        self.begins(s.axis, s.begin, self.around)
        self.around.append(s.axis)
        inside = self.block(s.body)
        self.around.pop()
        self.vector, self.carries = saved
        return Nested(s, split, inside)

    # statements -------------------------------------------------------------------------------------------------------

    def _row(self, row: Sequence[Let | Accumulate | Store]) -> Straight:
        cost = StatementCost()
        self.others, self.touched = [], []
        for s in row:
            if isinstance(s, Let):
                self._scalar(s.value, cost)
            elif isinstance(s, Store):
                self._store(s, cost)
            else:
                self._accumulate(s, cost)
        return Straight(cost, tuple(self.others), tuple(self.touched))

    def _accumulate(self, s: Accumulate, cost: StatementCost) -> None:
        for target, value in zip(s.targets, s.values, strict=True):
            fused = s.combine == "sum" and isinstance(value, Apply) and value.fn == "mul"
            self._scalar(value, cost)
            cost.ops += 0.0 if fused else FUNCTIONS[s.combine].cost if s.combine in FUNCTIONS else 1.0
            cost.chains[target] = cost.chains.get(target, 0.0) + self.latency / (self.carries if s.carried else 1)

    def _store(self, s: Store, cost: StatementCost) -> None:
        """Count what is stored. Vectors whose lanes are stored side by side are put together, each from all of them."""
        for value in s.values:
            self._scalar(value, cost)
        dtype, count = self.dtypes[s.buffer], len(s.values)
        if s.behind:
            cost.ops += count * (count - 1)
            cost.stores += count
            self._access(s.buffer, s.offset, float(count * self.lanes), dtype.bytes, stores=True)
            return
        apart = self._touch(s.buffer, s.offset, dtype, stores=True)
        if s.scattered:
            self.others.append(self._alone(apart, dtype) * self.lanes)
        else:
            cost.stores += max(1.0, dtype.bytes / 4)

    # expressions ------------------------------------------------------------------------------------------------------

    def _scalar(self, x: Scalar, cost: StatementCost) -> None:
        """Count an expression; equal parts of it count once."""
        ops, reads = work_of(x)
        cost.ops += ops
        for node in reads:
            if isinstance(node, Load):
                self._load(node, cost)
            else:
                self._guards(node.guards, cost)
                if node.lanes is not None and node.lanes.kind == "gathered":
                    self.others.append(LANE * self.lanes * node.dtype.bytes / 4)

    def _load(self, node: Load, cost: StatementCost) -> None:
        """Count one load by how its lanes are made, and remember what it touches."""
        self._guards(node.guards, cost)
        wide, lanes = max(1.0, node.dtype.bytes / 4), node.lanes or Lanes("broadcast")
        apart = self._touch(node.source, node.index[0], node.dtype)
        match lanes.kind:
            case "gathered" | "guarded":
                looked_up = [e for a in loaded_in(node.index[0]) for e in a.at]
                each = GUARDED if lanes.kind == "guarded" else 0.0
                each += TERM * sum(max(0, len(g.index.terms) - FEW_TERMS) for g in node.guards)
                each += LOOKED_UP if any(self._varies(e) for e in looked_up) else self._alone(apart, node.dtype)
                each += DIVIDED * self._divisions(node)
                self.others.append(each * self.lanes)
            case "piecewise":
                cost.loads += wide
                cost.ops += 2 * PLACE * (1 + len(node.guards))
            case "climbing":
                cost.loads += wide
                cost.ops += PLACE * (2 + lanes.step) + SORTED * wide
            case "strided" | "masked":
                cost.loads += wide * max(lanes.step, 1)
                cost.ops += SORTED * wide * max(lanes.step - 1, 0)
            case _:
                cost.loads += wide

    def _alone(self, apart: int | None, dtype: DType) -> float:
        """Cycles of an element that is loaded or stored by itself, so far apart from that of the next lane."""
        if apart is None:
            return OPEN
        if apart in (0, 1):
            return 0.0
        step = gcd(apart * dtype.bytes, SET)
        return IN_ONE_SET if step == SET else IN_FEW_SETS if step >= FEW_SETS else LANE

    def _divisions(self, node: Load) -> int:
        """Divisions by extents for one element: no vector has them. A quotient and its remainder are one."""
        found = (
            a for e in (*node.index, *(g.index for g in node.guards)) for a in atoms(e) if isinstance(a, (Div, Mod))
        )
        return len({(a.num, a.den) for a in found if a.den.constant is None and self._varies(a.num)})

    def _varies(self, e: Index) -> bool:
        """Whether an index differs between the lanes of a vector."""
        return self.vector is not None and self.vector in axes_of(self.whole(e))

    def _guards(self, guards: tuple[Guard, ...], cost: StatementCost) -> None:
        """Count guards: those that differ between the lanes of a vector are masks."""
        cost.ops += sum(2.0 if self._varies(g.index) else 1.0 for g in guards)

    def _touch(self, buffer: str, offset: Index, dtype: DType, *, stores: bool = False) -> int | None:
        """Remember what an access touches; the elements from lane to lane, None where that is no number."""
        whole = self.whole(offset)
        for a in loaded_in(offset):
            self._access(a.source, a.at[0] if a.at else ZERO, 1.0, 8)
        varies = self.vector is not None and self.vector in axes_of(whole)
        stride = coefficient(whole, self.vector) if varies and self.vector else ZERO
        apart = abs(stride.constant or 1) if stride is not None else 1
        elements = float(self.lanes) if varies else 1.0
        self._access(buffer, offset, elements, dtype.bytes, stores=stores, apart=apart)
        return stride.constant if stride is not None else None

    def _access(
        self, buffer: str, offset: Index, elements: float, size: int, *, stores: bool = False, apart: int = 1
    ) -> None:
        self.touched.append(Access(buffer, self.whole(offset), elements, size, (), stores, apart))
