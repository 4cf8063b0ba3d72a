"""Attention by one block: some query rows, with tiles of keys and values in shared memory, one tile after the other.

Scores of a tile go to shared memory; teams of lanes take the largest of each row and the powers below it; the sums of
values by these stay in registers. With several tiles of keys the sums so far are scaled when a larger score turns up
(online softmax); they are divided in the end alone. Rows that hide shares count as 0 if values are finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.compose import rebuild, substitute_axes
from onnxfuse.ir.dtype import BOOL, F32, I32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div, greatest, least, modulo, nonnegative
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Accumulate, Bind, Buffer, Let, Loop, LoopKind, Phase, ReduceLoop, Stmt, Store, When
from onnxfuse.ir.launch import ALIGNED, Launch, Sync
from onnxfuse.ir.scalar import Const, FromIndex, Guard, Scalar, apply, const, variable
from onnxfuse.schedule.analysis.attention import DOT, HIDES_NAN, SUM, Attention
from onnxfuse.schedule.analysis.causal_masks import hidden_below
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.gpu.attention.parts import KeySplits
from onnxfuse.schedule.gpu.builders import at, axis, loop, of, plus, times
from onnxfuse.schedule.gpu.shared_copies import Matrix, staged
from onnxfuse.schedule.gpu.tiles import RESIDENT, ROWS_EACH, THREADS, AttentionTile, padded, ragged
from onnxfuse.target import Gpu

LOWEST = float("-inf")


@dataclass(frozen=True, slots=True)
class Block(ABC):
    """Writes the statements of a phase; what makes products is left to those who derive from it."""

    a: Attention
    tile: AttentionTile
    places: Mapping[str, Place]
    parts: KeySplits | None = None  # of the keys, each of which a block of its own has

    @property
    def part(self) -> Index:
        """Which part of the keys the block has."""
        return Index.of(self.parts.axis) if self.parts is not None else ZERO

    @property
    def first_row(self) -> Index:
        """The first row of the block."""
        return Index.of(axis("tile", self.row_tiles)) * self.tile.rows

    @property
    def rows(self) -> Index:
        """All rows of a batch."""
        return product([x.extent for x in self.a.rows])

    @property
    def keys(self) -> Index:
        """All keys."""
        return product([x.extent for x in self.a.keys])

    @property
    def row_tiles(self) -> Index:
        """Tiles of rows of a batch."""
        return floor_div(self.rows + (self.tile.rows - 1), Index.of(self.tile.rows))

    @property
    def key_tiles(self) -> Index:
        """Tiles of keys."""
        return floor_div(self.keys + (self.tile.keys - 1), Index.of(self.tile.keys))

    @property
    def own_tiles(self) -> Index:
        """Tiles of keys of a block; behind the last one are some that are hidden."""
        count = self.parts.count if self.parts is not None else 1
        return floor_div(self.key_tiles + (count - 1), Index.of(count))

    @property
    def few_keys(self) -> bool:
        """Whether the last tile may not be full, or not there."""
        return self.parts is not None or ragged(self.keys, self.tile.keys)

    def seen_tiles(self) -> Index:
        """Tiles of keys of a block that some row of it sees: a causal mask hides those behind.

        What is hidden is not read: a NaN among such values does not show, as it would times 0.
        """
        sign = hidden_below(self.a.score)
        if sign is None or self.parts is not None or len(self.a.keys) != 1:
            return self.own_tiles
        (key,) = self.a.keys
        rows = [x for x in self.a.rows if coefficient(sign, x) == ONE]
        ahead = substitute(sign, {key: ZERO} | dict.fromkeys(rows, ZERO))
        if len(rows) != 1 or coefficient(sign, key) != -ONE or axes_of(ahead) or not nonnegative(ahead):
            return self.own_tiles
        seen = self.last_of(rows[0]) + ahead
        return least(self.own_tiles, floor_div(seen + (self.tile.keys - 1), Index.of(self.tile.keys)))

    def last_of(self, x: Axis) -> Index:
        """How far an axis of the rows goes in a block: what is behind the largest value that it has there, or more.

        Rows may be those of several heads, one head after the other or side by side.
        """
        at = self.a.rows.index(x)
        inner = product([y.extent for y in self.a.rows[at + 1 :]])
        first, last = floor_div(self.first_row, inner), floor_div(self.first_row + (self.tile.rows - 1), inner)
        return least(x.extent, (modulo(first, x.extent) if at else first) + (last - first) + 1)

    @property
    def once(self) -> bool:
        """Whether all keys are one tile."""
        return self.key_tiles == ONE

    @property
    def first_key(self) -> Index:
        """The first key of the tile at hand."""
        if self.once:
            return ZERO
        return (self.part * self.own_tiles + axis("keys", self.own_tiles)) * self.tile.keys

    def phase(self, target: Gpu) -> Phase:
        """The phase."""
        t = self.tile
        over = (*self.a.batch, axis("tile", self.row_tiles), *([self.parts.axis] if self.parts is not None else []))
        extents = tuple(x.extent for x in over)
        blocks = product(extents)
        block = Axis("block", blocks)
        where = [Bind(x, e) for x, e in zip(over, unflatten(Index.of(block), extents), strict=True)]
        body = (*where, *self.block())
        buffers = self.buffers()
        grid = greatest(ONE, least(blocks, Index.of(target.blocks)))
        shared = Index.of(t.bytes(once=self.once))
        launch = Launch(grid, Index.of(THREADS), shared, lanes=t.team, resident=RESIDENT)
        return Phase((), ONE, buffers, (loop(block, "block", *body),), launch=launch)

    @property
    @abstractmethod
    def registers(self) -> tuple[Buffer, ...]:
        """What a thread holds in registers."""

    @abstractmethod
    def zeroed(self) -> Stmt:
        """Nothing is summed up yet."""

    @abstractmethod
    def scores(self) -> Stmt:
        """Products of rows and keys, and the scores that they make, which go to shared memory."""

    @abstractmethod
    def weighted(self) -> Stmt:
        """Values by the powers, added to the sums, which are scaled first."""

    @abstractmethod
    def stored(self) -> Stmt:
        """What is made of the sums, and where that goes."""

    def buffers(self) -> tuple[Buffer, ...]:
        """Shared memory, and the registers of a thread."""
        made, place = [], 0
        for name, dtype, size in self.tile.shared(once=self.once):
            made.append(Buffer(name, dtype, Index.of(size), "shared", place))
            place += padded(size * dtype.bytes)
        return (*made, *self.registers)

    def block(self) -> tuple[Stmt, ...]:
        """What a block does for its rows."""
        start = () if self.once else (self.per_row("z", Store("highest", self.row_of("z"), const(LOWEST)),
                                                   Store("total", self.row_of("z"), const(0.0))),)  # fmt: skip
        tiles: tuple[Stmt, ...] = self.of_keys()
        if not self.once:
            keys = axis("keys", self.own_tiles)
            tiles = (Loop(keys, ZERO, self.seen_tiles(), "serial", tiles),)
        return (self.staged_queries(), *start, self.zeroed(), *tiles, self.stored(), *self.of_part(), Sync("block"))

    def of_keys(self) -> tuple[Stmt, ...]:
        """What a block does with a tile of keys."""
        again = () if self.once else (Sync("block"),)
        values = (self.staged_values(),)
        apart = self.tile.values != AttentionTile.values  # values come along with keys
        return (
            self.staged_keys(),
            *(values if apart else ()),
            Sync("block"),
            self.scores(),
            Sync("block"),
            *(() if apart else values),
            self.powers(),
            Sync("block"),
            self.weighted(),
            *again,
        )

    # Shared memory ----------------------------------------------------------------------------------------------------

    def staged_queries(self) -> Stmt:
        """The queries of the block's rows go to shared memory."""
        m = Matrix(
            "queries",
            self.tile.rows,
            self.tile.query_pitch,
            self.a.rows,
            self.a.depth,
            self.first_row,
            self.tile.dtype,
            any_rows=True,
        )
        return staged("qs", m, self.a.query, self.places, THREADS)

    def staged_keys(self) -> Stmt:
        """Keys of a tile go to shared memory, the last one again behind it, whose scores are hidden."""
        m = Matrix(
            "tile_of_keys", self.tile.keys, self.tile.query_pitch, self.a.keys, self.a.depth, self.first_key,
            self.tile.dtype, any_rows=True, beyond=self.parts is not None,
        )  # fmt: skip
        return staged("ks", m, self.a.key, self.places, THREADS)

    def staged_values(self) -> Stmt:
        """Values of a tile go to shared memory, zeros behind the last."""
        m = Matrix(
            self.tile.values, self.tile.keys, self.tile.value_pitch, self.a.keys, self.a.columns, self.first_key,
            self.tile.dtype, beyond=self.parts is not None,
        )  # fmt: skip
        return staged("vs", m, self.a.value, self.places, THREADS)

    def row_of(self, name: str) -> Index:
        """The row of the block that a thread has in a loop of `per_row`."""
        return Index.of(axis(f"t{name}", self.tile.rows))

    def per_row(self, name: str, *body: Stmt) -> Stmt:
        """Something that is done once for each row."""
        return loop(axis(f"t{name}", self.tile.rows), "thread", *body)

    # Rows -------------------------------------------------------------------------------------------------------------

    def score(self, row: Index, key: Index, dot: Scalar) -> tuple[Stmt, ...]:
        """A score of a row and a key of the tiles: what is behind the last key is hidden.

        Nothing is read under a guard: the last row or key is looked up again instead, so that all reads are under way
        at a time.
        """
        r, k = self.first_row + row, self.first_key + key
        behind = apply("less", FromIndex(k, I32), FromIndex(self.keys, I32))
        hides = self.few_keys
        if ragged(self.rows, self.tile.rows):
            r = least(r, self.rows - 1)
        if hides:
            k = least(k, self.keys - 1)
        digits = self.digits(r, self.a.rows) | self.digits(k, self.a.keys)
        x = rebuild(self.a.score, lambda n: of("%d") if n == of(DOT) else None, lambda e: substitute(e, digits))
        x = flat(x, self.places)
        made = (Let("%d", dot), Let("%score", x))
        x = apply("select", behind, variable("%score", x.dtype), Const(LOWEST, x.dtype)) if hides else x
        return *(made if hides else made[:1]), Store("scores", row * self.tile.score_pitch + key, x)

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
        here, there = row * t.score_pitch + c, row * t.power_pitch + c
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
                     Let("%power", power), Store(t.powers, there, of("%power")),
                     Accumulate(("%sum_of_tile",), "sum", (of("%power"),)))),
                 *before,
                 loop(first, "lane", *kept))),
        )  # fmt: skip

    def of_row(self, name: str, combine: str, body: Stmt) -> Stmt:
        """What the lanes at a row reduce together."""
        return ReduceLoop((name,), combine, F32, (body,), scope="warp")

    def hidden(self, row: Index, total: Scalar) -> Scalar | None:
        """Whether a row's shares count as 0."""
        x = self.a.hidden
        if x is None or x == HIDES_NAN:
            return apply("or", apply("isnan", total), apply("equal", total, const(0.0))) if x is not None else None
        return flat(substitute_axes(x, self.digits(row, self.a.rows)), self.places)

    def digits(self, e: Index, axes: tuple[Axis, ...]) -> dict[Axis, Index]:
        """The values of axes for a number that they are the digits of."""
        return dict(zip(axes, unflatten(e, tuple(a.extent for a in axes)), strict=True))

    def result(self, row: Index, column: Index, value: Scalar) -> Store:
        """An element of the result, and where it goes."""
        if self.parts is not None:
            return Store(self.parts.sums, self.parts.element(self.a, row, column), value)
        digits = self.digits(row, self.a.rows) | self.digits(column, self.a.columns)
        made = rebuild(self.a.finish, lambda n: value if n == of(SUM) else None, lambda e: substitute(e, digits))
        place = self.places[self.a.nest.name]
        return Store(
            place.buffer, place.offset(tuple(substitute(e, digits) for e in self.a.nest.dims)), flat(made, self.places)
        )

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

    def value(self, sums: Scalar) -> Scalar:
        """What a sum is in a row of `finished`."""
        if self.parts is not None:
            return sums
        made = times(sums, of("%inverse"))
        hidden = variable("%hidden", BOOL)
        return apply("select", hidden, const(0.0), made) if self.a.hidden is not None else made

    def finished(self, row: Index, *body: Stmt) -> tuple[Stmt, ...]:
        """What is done for a row of the block once all of it is summed up."""
        total, r = at("total", row), self.first_row + row
        if self.parts is None:
            hidden = self.hidden(r, total)
            body = (Let("%inverse", apply("reciprocal", total)), *body)
            body = (Let("%hidden", hidden), *body) if hidden is not None else body
        return (When((Guard(r, self.rows),), body),) if ragged(self.rows, self.tile.rows) else body

    def kind(self, s: Store, v: Axis) -> LoopKind:
        """Whether elements of a result are stored at once."""
        n = v.extent.constant or 1
        width = n * (F32 if self.parts is not None else self.places[self.a.nest.name].dtype).bytes
        side = coefficient(s.offset, v) == ONE and all(c % n == 0 for _, c in (s.offset - v).terms)
        return "vector" if side and n > 1 and width <= ALIGNED else "unroll"
