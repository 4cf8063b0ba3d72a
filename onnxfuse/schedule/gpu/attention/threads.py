"""Attention by the arithmetic of threads: each has a few rows, keys and columns in registers."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Buffer, Let, Stmt, Store, When
from onnxfuse.ir.scalar import Guard, const
from onnxfuse.schedule.gpu.attention.block import Block
from onnxfuse.schedule.gpu.builders import at, axis, loop, of, plus, times, wide
from onnxfuse.schedule.gpu.tiles import THREADS, ThreadTile


@dataclass(frozen=True, slots=True)
class ByThreads(Block):
    """Products are sums of each thread: for the rows, keys and pieces of columns that are its own."""

    tile: ThreadTile

    @property
    def registers(self) -> tuple[Buffer, ...]:
        """Elements of all matrices that a thread has at a time, and its sums."""
        t = self.tile
        sizes = {
            "my_queries": t.rows_each * t.depth_step,
            "my_keys": t.keys_each * t.depth_step,
            "dots": t.rows_each * t.keys_each,
            "my_powers": t.rows_each * 4,
            "my_values": t.pieces_each * t.piece,
            "sums": t.rows_each * t.pieces_each * t.piece,
        }
        return tuple(Buffer(name, F32, Index.of(n), "register") for name, n in sizes.items())

    def thread(self, name: str) -> tuple[Axis, Index, Index]:
        """The number of a thread, and its place (y, x)."""
        t = axis(f"t{name}", THREADS)
        return t, floor_div(Index.of(t), Index.of(self.tile.wide)), modulo(Index.of(t), Index.of(self.tile.wide))

    def zeroed(self) -> Stmt:
        """Nothing is summed up yet."""
        t = self.tile
        r = axis("rz", t.rows_each * t.pieces_each * t.piece)
        return loop(r, "unroll", Store("sums", Index.of(r), const(0.0)))

    def scores(self) -> Stmt:
        """Products of the rows and keys of each thread, and the scores that they make."""
        t = self.tile
        thread, y, x = self.thread("s")
        i, j, v = axis("i", t.rows_each), axis("j", t.keys_each), axis("v", t.depth_step)
        d = axis("d", t.depth // t.depth_step)
        step, pitch = t.depth_step, t.query_pitch
        inner = Index.of(d) * step + v
        dot = Index.of(i) * t.keys_each + j
        row, key = y + Index.of(i) * t.high, x + Index.of(j) * t.wide
        q, k = Index.of(i) * step + v, Index.of(j) * step + v
        zero = loop(axis("n", t.rows_each * t.keys_each), "unroll",
                    Store("dots", Index.of(axis("n", t.rows_each * t.keys_each)), const(0.0)))  # fmt: skip
        more = Store("dots", dot, plus(at("dots", dot), times(at("my_queries", q), at("my_keys", k))))
        return loop(
            thread, "thread",
            zero,
            loop(d, "serial",
                 loop(i, "unroll", wide(v, Store("my_queries", q, at("queries", row * pitch + inner)))),
                 loop(j, "unroll", wide(v, Store("my_keys", k, at("tile_of_keys", key * pitch + inner)))),
                 loop(v, "unroll", loop(i, "unroll", loop(j, "unroll", more)))),
            loop(i, "unroll", loop(j, "unroll", *self.score(row, key, at("dots", dot)))),
        )  # fmt: skip

    def weighted(self) -> Stmt:
        """Values by the powers, added to the sums of each thread, which are scaled first."""
        t = self.tile
        thread, y, x = self.thread("o")
        i, j, v, u = axis("i", t.rows_each), axis("j", t.pieces_each), axis("v", t.piece), axis("u", 4)
        k = axis("kk", t.keys // 4)
        row, key = y + Index.of(i) * t.high, Index.of(k) * 4 + u
        piece = x + Index.of(j) * t.wide
        column = piece * t.piece + v
        place = (Index.of(i) * t.pieces_each + j) * t.piece + v
        p, values = Index.of(i) * 4 + u, Index.of(j) * t.piece + v
        scaled = loop(i, "unroll", Let("%scale", at("scale", row)), loop(j, "unroll", loop(v, "unroll",
                      Store("sums", place, times(at("sums", place), of("%scale"))))))  # fmt: skip
        read = wide(v, Store("my_values", values, at("tile_of_keys", key * t.value_pitch + column)))
        more = Store("sums", place, plus(at("sums", place), times(at("my_powers", p), at("my_values", values))))
        added = loop(j, "unroll", *self.in_columns(piece, read,
                     loop(i, "unroll", loop(v, "unroll", more))))  # fmt: skip
        return loop(
            thread, "thread",
            *(() if self.once else (scaled,)),
            loop(k, "serial",
                 loop(i, "unroll", wide(u, Store("my_powers", p, at("scores", row * t.score_pitch + key)))),
                 loop(u, "unroll", added)),
        )  # fmt: skip

    def in_columns(self, piece: Index, *body: Stmt) -> tuple[Stmt, ...]:
        """What is done for a piece of columns, where there are so many."""
        t = self.tile
        pieces = t.columns // t.piece
        return body if pieces % t.wide == 0 else (When((Guard(piece, Index.of(pieces)),), body),)

    def stored(self) -> Stmt:
        """The sums divided, what is made of them, and where that goes."""
        t = self.tile
        thread, y, x = self.thread("e")
        i, j, v = axis("i", t.rows_each), axis("j", t.pieces_each), axis("v", t.piece)
        row = y + Index.of(i) * t.high
        piece = x + Index.of(j) * t.wide
        place = (Index.of(i) * t.pieces_each + j) * t.piece + v
        made = self.result(self.first_row + row, piece * t.piece + v, self.value(at("sums", place)))
        rest = loop(j, "unroll", *self.in_columns(piece, loop(v, self.kind(made, v), made)))
        return loop(thread, "thread", loop(i, "unroll", *self.finished(row, rest)))
