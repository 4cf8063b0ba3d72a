"""Attention by tensor cores: a warp owns 16 query rows, and its share of the keys or columns in groups of eight.

Fragments of the right side are loaded two at a time where a warp has an even number of groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.fragments import WARP, Core, Fragment, side_by_side
from onnxfuse.ir.index import ZERO, Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Buffer, Loop, LoopKind, Stmt, Store
from onnxfuse.ir.launch import Mma
from onnxfuse.ir.scalar import const
from onnxfuse.schedule.gpu.attention.block import Block
from onnxfuse.schedule.gpu.builders import at, axis, elements, loop, times
from onnxfuse.schedule.gpu.tiles import THREADS, CoreTile

SPELLED_OUT = 64  # products of a warp that are no loop


def together(count: int) -> int:
    """How many of so many fragments of the right side are loaded at once."""
    return 2 if count % 2 == 0 else 1


def turns(products: int) -> LoopKind:
    """Whether a loop of so many products of a warp is spelled out."""
    return "unroll" if products <= SPELLED_OUT else "serial"


@dataclass(frozen=True, slots=True)
class ByCores(Block):
    """Products are those of fragments: of queries and keys, and of powers, rounded to their type, and values."""

    tile: CoreTile

    @property
    def core(self) -> Core:
        """What multiplies."""
        return self.tile.core

    @property
    def registers(self) -> tuple[Buffer, ...]:
        """A fragment of the left side, one or two of the right side, and the sums of all products of a warp."""
        t, c = self.tile, self.core

        def fragment(name: str, f: Fragment, count: int = 1) -> Buffer:
            return Buffer(name, f.dtype, Index.of(f.registers * count), "fragment")

        most = max(together(t.keys_each), together(t.columns_each))
        sides = fragment("left", c.left), fragment("right", c.right, most)
        return (*sides, fragment("dots", c.sums, t.keys_each), fragment("sums", c.sums, t.columns_each))

    def warp(self, name: str) -> tuple[Axis, Index, Index]:
        """The number of a warp, its first row, and which of the warps at the same rows it is."""
        w = axis(f"w{name}", THREADS // WARP)
        wide = Index.of(self.tile.wide)
        return w, floor_div(Index.of(w), wide) * self.core.m, modulo(Index.of(w), wide)

    def zeros(self, buffer: str, count: int) -> Stmt:
        """Fragments in which nothing is summed up yet."""
        r = axis(f"r_{buffer}", count * self.core.sums.registers)
        return loop(r, "unroll", Store(buffer, Index.of(r), const(0.0)))

    def zeroed(self) -> Stmt:
        """Nothing is summed up yet."""
        return self.zeros("sums", self.tile.columns_each)

    def left(self, source: str, row: Index, pitch: int, step: Index) -> Loop:
        """16 rows of 16 elements each, from an element of shared memory on."""
        half = self.tile.dtype
        return elements("a", self.core.left, lambda m, k, r: (
            Store("left", r, at(source, (row + m) * pitch + step + k, half)),), "vector")  # fmt: skip

    def scores(self) -> Stmt:
        """Products of the rows and keys of each warp, and the scores that they make."""
        t, c, keys = self.tile, self.core, "tile_of_keys"
        w, row, number = self.warp("s")
        beside = together(t.keys_each)
        j, d, each = axis("j", t.keys_each // beside), axis("d", t.depth // c.k), axis("each", beside)
        first, step = number * (t.keys_each * c.n), Index.of(d) * c.k
        key, dots = first + Index.of(j) * (beside * c.n), (Index.of(j) * beside + each) * c.sums.registers
        right = elements("b", side_by_side(c.right, beside, c.n), lambda k, n, r: (
            Store("right", r, at(keys, (key + n) * t.query_pitch + step + k, t.dtype)),), "vector")  # fmt: skip
        product = Mma(c, "dots", dots, "left", ZERO, "right", Index.of(each) * c.right.registers)
        i = axis("i", t.keys_each)
        made = elements("c", c.sums, lambda m, n, r: self.score(
            row + m, first + Index.of(i) * c.n + n, at("dots", Index.of(i) * c.sums.registers + r)))  # fmt: skip
        return loop(
            w, "warp",
            self.zeros("dots", t.keys_each),
            loop(d, turns(t.depth // c.k * t.keys_each), self.left("queries", row, t.query_pitch, step),
                 loop(j, "unroll", right, loop(each, "unroll", product))),
            loop(i, "unroll", made),
        )  # fmt: skip

    def weighted(self) -> Stmt:
        """Values by the powers, added to the sums of each warp, which are scaled first."""
        t, c = self.tile, self.core
        w, row, number = self.warp("o")
        beside = together(t.columns_each)
        j, k, each = axis("j", t.columns_each // beside), axis("kk", t.keys // c.k), axis("each", beside)
        column = number * (t.columns_each * c.n) + Index.of(j) * (beside * c.n)
        sums, step = (Index.of(j) * beside + each) * c.sums.registers, Index.of(k) * c.k
        right = elements("b", side_by_side(c.right, beside, c.n), lambda key, n, r: (
            Store("right", r, at(t.values, (step + key) * t.value_pitch + column + n, t.dtype)),))  # fmt: skip
        product = Mma(c, "sums", sums, "left", ZERO, "right", Index.of(each) * c.right.registers)
        i = axis("i", t.columns_each)
        sum_ = Index.of(i) * c.sums.registers
        scaled = elements("z", c.sums, lambda m, n, r: (
            Store("sums", sum_ + r, times(at("sums", sum_ + r), at("scale", row + m))),))  # fmt: skip
        return loop(
            w, "warp",
            *(() if self.once else (loop(i, "unroll", scaled),)),
            loop(k, turns(t.keys // c.k * t.columns_each), self.left("powers", row, t.power_pitch, step),
                 loop(j, "unroll", right, loop(each, "unroll", product))),
        )  # fmt: skip

    def stored(self) -> Stmt:
        """The sums divided, what is made of them, and where that goes."""
        t, c = self.tile, self.core
        w, row, number = self.warp("e")
        lane, half, j, v = axis("lane_e", c.lanes), axis("half_e", 2), axis("j", t.columns_each), axis("v", 2)
        register = Index.of(half) * 2 + v
        m, n = c.sums.element(Index.of(lane), register)
        column = (number * t.columns_each + j) * c.n + n
        sum_ = at("sums", Index.of(j) * c.sums.registers + register)
        made = self.result(self.first_row + row + m, column, self.value(sum_))
        rest = loop(j, "unroll", loop(v, self.kind(made, v), made))
        return loop(w, "warp", loop(lane, "lane", loop(half, "unroll", *self.finished(row + m, rest))))
