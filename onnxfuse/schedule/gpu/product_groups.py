"""Products by warpgroups (wgmma): a group of four warps owns 64 rows of the result, and reads both sides itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from onnxfuse.ir.dtype import F32, I64
from onnxfuse.ir.fragments import LINE, TENSOR_CORES, WARPGROUP, WarpgroupCore
from onnxfuse.ir.index import ZERO, Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Buffer, Loop, Stmt, Store, When
from onnxfuse.ir.launch import (
    MOST_BOX,
    BeginArrivals,
    Commit,
    CopyBox,
    Sync,
    Wait,
    WaitArrival,
    WaitProducts,
    WarpgroupMma,
)
from onnxfuse.ir.scalar import Guard
from onnxfuse.schedule.gpu.builders import at, axis, elements, loop
from onnxfuse.schedule.gpu.matrices import matrix_of
from onnxfuse.schedule.gpu.product_block import LEFT, MADE, RIGHT, ProductBlock
from onnxfuse.schedule.gpu.products import number_of, split_of
from onnxfuse.schedule.gpu.tiles import padded

ARRIVALS = "arrivals"


@dataclass(frozen=True, slots=True)
class ProductByGroups(ProductBlock):
    """One instruction for a group's columns and 16 steps of the depth; nothing but sums is in registers."""

    @property
    def core(self) -> WarpgroupCore:
        """What multiplies."""
        core = self.p.tile.core
        assert isinstance(core, WarpgroupCore)
        return core

    @property
    def deep(self) -> bool:
        """Pieces of the right side lie as the matrix does."""
        return self.p.sizes.deep

    @property
    def registers(self) -> tuple[Buffer, ...]:
        """The sums."""
        return (Buffer("sums", F32, Index.of(self.core.sums.registers), "fragment"),)

    def warp(self, name: str) -> tuple[Axis, Index, Index, Index]:
        """The number of a warp, the first row and the first column of its group, and its first row among these."""
        t, wide = self.p.tile, Index.of(self.p.tile.wide)
        w = axis(f"w{name}", t.threads // (self.core.lanes // WARPGROUP))
        group, own = floor_div(Index.of(w), Index.of(WARPGROUP)), modulo(Index.of(w), Index.of(WARPGROUP))
        row, column = floor_div(group, wide) * self.core.m, modulo(group, wide) * self.core.n
        return w, row, column, own * (self.core.m // WARPGROUP)

    def multiplied(self, left: Index, right: Index) -> Stmt:
        """All products of a step are begun."""
        w, row, column, _ = self.warp("m")
        right += column * LINE if self.deep else floor_div(column, Index.of(LINE)) * self.right_pitch
        return loop(w, "warp", WarpgroupMma(
            self.core, self.p.tile.depth, "sums", ZERO, LEFT, left + row * LINE, self.left_pitch, RIGHT, right,
            self.right_pitch, self.deep))  # fmt: skip

    def one_by_one(self) -> tuple[Stmt, ...]:
        """A step after the other."""
        step = axis("step", self.steps)
        sides = self.sides("", Index.of(step), ahead=False)
        made = self.multiplied(ZERO, ZERO), WaitProducts(0, "sums"), Sync("block")
        return (loop(step, "serial", *sides, Sync("block", units=True), *made),)

    def overlapped(self) -> tuple[Stmt, ...]:
        """The next steps come while one is multiplied, and another one may still be."""
        if self.p.tile.boxed:
            return self.by_boxes()
        t, step = self.p.tile, axis("step", self.steps)
        ahead = t.stages - 1 - t.pending
        first = axis("first", ahead)
        begun = loop(first, "serial", *self.sides("f", Index.of(first), ahead=True), Commit())
        then = Index.of(step) + ahead
        stage = modulo(Index.of(step), Index.of(t.stages))
        more = When((Guard(then, Index.of(self.steps)),), tuple(self.sides("n", then, ahead=True)))
        product_ = self.multiplied(stage * t.left, stage * t.right(deep=self.deep))
        there = Wait(ahead - 1), WaitProducts(t.pending, "sums"), Sync("block", units=True)
        return (begun, loop(step, "serial", *there, product_, more, Commit()), Wait(0), WaitProducts(0, "sums"))

    def shared(self) -> Iterator[Buffer]:
        """The buffers in shared memory: where boxes come, sums are where these were, and arrivals behind."""
        usual = list(ProductBlock.shared(self))
        if self.p.tile.boxed:
            usual = [replace(b, at=0) if b.name == MADE else b for b in usual]
            behind = max((b.at or 0) + padded((b.size.constant or 0) * b.dtype.bytes) for b in usual)
            usual.append(Buffer(ARRIVALS, I64, Index.of(self.p.tile.stages), "shared", behind))
        yield from usual

    def boxes(self, step: Index) -> Stmt:
        """One thread begins to copy both sides of a step."""
        t, p, columns = self.p.tile, self.p, Index.of(self.p.sizes.columns)
        stage, depth = modulo(step, Index.of(t.stages)), Index.of(p.sizes.depth)
        first = (number_of(split_of(t)) * self.steps + step) * t.depth
        left = matrix_of(p.left, p.rows, p.depth, self.places)
        right = matrix_of(p.right, *((p.columns, p.depth) if self.deep else (p.depth, p.columns)), self.places)
        assert left is not None and right is not None
        to, row, column = stage * t.right(deep=self.deep), self.first_row, self.first_column
        made = [CopyBox(LEFT, stage * t.left, left[0], self.rows, p.sizes.depth, left[1], row, first, t.rows, ARRIVALS,
                        stage)]  # fmt: skip
        for n in range(0, t.columns, MOST_BOX if self.deep else LINE):
            if self.deep:
                box, at_, size = (columns, p.sizes.depth), (column + n, first), min(MOST_BOX, t.columns - n)
            else:
                box, at_, size = (depth, p.sizes.columns), (first, column + n), t.depth
            made.append(CopyBox(RIGHT, to + n * LINE, right[0], *box, right[1], *at_, size, ARRIVALS, stage))
        return loop(axis("asks", 1), "thread", *made)

    def by_boxes(self) -> tuple[Stmt, ...]:
        """The copy engine brings the next steps while one is multiplied, and another one may still be."""
        t, step = self.p.tile, axis("step", self.steps)
        ahead = t.stages - 1 - t.pending
        first, then = axis("first", min(ahead, self.steps)), Index.of(step) + ahead
        stage, turn = modulo(Index.of(step), Index.of(t.stages)), floor_div(Index.of(step), Index.of(t.stages))
        each = self.boxes(Index.of(first))
        assert isinstance(each, Loop)
        ready = loop(axis("begins", 1), "thread", BeginArrivals(ARRIVALS, t.stages, len(each.body)))
        inside = (
            WaitProducts(t.pending, "sums"),
            Sync("block"),
            When((Guard(then, Index.of(self.steps)),), (self.boxes(then),)),
            WaitArrival(ARRIVALS, stage, turn),
            self.multiplied(stage * t.left, stage * t.right(deep=self.deep)),
        )
        begun = ready, loop(first, "serial", each)  # by the thread that asks; others meet a barrier first
        return (*begun, loop(step, "serial", *inside), WaitProducts(0, "sums"), Sync("block"))

    def left_behind(self) -> Stmt:
        """A warp's sums, eight columns at a time: as those of a tensor core."""
        (eight,) = (c for c in TENSOR_CORES if c.left.dtype == self.core.dtype)
        w, row, column, own = self.warp("e")
        j = axis("j", self.core.n // eight.n)
        made = elements("c", eight.sums, lambda m, n, r: (
            Store(MADE, (row + own + m) * self.made_pitch + column + Index.of(j) * eight.n + n,
                  at("sums", Index.of(j) * eight.sums.registers + r)),
        ), "vector")  # fmt: skip
        return loop(w, "warp", loop(j, "unroll", made))
