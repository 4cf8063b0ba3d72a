"""Attention by one block: some query rows, with tiles of keys and values in shared memory, one tile after the other.

The sums of values by the powers of scores stay in registers. With several tiles of keys the sums so far are scaled when
a larger score turns up (online softmax); they are divided in the end alone. Rows that hide shares count as 0 if values
are finite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.compose import rebuild, substitute_axes
from onnxfuse.ir.dtype import BOOL, F32, I32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div, greatest, least, modulo, nonnegative
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Let, Loop, LoopKind, Phase, Stmt, Store, When
from onnxfuse.ir.launch import ALIGNED, Launch
from onnxfuse.ir.scalar import Const, FromIndex, Guard, Scalar, apply, const, variable
from onnxfuse.schedule.analysis.attention import DOT, HIDES_NAN, SUM, Attention
from onnxfuse.schedule.analysis.causal_masks import hidden_below
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.gpu.attention.parts import KeySplits
from onnxfuse.schedule.gpu.builders import axis, loop, of, times
from onnxfuse.schedule.gpu.shared_copies import Matrix, staged
from onnxfuse.schedule.gpu.tiles import THREADS, AttentionTile, padded, ragged
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
    def beyond(self) -> bool:
        """Whether a block may have tiles behind the last."""
        return self.parts is not None and ragged(self.key_tiles, self.parts.count)

    @property
    def few_keys(self) -> bool:
        """Whether the last tile may not be full, or not there."""
        return self.beyond or ragged(self.keys, self.tile.keys)

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
        return ZERO if self.once else self.key_of(Index.of(self.tile_axis))

    @property
    def tile_axis(self) -> Axis:
        """Counts the tiles of keys of a block."""
        return axis("keys", self.own_tiles)

    def key_of(self, tile: Index) -> Index:
        """The first key of one of a block's tiles."""
        return (self.part * self.own_tiles + tile) * self.tile.keys

    def phase(self, target: Gpu) -> Phase:
        """The phase."""
        t = self.tile
        tile = axis("tile", self.row_tiles)
        # Blocks that see more keys come last, to multiprocessors whose first ones see few.
        tiles = (*self.a.batch, tile) if self.seen_tiles() == self.own_tiles else (tile, *self.a.batch)
        over = (*tiles, *([self.parts.axis] if self.parts is not None else []))
        extents = tuple(x.extent for x in over)
        blocks = product(extents)
        block = Axis("block", blocks)
        where = [Bind(x, e) for x, e in zip(over, unflatten(Index.of(block), extents), strict=True)]
        body = (*where, *self.block())
        buffers = self.buffers()
        grid = greatest(ONE, least(blocks, Index.of(target.blocks)))
        shared = Index.of(t.bytes(once=self.once))
        launch = Launch(grid, Index.of(THREADS), shared, lanes=t.team, resident=t.resident)
        return Phase((), ONE, buffers, (loop(block, "block", *body),), launch=launch)

    @property
    @abstractmethod
    def registers(self) -> tuple[Buffer, ...]:
        """What a thread holds in registers."""

    def buffers(self) -> tuple[Buffer, ...]:
        """Shared memory, and the registers of a thread."""
        made, place = [], 0
        for name, dtype, size in self.tile.shared(once=self.once):
            made.append(Buffer(name, dtype, Index.of(size), "shared", place))
            place += padded(size * dtype.bytes)
        return (*made, *self.registers)

    @abstractmethod
    def block(self) -> tuple[Stmt, ...]:
        """What a block does for its rows."""

    def over_tiles(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """What is done for each tile of keys."""
        if self.once:
            return body
        return (Loop(self.tile_axis, ZERO, self.seen_tiles(), "serial", body),)

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
            reversed=False,
        )
        return staged("qs", m, self.a.query, self.places, THREADS)

    def staged_keys(self) -> Stmt:
        """Keys of a tile go to shared memory, the last one again behind it, whose scores are hidden."""
        return staged("ks", self.matrix_of_keys(self.first_key), self.a.key, self.places, THREADS)

    def matrix_of_keys(self, first: Index, place: Index = ZERO) -> Matrix:
        """Where keys from one on go."""
        return Matrix(
            "tile_of_keys", self.tile.keys, self.tile.query_pitch, self.a.keys, self.a.depth, first,
            self.tile.dtype, at=place, any_rows=True, reversed=False, beyond=self.beyond,
        )  # fmt: skip

    def staged_values(self) -> Stmt:
        """Values of a tile go to shared memory, zeros behind the last."""
        return staged("vs", self.matrix_of_values(self.first_key), self.a.value, self.places, THREADS)

    def matrix_of_values(self, first: Index, place: Index = ZERO) -> Matrix:
        """Where values from one on go."""
        return Matrix(
            self.tile.values, self.tile.keys, self.tile.value_pitch, self.a.keys, self.a.columns, first,
            self.tile.dtype, at=place, beyond=self.beyond,
        )  # fmt: skip

    # Rows -------------------------------------------------------------------------------------------------------------

    def score(self, row: Index, key: Index, dot: Scalar) -> tuple[tuple[Stmt, ...], Scalar]:
        """A score of a row and a key of the tiles, and what comes before it: what is behind the last key is hidden.

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
        return made if hides else made[:1], x

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

    def value(self, sums: Scalar) -> Scalar:
        """What a sum is in a row of `finished`."""
        if self.parts is not None:
            return sums
        made = times(sums, of("%inverse"))
        hidden = variable("%hidden", BOOL)
        return apply("select", hidden, const(0.0), made) if self.a.hidden is not None else made

    def finished(self, row: Index, total: Scalar, *body: Stmt) -> tuple[Stmt, ...]:
        """What is done for a row of the block once all of it, and the powers of its scores, are summed up."""
        r = self.first_row + row
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
