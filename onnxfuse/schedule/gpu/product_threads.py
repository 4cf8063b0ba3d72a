"""Products by scalar multiply-adds: each thread owns some rows by some groups of four columns of the result."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.cost.gpu_products import PIECE
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Buffer, Stmt, Store
from onnxfuse.schedule.gpu.builders import at, axis, loop, plus, times, wide
from onnxfuse.schedule.gpu.product_block import LEFT, MADE, RIGHT, ProductBlock


@dataclass(frozen=True, slots=True)
class ProductByThreads(ProductBlock):
    """Thread (y, x) has every high-th row from y on, and every wide-th piece of columns from x on."""

    @property
    def deep(self) -> bool:
        """Threads read pieces of columns."""
        return False

    @property
    def rows_each(self) -> int:
        """Rows of a thread."""
        return self.p.tile.rows // self.p.tile.high

    @property
    def pieces_each(self) -> int:
        """Pieces of columns of a thread."""
        return self.p.tile.columns // (self.p.tile.wide * PIECE)

    @property
    def registers(self) -> tuple[Buffer, ...]:
        """Elements of both sides that a thread has at a time, and its sums."""
        sizes = {
            "my_left": self.rows_each * PIECE,
            "my_right": self.pieces_each * PIECE,
            "sums": self.rows_each * self.pieces_each * PIECE,
        }
        return tuple(Buffer(name, F32, Index.of(n), "register") for name, n in sizes.items())

    def thread(self, name: str) -> tuple[Axis, Index, Index]:
        """The number of a thread, and its place (y, x)."""
        t, across = axis(f"t{name}", self.p.tile.threads), Index.of(self.p.tile.wide)
        return t, floor_div(Index.of(t), across), modulo(Index.of(t), across)

    def multiplied(self, left: Index, right: Index) -> Stmt:
        """All products of a step: four steps of the depth at a time."""
        t = self.p.tile
        thread, y, x = self.thread("m")
        i, j, v, u = axis("i", self.rows_each), axis("j", self.pieces_each), axis("v", PIECE), axis("u", PIECE)
        k = axis("k", t.depth // PIECE)
        mine, beside = Index.of(i) * PIECE, Index.of(j) * PIECE + v
        row = left + (y + Index.of(i) * t.high) * self.left_pitch + Index.of(k) * PIECE
        column = right + (Index.of(k) * PIECE + u) * self.right_pitch + (x + Index.of(j) * t.wide) * PIECE + v
        place = (Index.of(i) * self.pieces_each + j) * PIECE + v
        more = Store("sums", place, plus(at("sums", place), times(at("my_left", mine + u), at("my_right", beside))))
        return loop(
            thread, "thread",
            loop(k, "serial",
                 loop(i, "unroll", wide(v, Store("my_left", mine + v, at(LEFT, row + v, t.dtype)))),
                 loop(u, "unroll",
                      loop(j, "unroll", wide(v, Store("my_right", beside, at(RIGHT, column, t.dtype)))),
                      loop(i, "unroll", loop(j, "unroll", loop(v, "unroll", more))))),
        )  # fmt: skip

    def left_behind(self) -> Stmt:
        """The sums of each thread."""
        t = self.p.tile
        thread, y, x = self.thread("e")
        i, j, v = axis("i", self.rows_each), axis("j", self.pieces_each), axis("v", PIECE)
        to = (y + Index.of(i) * t.high) * self.made_pitch + (x + Index.of(j) * t.wide) * PIECE + v
        store = Store(MADE, to, at("sums", (Index.of(i) * self.pieces_each + j) * PIECE + v))
        return loop(thread, "thread", loop(i, "unroll", loop(j, "unroll", wide(v, store))))
