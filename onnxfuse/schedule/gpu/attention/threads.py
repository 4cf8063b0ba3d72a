"""Attention by the arithmetic of threads: each has a few rows, keys and columns in registers.

Scores of a tile go to shared memory; teams of lanes take the largest of each row and the powers below it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Accumulate, Buffer, Let, ReduceLoop, Stmt, Store, When
from onnxfuse.ir.launch import Sync
from onnxfuse.ir.scalar import Guard, Scalar, apply, const
from onnxfuse.schedule.gpu.attention.block import LOWEST, Block
from onnxfuse.schedule.gpu.builders import at, axis, loop, of, plus, times, wide
from onnxfuse.schedule.gpu.tiles import ROWS_EACH, THREADS, ThreadTile, ragged


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

    def block(self) -> tuple[Stmt, ...]:
        """What a block does for its rows."""
        start = () if self.once else (self.per_row("z", Store("highest", self.row_of("z"), const(LOWEST)),
                                                   Store("total", self.row_of("z"), const(0.0))),)  # fmt: skip
        tiles = self.over_tiles(self.of_keys())
        return (self.staged_queries(), *start, self.zeroed(), *tiles, self.stored(), *self.of_part(), Sync("block"))

    def of_keys(self) -> tuple[Stmt, ...]:
        """What a block does with a tile of keys."""
        again = () if self.once else (Sync("block"),)
        return (
            self.staged_keys(),
            Sync("block"),
            self.scores(),
            Sync("block"),
            self.staged_values(),
            self.powers(),
            Sync("block"),
            self.weighted(),
            *again,
        )

    def row_of(self, name: str) -> Index:
        """The row of the block that a thread has in a loop of `per_row`."""
        return Index.of(axis(f"t{name}", self.tile.rows))

    def per_row(self, name: str, *body: Stmt) -> Stmt:
        """Something that is done once for each row."""
        return loop(axis(f"t{name}", self.tile.rows), "thread", *body)

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
        before, score = self.score(row, key, at("dots", dot))
        return loop(
            thread, "thread",
            zero,
            loop(d, "serial",
                 loop(i, "unroll", wide(v, Store("my_queries", q, at("queries", row * pitch + inner)))),
                 loop(j, "unroll", wide(v, Store("my_keys", k, at("tile_of_keys", key * pitch + inner)))),
                 loop(v, "unroll", loop(i, "unroll", loop(j, "unroll", more)))),
            loop(i, "unroll", loop(j, "unroll", *before, Store("scores", row * t.score_pitch + key, score))),
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

    def powers(self) -> Stmt:
        """Of each row of scores the largest one, their powers below it, and the sum of these."""
        t = self.tile
        teams = THREADS // t.team
        each = min(ROWS_EACH, t.rows // teams)
        lanes = min(t.team, t.keys)
        team, turn, i, u, lane = (
            axis(*n)
            for n in (
                ("w", teams),
                ("turn", t.rows // teams // each),
                ("ip", each),
                ("u", t.keys // lanes),
                ("c", lanes),
            )
        )
        row, c = Index.of(team) + (Index.of(turn) * each + i) * teams, Index.of(u) * lanes + lane
        here = row * t.score_pitch + c
        first = axis("first", 1)
        highest: Scalar = of("%tile_high")
        if not self.once:
            highest = apply("max_or_second", highest, at("highest", row))
        nothing = apply("equal", of("%high"), const(LOWEST))
        power = apply("exp_or_zero", apply("sub", at("scores", here), of("%below")))
        total: Scalar = of("%sum_of_tile")
        kept: tuple[Stmt, ...] = (Store("total", row, total),)
        before: tuple[Stmt, ...] = ()
        if not self.once:
            scale = apply("exp_or_zero", apply("sub", at("highest", row), of("%below")))
            before = (Let("%scale", scale), Let("%total", plus(times(at("total", row), of("%scale")), total)))
            before = (*before, Sync("warp"))
            kept = (Store("highest", row, of("%high")), Store("scale", row, of("%scale")))
            kept = (*kept, Store("total", row, of("%total")))

        def of_lanes(*body: Stmt) -> Stmt:
            return loop(lane, "lane", loop(u, "unroll", *body))

        return loop(
            team, "warp", loop(turn, "serial",
            loop(i, "unroll",
                 self.of_row("%tile_high", "maxnum", of_lanes(
                     Accumulate(("%tile_high",), "maxnum", (at("scores", here),)))),
                 Let("%high", highest),
                 Let("%below", apply("select", nothing, const(0.0), of("%high"))),
                 self.of_row("%sum_of_tile", "sum", of_lanes(
                     Let("%power", power), Store("scores", here, of("%power")),
                     Accumulate(("%sum_of_tile",), "sum", (of("%power"),)))),
                 *before,
                 loop(first, "lane", *kept))),
        )  # fmt: skip

    def of_row(self, name: str, combine: str, body: Stmt) -> Stmt:
        """What the lanes at a row reduce together."""
        return ReduceLoop((name,), combine, F32, (body,), scope="warp")

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
        return loop(thread, "thread", loop(i, "unroll", *self.finished(row, at("total", row), rest)))

    def of_part(self) -> tuple[Stmt, ...]:
        """What whoever puts the parts together needs of each row."""
        if self.parts is None:
            return ()
        row = self.first_row + self.row_of("p")
        at_row = self.parts.row(self.a, row)
        left: tuple[Stmt, ...] = tuple(
            Store(name, at_row, at(mine, self.row_of("p")))
            for name, mine in ((self.parts.highest, "highest"), (self.parts.total, "total"))
        )
        few = ragged(self.rows, self.tile.rows)
        return (self.per_row("p", *((When((Guard(row, self.rows),), left),) if few else left)),)
