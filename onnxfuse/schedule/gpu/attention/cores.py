"""Attention by tensor cores: a warp owns 16 query rows, and its share of the keys or columns in groups of eight.

Scores stay in the registers that they were summed up in. Lanes that have parts of a row tell each other the largest
ones, and in the end the sums of powers, through shared memory; so do warps that share rows, which exchange powers too.
Fragments of the right side are loaded two at a time where a warp has an even number of groups. With two stages the next
keys and values come in the background while those at hand are multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.fragments import WARP, Core, Fragment, side_by_side
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, modulo
from onnxfuse.ir.kernel import Accumulate, Buffer, Let, Loop, LoopKind, ReduceLoop, Stmt, Store, When
from onnxfuse.ir.launch import Commit, Mma, Sync, Wait
from onnxfuse.ir.scalar import Guard, Scalar, apply, cast, const
from onnxfuse.schedule.gpu.attention.block import LOWEST, Block
from onnxfuse.schedule.gpu.builders import at, axis, elements, loop, of, plus, times, wide
from onnxfuse.schedule.gpu.shared_copies import copied, staged
from onnxfuse.schedule.gpu.tiles import SHARERS, THREADS, CoreTile

HALVES = 2  # rows that a lane has elements of
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
        """A fragment of the left side, one or two of the right side, and the sums of all products of a warp.

        Of the two rows of a lane, the largest score so far and the sum of its own powers.
        """
        t, c = self.tile, self.core

        def fragment(name: str, f: Fragment, count: int = 1) -> Buffer:
            return Buffer(name, f.dtype, Index.of(f.registers * count), "fragment")

        most = max(together(t.keys_each), together(t.columns_each))
        sides = fragment("left", c.left), fragment("right", c.right, most)
        rows = [
            Buffer(name, F32, Index.of(HALVES), "fragment") for name in (*(() if self.once else ("highs",)), "totals")
        ]
        others = Buffer("others", F32, Index.of(SHARERS * t.wide), "register")
        return (*sides, fragment("dots", c.sums, t.keys_each), fragment("sums", c.sums, t.columns_each), *rows, others)

    def block(self) -> tuple[Stmt, ...]:
        """What a block does for its rows."""
        first: tuple[Stmt, ...] = (self.zeros("sums", self.tile.columns_each * self.core.sums.registers),)
        last: tuple[Stmt, ...] = ()
        if not self.once:
            first = (*first, self.zeros("totals", HALVES), self.zeros("highs", HALVES, LOWEST))
            last = (loop(self.warp, "warp", self.of_lanes(*self.left_behind("totals"))), Sync("block"))
        if self.overlaps:
            begun = When((Guard(ZERO, self.seen_tiles()),), self.copied(ZERO, "f"))
            tiles = (begun, Commit(), self.staged_queries(), *first, *self.over_tiles(self.of_keys()), Wait(0))
            return (*tiles, *last, self.stored(), Sync("block"))
        tiles = self.over_tiles(self.of_keys())
        return (self.staged_queries(), *first, *tiles, *last, self.stored(), Sync("block"))

    @property
    def overlaps(self) -> bool:
        """Whether the next tile of keys comes while one is multiplied."""
        return self.tile.in_background

    @property
    def stage(self) -> Index:
        """Where the tile at hand lies."""
        return modulo(Index.of(self.tile_axis), Index.of(self.tile.stages)) if self.overlaps else ZERO

    def copied(self, tile: Index, name: str) -> tuple[Stmt, ...]:
        """Keys and values of one of the block's tiles go to shared memory, in the background where they may."""
        t, first = self.tile, self.key_of(tile)
        stage = modulo(tile, Index.of(t.stages))
        keys = self.matrix_of_keys(first, stage * (t.keys * t.query_pitch))
        values = self.matrix_of_values(first, stage * (t.keys * t.value_pitch))
        sides = ((f"k{name}", keys, self.a.key), (f"v{name}", values, self.a.value))
        given = [(side, m, x, self.places, THREADS) for side, m, x in sides]
        return tuple(copied(*each) or staged(*each) for each in given)

    def of_keys(self) -> tuple[Stmt, ...]:
        """What a block does with a tile of keys. Warps that have rows for themselves wait for no other."""
        scores = (*self.scores(), self.of_lanes(*self.left_behind("highs")))
        powers, weighted = self.powers(), self.weighted()
        made: tuple[Stmt, ...] = (loop(self.warp, "warp", *scores, Sync("warp"), *powers, *weighted),)
        if not self.alone:
            parts = [loop(self.warp, "warp", *part) for part in (scores, powers, weighted)]
            made = (parts[0], Sync("block"), parts[1], Sync("block"), parts[2])
        if self.overlaps:
            then = Index.of(self.tile_axis) + 1
            more = When((Guard(then, self.seen_tiles()),), self.copied(then, "n"))
            return (Wait(0), Sync("block"), more, Commit(), *made)
        again = () if self.once else (Sync("block"),)
        return (self.staged_keys(), self.staged_values(), Sync("block"), *made, *again)

    @property
    def alone(self) -> bool:
        """Whether each warp has rows for itself."""
        return self.tile.wide == 1

    @property
    def warp(self) -> Axis:
        """The number of a warp."""
        return axis("w", THREADS // WARP)

    @property
    def row(self) -> Index:
        """The first row of a warp."""
        return floor_div(Index.of(self.warp), Index.of(self.tile.wide)) * self.core.m

    @property
    def number(self) -> Index:
        """Which of the warps at the same rows it is."""
        return modulo(Index.of(self.warp), Index.of(self.tile.wide))

    def zeros(self, buffer: str, count: int, number: float = 0.0) -> Stmt:
        """Registers in which nothing is summed up yet."""
        r = axis(f"r_{buffer}", count)
        return loop(r, "unroll", Store(buffer, Index.of(r), const(number)))

    # Rows -------------------------------------------------------------------------------------------------------------
    #
    # A lane has elements of two rows, one in each half of its sums; four lanes of each warp have the others of a row.

    @property
    def lane(self) -> Axis:
        """A lane that has parts of two rows."""
        return axis("lane_r", self.core.lanes)

    @property
    def half(self) -> Axis:
        """Which of these rows."""
        return axis("half_r", HALVES)

    @property
    def own_row(self) -> Index:
        """The row of a lane, of the block."""
        m, _ = self.core.sums.element(Index.of(self.lane), Index.of(self.half) * 2)
        return self.row + m

    @property
    def sharer(self) -> Index:
        """Which of the lanes that have parts of a row it is."""
        return self.number * SHARERS + modulo(Index.of(self.lane), Index.of(SHARERS))

    def of_lanes(self, *body: Stmt) -> Stmt:
        """Something that each lane does for each of its rows."""
        return loop(self.lane, "lane", loop(self.half, "unroll", *body))

    def own(self, buffer: str, count: int, body: Callable[[Index], tuple[Stmt, ...]]) -> Stmt:
        """What is done with all elements that a lane has of a row, in so many fragments of sums."""
        i, v = axis(f"i_{buffer}", count), axis(f"v_{buffer}", 2)
        at_ = Index.of(i) * self.core.sums.registers + Index.of(self.half) * 2 + v
        return loop(i, "unroll", loop(v, "unroll", *body(at_)))

    def left_behind(self, what: str) -> tuple[Stmt, ...]:
        """What a lane has found for a row goes where the others that have parts of it look."""
        place = (
            self.own_row * self.tile.sharer_pitch
            + self.number * SHARERS
            + modulo(Index.of(self.lane), Index.of(SHARERS))
        )
        if what == "totals":
            return (Store("all_totals", place, at("totals", Index.of(self.half))),)
        more = self.own("dots", self.tile.keys_each, lambda e: (Accumulate(("%most",), "maxnum", (at("dots", e),)),))
        most = ReduceLoop(("%most",), "maxnum", F32, (more,))
        return most, Store("all_highs", place, of("%most"))

    def of_all(self, name: str, what: str, combine: str) -> tuple[Stmt, ...]:
        """What all lanes that have parts of a row have found together."""
        count = SHARERS * self.tile.wide
        k, v, e = axis("k", count // SHARERS), axis("v", SHARERS), axis("e", count)
        at_ = Index.of(k) * SHARERS + v
        read = wide(v, Store("others", at_, at(what, self.own_row * self.tile.sharer_pitch + at_)))
        combined = loop(e, "unroll", Accumulate((name,), combine, (at("others", Index.of(e)),)))
        return loop(k, "unroll", read), ReduceLoop((name,), combine, F32, (combined,))

    # Products ---------------------------------------------------------------------------------------------------------

    def left(self, source: str, row: Index, pitch: int, step: Index) -> Loop:
        """16 rows of 16 elements each, from an element of shared memory on."""
        half = self.tile.dtype
        return elements("a", self.core.left, lambda m, k, r: (
            Store("left", r, at(source, (row + m) * pitch + step + k, half)),), "vector")  # fmt: skip

    def scores(self) -> tuple[Stmt, ...]:
        """Products of the rows and keys of each warp, and the scores that they make, in the same registers."""
        t, c, keys = self.tile, self.core, "tile_of_keys"
        beside = together(t.keys_each)
        j, d, each = axis("j", t.keys_each // beside), axis("d", t.depth // c.k), axis("each", beside)
        first, step, place = self.number * (t.keys_each * c.n), Index.of(d) * c.k, self.stage * (t.keys * t.query_pitch)
        key, dots = first + Index.of(j) * (beside * c.n), (Index.of(j) * beside + each) * c.sums.registers
        right = elements("b", side_by_side(c.right, beside, c.n), lambda k, n, r: (
            Store("right", r, at(keys, place + (key + n) * t.query_pitch + step + k, t.dtype)),), "vector")  # fmt: skip
        product = Mma(c, "dots", dots, "left", ZERO, "right", Index.of(each) * c.right.registers)
        i = axis("i", t.keys_each)

        def score(m: Index, n: Index, r: Index) -> tuple[Stmt, ...]:
            dot = Index.of(i) * c.sums.registers + r
            before, made = self.score(self.row + m, first + Index.of(i) * c.n + n, at("dots", dot))
            return (*before, Store("dots", dot, made))

        return (
            self.zeros("dots", t.keys_each * c.sums.registers),
            loop(d, turns(t.depth // c.k * t.keys_each), self.left("queries", self.row, t.query_pitch, step),
                 loop(j, "unroll", right, loop(each, "unroll", product))),
            loop(i, "unroll", elements("c", c.sums, score)),
        )  # fmt: skip

    def powers(self) -> tuple[Stmt, ...]:
        """The powers of a lane's scores below the largest one of the row, and what they add to its total.

        They stay in its registers where they are multiplied from there.
        """
        t, c, half = self.tile, self.core, Index.of(self.half)
        highest: Scalar = of("%all_most")
        before: tuple[Stmt, ...] = ()
        total: Scalar = of("%own")
        if not self.once:
            highest = apply("max_or_second", highest, at("highs", half))
            scale = apply("exp_or_zero", apply("sub", at("highs", half), of("%below")))
            scaled = self.own("sums", t.columns_each, lambda e: (
                Store("sums", e, times(at("sums", e), of("%scale"))),))  # fmt: skip
            before = (Let("%scale", scale), Store("highs", half, of("%high")), scaled)
            total = plus(times(at("totals", half), of("%scale")), total)
        nothing = apply("equal", of("%high"), const(LOWEST))
        power = self.own("dots", t.keys_each, lambda e: (
            Let("%power", apply("exp_or_zero", apply("sub", at("dots", e), of("%below")))),
            Store("dots", e, of("%power")), Accumulate(("%own",), "sum", (of("%power"),))))  # fmt: skip
        made = self.of_lanes(
            *self.of_all("%all_most", "all_highs", "maxnum"),
            Let("%high", highest),
            Let("%below", apply("select", nothing, const(0.0), of("%high"))),
            *before,
            ReduceLoop(("%own",), "sum", F32, (power,)),
            Store("totals", half, total),
            *(self.left_behind("totals") if self.once else ()),
        )
        if self.alone:
            return (made,)
        i, first = axis("i", t.keys_each), self.number * (t.keys_each * c.n)
        shared = elements("p", c.sums, lambda m, n, r: (
            Store("powers", (self.row + m) * t.power_pitch + first + Index.of(i) * c.n + n,
                  at("dots", Index.of(i) * c.sums.registers + r)),), "vector")  # fmt: skip
        return made, loop(i, "unroll", shared)

    def weighted(self) -> tuple[Stmt, ...]:
        """Values by the powers, added to the sums of each warp."""
        t, c = self.tile, self.core
        beside = together(t.columns_each)
        j, k, each = axis("j", t.columns_each // beside), axis("kk", t.keys // c.k), axis("each", beside)
        column = self.number * (t.columns_each * c.n) + Index.of(j) * (beside * c.n)
        sums, step = (Index.of(j) * beside + each) * c.sums.registers, Index.of(k) * c.k
        place = self.stage * (t.keys * t.value_pitch)
        right = elements("b", side_by_side(c.right, beside, c.n), lambda key, n, r: (
            Store("right", r, at(t.values, place + (step + key) * t.value_pitch + column + n, t.dtype)),))  # fmt: skip
        product = Mma(c, "sums", sums, "left", ZERO, "right", Index.of(each) * c.right.registers)
        left = self.left("powers", self.row, t.power_pitch, step)
        kind = turns(t.keys // c.k * t.columns_each)
        if self.alone:  # two fragments of sums are one of the left side
            lane, r = axis("lane_a", c.lanes), axis("r_a", c.left.registers)
            left = loop(lane, "lane", loop(r, "unroll", Store(
                "left", Index.of(r), cast(at("dots", Index.of(k) * c.left.registers + r), t.dtype))))  # fmt: skip
            kind = "unroll"
        return (loop(k, kind, left, loop(j, "unroll", right, loop(each, "unroll", product))),)

    def stored(self) -> Stmt:
        """The sums divided, what is made of them, and where that goes."""
        t, c = self.tile, self.core
        half, j, v = Index.of(self.half), axis("j", t.columns_each), axis("v", 2)
        _, n = c.sums.element(Index.of(self.lane), half * 2 + v)
        column = (self.number * t.columns_each + j) * c.n + n
        sum_ = at("sums", Index.of(j) * c.sums.registers + half * 2 + v)
        made = self.result(self.first_row + self.own_row, column, self.value(sum_))
        rest: tuple[Stmt, ...] = (loop(j, "unroll", loop(v, self.kind(made, v), made)),)
        if self.parts is not None:
            at_row = self.parts.row(self.a, self.first_row + self.own_row)
            of_part = (
                Store(self.parts.highest, at_row, at("highs", half)),
                Store(self.parts.total, at_row, of("%total")),
            )
            rest = (*rest, When((Guard(self.sharer, ONE),), of_part))
        finished = self.finished(self.own_row, of("%total"), *rest)
        return loop(
            self.warp, "warp", Sync("warp"), self.of_lanes(*self.of_all("%total", "all_totals", "sum"), *finished)
        )
