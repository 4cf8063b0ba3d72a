"""Attention by tensor cores: a warp owns 16 query rows, and its share of the keys or columns in groups of eight."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.fragments import WARP, Core, Fragment
from onnxfuse.ir.index import ZERO, Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Buffer, Loop, Stmt, Store
from onnxfuse.ir.launch import Mma
from onnxfuse.ir.scalar import const
from onnxfuse.schedule.gpu.attention.block import Block
from onnxfuse.schedule.gpu.builders import at, axis, elements, loop, times
from onnxfuse.schedule.gpu.tiles import THREADS, CoreTile


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
        """One fragment of each side, and the sums of all products of a warp."""
        t, c = self.tile, self.core

        def fragment(name: str, f: Fragment, count: int = 1) -> Buffer:
            return Buffer(name, f.dtype, Index.of(f.registers * count), "fragment")

        sides = fragment("left", c.left), fragment("right", c.right)
        return (*sides, fragment("dots", c.sums, t.keys_each), fragment("sums", c.sums, t.columns_each))

    def warp(self, name: str) -> tuple[Axis, Index, Index]:
        """The number of a warp, its first row, and the number of its first eight keys or columns."""
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
        w, row, first = self.warp("s")
        j, d = axis("j", t.keys_each), axis("d", t.depth // c.k)
        key = (first + Index.of(j) * t.wide) * c.n
        dots, step = Index.of(j) * c.sums.registers, Index.of(d) * c.k
        right = elements("b", c.right, lambda k, n, r: (
            Store("right", r, at(keys, (key + n) * t.query_pitch + step + k, t.dtype)),), "vector")  # fmt: skip
        made = elements("c", c.sums, lambda m, n, r: self.score(row + m, key + n, at("dots", dots + r)))
        return loop(
            w, "warp",
            self.zeros("dots", t.keys_each),
            loop(d, "serial", self.left("queries", row, t.query_pitch, step),
                 loop(j, "unroll", right, Mma(c, "dots", dots, "left", ZERO, "right", ZERO))),
            loop(j, "unroll", made),
        )  # fmt: skip

    def weighted(self) -> Stmt:
        """Values by the powers, added to the sums of each warp, which are scaled first."""
        t, c = self.tile, self.core
        w, row, first = self.warp("o")
        j, k = axis("j", t.columns_each), axis("kk", t.keys // c.k)
        column = (first + Index.of(j) * t.wide) * c.n
        sums, step = Index.of(j) * c.sums.registers, Index.of(k) * c.k
        right = elements("b", c.right, lambda key, n, r: (
            Store("right", r, at("tile_of_keys", (step + key) * t.value_pitch + column + n, t.dtype)),))  # fmt: skip
        scaled = elements("z", c.sums, lambda m, n, r: (
            Store("sums", sums + r, times(at("sums", sums + r), at("scale", row + m))),))  # fmt: skip
        return loop(
            w, "warp",
            *(() if self.once else (loop(j, "unroll", scaled),)),
            loop(k, "serial", self.left("powers", row, t.power_pitch, step),
                 loop(j, "unroll", right, Mma(c, "sums", sums, "left", ZERO, "right", ZERO))),
        )  # fmt: skip

    def stored(self) -> Stmt:
        """The sums divided, what is made of them, and where that goes."""
        t, c = self.tile, self.core
        w, row, first = self.warp("e")
        lane, half, j, v = axis("lane_e", c.lanes), axis("half_e", 2), axis("j", t.columns_each), axis("v", 2)
        register = Index.of(half) * 2 + v
        m, n = c.sums.element(Index.of(lane), register)
        column = (first + Index.of(j) * t.wide) * c.n + n
        sum_ = at("sums", Index.of(j) * c.sums.registers + register)
        made = self.result(self.first_row + row + m, column, self.value(sum_))
        rest = loop(j, "unroll", loop(v, self.kind(made, v), made))
        return loop(w, "warp", loop(lane, "lane", loop(half, "unroll", *self.finished(row + m, rest))))
