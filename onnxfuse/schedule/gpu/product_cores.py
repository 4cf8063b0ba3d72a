"""Products by tensor cores: a warp owns a grid of 16 x 8 fragments of the result."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.fragments import WARP, Core, Fragment, side_by_side
from onnxfuse.ir.index import Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Buffer, Stmt, Store
from onnxfuse.ir.launch import Mma
from onnxfuse.schedule.gpu.builders import at, axis, elements, loop
from onnxfuse.schedule.gpu.product_block import LEFT, MADE, RIGHT, ProductBlock


@dataclass(frozen=True, slots=True)
class ProductByCores(ProductBlock):
    """Fragments of both sides are read from shared memory, those of the left side once for all columns of a warp."""

    @property
    def core(self) -> Core:
        """What multiplies."""
        core = self.p.tile.core
        assert isinstance(core, Core)
        return core

    @property
    def deep(self) -> bool:
        """A fragment of the right side wants neighbours along the depth."""
        return self.p.sizes.deep

    @property
    def high(self) -> int:
        """Fragments of a warp above each other."""
        return self.p.tile.rows // (self.p.tile.high * self.core.m)

    @property
    def wide(self) -> int:
        """And beside each other."""
        return self.p.tile.columns // (self.p.tile.wide * self.core.n)

    @property
    def registers(self) -> tuple[Buffer, ...]:
        """A column of fragments of the left side, one or two of the right side, and the sums."""

        def fragment(name: str, f: Fragment, count: int) -> Buffer:
            return Buffer(name, f.dtype, Index.of(f.registers * count), "fragment")

        c = self.core
        sides = fragment("left", c.left, self.high), fragment("right", c.right, self.together)
        return (*sides, fragment("sums", c.sums, self.high * self.wide))

    @property
    def together(self) -> int:
        """Fragments of the right side that are loaded at once."""
        return 2 if self.wide % 2 == 0 else 1

    def warp(self, name: str) -> tuple[Axis, Index, Index]:
        """The number of a warp, its first row and its first column."""
        t = self.p.tile
        w, wide = axis(f"w{name}", t.threads // WARP), Index.of(t.wide)
        row = floor_div(Index.of(w), wide) * (self.high * self.core.m)
        return w, row, modulo(Index.of(w), wide) * (self.wide * self.core.n)

    def multiplied(self, left: Index, right: Index) -> Stmt:
        """All products of fragments of a step."""
        t, c = self.p.tile, self.core
        w, row, column = self.warp("m")
        k, i, j = axis("k", t.depth // c.k), axis("i", self.high), axis("j", self.wide // self.together)
        again, each = axis("i2", self.high), axis("j2", self.together)
        step, read = Index.of(k) * c.k, Index.of(i) * c.left.registers

        def of_right(d: Index, n: Index) -> Index:
            n = column + Index.of(j) * (self.together * c.n) + n
            return right + (n * self.right_pitch + step + d if self.deep else (step + d) * self.right_pitch + n)

        fragments = elements("a", c.left, lambda m, d, r: (
            Store("left", read + r,
                  at(LEFT, left + (row + Index.of(i) * c.m + m) * self.left_pitch + step + d, t.dtype)),
        ), "vector")  # fmt: skip
        beside = elements("b", side_by_side(c.right, self.together, c.n), lambda d, n, r: (
            Store("right", r, at(RIGHT, of_right(d, n), t.dtype)),), "vector" if self.deep else "unroll")  # fmt: skip
        sums = (Index.of(again) * self.wide + Index.of(j) * self.together + each) * c.sums.registers
        right_at = Index.of(each) * c.right.registers
        product = Mma(c, "sums", sums, "left", Index.of(again) * c.left.registers, "right", right_at)
        products = loop(each, "unroll", loop(again, "unroll", product))
        inside = (loop(i, "unroll", fragments), loop(j, "unroll", beside, products))
        return loop(w, "warp", loop(k, "unroll", *inside))

    def left_behind(self) -> Stmt:
        """Each fragment of sums."""
        c = self.core
        w, row, column = self.warp("e")
        i, j = axis("i", self.high), axis("j", self.wide)
        sums = (Index.of(i) * self.wide + j) * c.sums.registers
        made = elements("c", c.sums, lambda m, n, r: (
            Store(MADE, (row + Index.of(i) * c.m + m) * self.made_pitch + column + Index.of(j) * c.n + n,
                  at("sums", sums + r)),
        ), "vector")  # fmt: skip
        return loop(w, "warp", loop(i, "unroll", loop(j, "unroll", made)))
