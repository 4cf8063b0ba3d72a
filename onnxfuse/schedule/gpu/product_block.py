"""A block computes one tile of a product: slices of both operands go through shared memory, sums stay in registers.

With several stages the next steps are on their way while one is multiplied (`cp.async`), which a side takes part in
where it is only copied. In the end sums go to shared memory, and what is made of them is stored in wide accesses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxfuse.cost.gpu_products import REGISTERS
from onnxfuse.ir.compose import outermost, rebuild, replaced, substitute_axes
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Accumulate, Bind, Buffer, Let, Phase, ReduceLoop, Stmt, Store, When
from onnxfuse.ir.launch import ALIGNED, Commit, Launch, Sync, Wait
from onnxfuse.ir.scalar import Guard, Reduce, Scalar, const
from onnxfuse.schedule.analysis.attention import SUM
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.gpu.builders import at, axis, loop, of
from onnxfuse.schedule.gpu.products import MatrixProduct, Numbers, at_row, in_block, number_of, split_of
from onnxfuse.schedule.gpu.shared_copies import ROW, WIDTHS, Matrix, copied, side_by_side, staged, transposed
from onnxfuse.schedule.gpu.tiles import padded, ragged
from onnxfuse.target import Gpu

MOST_RESIDENT = 4  # blocks of a multiprocessor that registers are given out for
LEFT, RIGHT, MADE = "tile_of_left", "tile_of_right", "made"


@dataclass(frozen=True, slots=True)
class ProductBlock(ABC):
    """Writes the statements of a phase; what multiplies is left to those who derive from it."""

    p: MatrixProduct
    places: Mapping[str, Place]

    # What derives says ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def registers(self) -> tuple[Buffer, ...]:
        """What a thread holds in registers, `sums` among them."""

    @property
    @abstractmethod
    def deep(self) -> bool:
        """Whether the right side lies in shared memory along the depth."""

    @abstractmethod
    def multiplied(self, left: Index, right: Index) -> Stmt:
        """The sides of a step, which begin at these elements of shared memory, multiplied and added to the sums."""

    @abstractmethod
    def left_behind(self) -> Stmt:
        """The sums of all threads go to shared memory."""

    # Extents ----------------------------------------------------------------------------------------------------------

    @property
    def rows(self) -> Index:
        """All rows of a batch."""
        return product([x.extent for x in self.p.rows])

    @property
    def left_pitch(self) -> int:
        """From one row of the left side to the next."""
        return self.p.tile.left_pitch

    @property
    def right_pitch(self) -> int:
        """From one row, or column, of the right side to the next."""
        return self.p.tile.right_pitch(deep=self.deep)

    @property
    def grid(self) -> tuple[Axis, Axis, Axis]:
        """Tiles above each other, beside each other, and parts of the depth."""
        t, s = self.p.tile, self.p.sizes
        high = floor_div(self.rows + (t.rows - 1), Index.of(t.rows))
        return axis("tile_row", high), axis("tile_column", -(-s.columns // t.columns)), split_of(t)

    @property
    def steps(self) -> int:
        """Steps of a block."""
        t = self.p.tile
        return -(-self.p.sizes.depth // t.splits // t.depth)

    @property
    def made_pitch(self) -> int:
        """From one row of sums to the next."""
        return self.p.tile.made_pitch(transposed=self.p.transposed)

    @property
    def first_row(self) -> Index:
        """The first row of the block."""
        return number_of(self.grid[0]) * self.p.tile.rows

    @property
    def first_column(self) -> Index:
        """The first column of the block."""
        return number_of(self.grid[1]) * self.p.tile.columns

    def phase(self, target: Gpu) -> Phase:
        """The phase."""
        t, p = self.p.tile, self.p
        batch = tuple(x.extent for x in p.batch)
        parts = tuple(a.extent for a in self.grid)
        block = Axis("block", product([*batch, *parts]))
        digits = unflatten(Index.of(block), (*batch, *parts))
        where = [Bind(x, e) for x, e in zip((*p.batch, *self.grid), digits, strict=True) if x.extent != ONE]
        zero = axis("zero", t.sums)
        body = (
            loop(zero, "unroll", Store("sums", Index.of(zero), const(0.0))),
            *self.numbers(),
            *(self.one_by_one() if t.stages == 1 else self.overlapped()),
            self.left_behind(),
            Sync("block"),
            self.stored(),
            Sync("block"),
        )
        made = loop(block, "block", *where, *body)
        most = block.extent if t.boxed else least(block.extent, Index.of(target.blocks))  # arrivals are begun once
        grid = greatest(ONE, most)
        shared = self.shared_bytes()
        resident = min(MOST_RESIDENT, REGISTERS // (t.registers * t.threads), target.shared_bytes // shared)
        needed = block.extent.constant  # more than a grid has would only take registers from its threads
        resident = max(1, min(resident, -(-needed // target.sms))) if needed else resident
        launch = Launch(grid, Index.of(t.threads), Index.of(shared), resident=resident)
        return Phase((), ONE, (*self.shared(), *self.registers), (made,), launch=launch)

    def shared(self) -> Iterator[Buffer]:
        """The buffers in shared memory."""
        t, place = self.p.tile, 0
        sizes = {
            LEFT: (t.dtype, t.stages * t.left),
            RIGHT: (t.dtype, t.stages * t.right(deep=self.deep)),
            MADE: (F32, t.rows * self.made_pitch),
        }
        sizes |= {in_block(n.name): (F32, t.rows) for n in self.p.numbers}
        for name, (dtype, count) in sizes.items():
            swizzled = t.grouped and name in (LEFT, RIGHT)
            yield Buffer(name, dtype, Index.of(count), "shared", place, swizzled=swizzled)
            place += padded(count * dtype.bytes)

    def shared_bytes(self) -> int:
        """Of all of them."""
        return max((b.at or 0) + padded((b.size.constant or 0) * b.dtype.bytes) for b in self.shared())

    # Steps of the depth -----------------------------------------------------------------------------------------------

    def sides(self, name: str, step: Index, *, ahead: bool) -> Iterator[Stmt]:
        """Both sides of a step of the depth go to shared memory, in the background where they may."""
        t, p = self.p.tile, self.p
        stage = modulo(step, Index.of(t.stages))
        first = (number_of(split_of(t)) * self.steps + step) * t.depth
        sides = (
            ("l", p.left, Matrix(
                LEFT, t.rows, self.left_pitch, p.rows, p.depth, self.first_row, t.dtype, t.depth, first,
                stage * t.left, any_rows=True, lines=t.grouped)),
            ("r", p.right, Matrix(
                RIGHT, t.columns, self.right_pitch, p.columns, p.depth, self.first_column, t.dtype, t.depth, first,
                stage * t.right(deep=True), any_rows=True, lines=t.grouped) if self.deep else Matrix(
                RIGHT, t.depth, self.right_pitch, p.depth, p.columns, first, t.dtype, t.columns, self.first_column,
                stage * t.right(deep=False), any_columns=True, lines=t.grouped)),
        )  # fmt: skip
        for side, x, m in sides:
            found = copied(f"{side}{name}", m, x, self.places) if ahead else None
            yield found if found is not None else staged(f"{side}{name}", m, x, self.places)

    def one_by_one(self) -> tuple[Stmt, ...]:
        """A step after the other."""
        step = axis("step", self.steps)
        here = Index.of(step)
        inside = (*self.sides("", here, ahead=False), Sync("block"), self.multiplied(ZERO, ZERO), Sync("block"))
        return (loop(step, "serial", *inside),)

    def overlapped(self) -> tuple[Stmt, ...]:
        """The next steps come while one is multiplied."""
        t, step = self.p.tile, axis("step", self.steps)
        first = axis("first", t.stages - 1)
        begun = loop(first, "serial", *self.sides("f", Index.of(first), ahead=True), Commit())
        then = Index.of(step) + (t.stages - 1)
        stage = modulo(Index.of(step), Index.of(t.stages))
        more = When((Guard(then, Index.of(self.steps)),), tuple(self.sides("n", then, ahead=True)))
        product_ = self.multiplied(stage * t.left, stage * t.right(deep=self.deep))
        inside = (Wait(t.stages - 2), Sync("block"), more, Commit(), product_)
        return (begun, loop(step, "serial", *inside), Wait(0))

    # Numbers of rows --------------------------------------------------------------------------------------------------

    def numbers(self) -> tuple[Stmt, ...]:
        """What rows are normalized by: each thread sums up a part of a row, and the first ones put parts together.

        Parts lie where sums of the product will.
        """
        t, made = self.p.tile, list[Stmt]()
        for n in self.p.numbers:
            row = axis(f"row_{n.name}", t.rows)
            value = self.number(n, Index.of(row))
            reduce = outermost(value)
            total: tuple[Stmt, ...] = ()
            if reduce is not None:
                made += [*((Sync("block"),) if made else ()), self.parts(n, reduce.combine), Sync("block")]
                name, part = f"%reduced {n.name}", axis(f"part_{n.name}", t.threads // t.rows)
                step = Accumulate((name,), reduce.combine, (at(MADE, Index.of(part) * t.rows + row),))
                total = (ReduceLoop((name,), reduce.combine, F32, (loop(part, "unroll", step),)),)
                value = replaced(value, reduce, of(name))
            made.append(loop(row, "thread", *total, Store(in_block(n.name), Index.of(row), flat(value, self.places))))
        return (*made, Sync("block")) if made else ()

    def number(self, n: Numbers, row: Index) -> Scalar:
        """One number of a row of the block."""
        here = self.first_row + row
        if ragged(self.rows, self.p.tile.rows):
            here = least(here, self.rows - 1)
        return substitute_axes(at_row(n, here), {ROW: row})

    def parts(self, n: Numbers, combine: str) -> Stmt:
        """Each thread's part of a row: threads side by side read what lies side by side."""
        t = self.p.tile
        thread, parts, name = axis(f"t_{n.name}", t.threads), t.threads // t.rows, f"%part {n.name}"
        across = Index.of(t.rows if transposed(self.p.rows, self.p.depth, self.p.left, self.places) else parts)
        high, low = floor_div(Index.of(thread), across), modulo(Index.of(thread), across)
        row, part = (low, high) if across == Index.of(t.rows) else (high, low)
        reduce = outermost(self.number(n, row))
        assert reduce is not None
        total = ReduceLoop((name,), combine, F32, (self.over_row(n.name, reduce, name, part, parts),))
        return loop(thread, "thread", total, Store(MADE, part * t.rows + row, of(name)))

    def over_row(self, name: str, reduce: Reduce, into: str, part: Index, parts: int) -> Stmt:
        """The elements of a part of a row: every so many of its pieces."""
        extents = tuple(r.extent for r in reduce.ranges)
        total = product(extents).constant
        assert total is not None
        for width in (w for w in WIDTHS if total % w == 0):
            pieces = total // width
            c, v = axis(f"c_{name}", -(-pieces // parts)), axis(f"v_{name}", width)
            piece = Index.of(c) * parts + part
            place = piece * width + v if width > 1 else piece
            digits = dict(zip(reduce.ranges, unflatten(place, extents), strict=True))
            x = flat(substitute_axes(reduce.body[0], digits), self.places)
            step: Stmt = Accumulate((into,), reduce.combine, (x,))
            if width > 1 and not side_by_side(x, v, width):
                continue
            step = loop(v, "vector", step) if width > 1 else step
            few = pieces % parts > 0
            return loop(c, "serial", When((Guard(piece, Index.of(pieces)),), (step,)) if few else step)
        raise AssertionError("schedule: a row is read element by element")

    # The result -------------------------------------------------------------------------------------------------------

    def stored(self) -> Stmt:
        """What is made of the sums, and where that goes: side by side, as the result lies."""
        t, place = self.p.tile, self.places[self.p.nest.name]
        transposed, few_rows = self.p.transposed, ragged(self.rows, t.rows)
        few_columns = self.p.sizes.columns % t.columns > 0
        long, short = (t.rows, t.columns) if transposed else (t.columns, t.rows)
        few, extent = (few_rows, self.rows) if transposed else (few_columns, Index.of(self.p.sizes.columns))
        for width in (w for w in WIDTHS if w * max(F32.bytes, place.dtype.bytes) <= ALIGNED and long % w == 0):
            if width > 1 and few and _apart(extent, width):
                continue
            pieces = long // width
            e, v = axis("e", short * pieces), axis("v", width)
            across, piece = floor_div(Index.of(e), Index.of(pieces)), modulo(Index.of(e), Index.of(pieces)) * width
            along = piece + v if width > 1 else piece
            row, column = (along, across) if transposed else (across, along)
            total = at(MADE, row * self.made_pitch + column)
            body = self.result(self.first_row + row, self.first_column + column, total)
            if width > 1 and not _aligned(body, v, width):
                continue
            made: tuple[Stmt, ...] = (loop(v, "vector", *body),) if width > 1 else body
            row, column = (piece, across) if transposed else (across, piece)
            guards = [Guard(self.first_row + row, self.rows)] if few_rows else []
            guards += [Guard(self.first_column + column, Index.of(self.p.sizes.columns))] if few_columns else []
            return loop(e, "thread", *((When(tuple(guards), made),) if guards else made))
        raise AssertionError("schedule: a result is stored element by element")

    def result(self, row: Index, column: Index, value: Scalar) -> tuple[Stmt, ...]:
        """An element of the result, and where it goes."""
        digits = self.p_digits(row, self.p.rows) | self.p_digits(column, self.p.columns)
        total = of("%sum")
        made = rebuild(self.p.finish, lambda n: total if n == of(SUM) else None, lambda e: substitute(e, digits))
        place = self.places[self.p.nest.name]
        offset = place.offset(tuple(substitute(e, digits) for e in self.p.nest.dims))
        return Let("%sum", value), Store(place.buffer, offset, flat(made, self.places))

    def p_digits(self, e: Index, axes: tuple[Axis, ...]) -> dict[Axis, Index]:
        """The values of axes for a number that they are the digits of."""
        return dict(zip(axes, unflatten(e, tuple(a.extent for a in axes)), strict=True))


def _aligned(body: tuple[Stmt, ...], v: Axis, width: int) -> bool:
    """Whether all that statements read or store side by side is aligned."""
    for s in body:
        assert isinstance(s, (Let, Store))
        if side_by_side(s.value, v, width) is None:
            return False
        if isinstance(s, Store) and (coefficient(s.offset, v) != ONE or _apart(s.offset - v, width)):
            return False
    return True


def _apart(offset: Index, width: int) -> bool:
    return any(c % width for _, c in offset.terms)
