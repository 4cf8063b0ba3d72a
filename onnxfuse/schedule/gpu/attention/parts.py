"""An attention of few rows and many keys, whose keys are divided over blocks, as in decoding (Flash-Decoding, 2023).

Each block has a part of the keys, and leaves its sums, its largest score and the sum of its powers. What puts these
together is written as definitions, so that what follows the attention is in the same phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.compose import replaced, substitute_axes
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import flatten, product
from onnxfuse.ir.scalar import Load, Reduce, Scalar, apply, const, variable
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.attention import HIDES_NAN, SUM, Attention
from onnxfuse.schedule.analysis.memory import Nest, Place, dense
from onnxfuse.schedule.gpu.tiles import sizes_of, tile_of
from onnxfuse.target import Gpu

MOST_PARTS = 16
SIDE_BY_SIDE = 4  # blocks of a multiprocessor
TILE_US = 1.0  # of a tile of keys of a block: two reads in a row, and the barriers between what is made of them
FEWEST_TILES = 2  # of keys, in a part
USUAL_KEYS = 1024  # where their number is not known
LOWEST = const(float("-inf"))


@dataclass(frozen=True, slots=True)
class KeySplits:
    """How many parts there are, and the values that blocks leave: sums, and largest scores and totals of rows."""

    name: str
    count: int

    @property
    def axis(self) -> Axis:
        """Which part a block has."""
        return Axis("part_of_keys", Index.of(self.count))

    @property
    def sums(self) -> str:
        """Sums of values by powers."""
        return f"{self.name} sums"

    @property
    def highest(self) -> str:
        """The largest score of each row."""
        return f"{self.name} highest"

    @property
    def total(self) -> str:
        """The sum of powers of each row."""
        return f"{self.name} total"

    def shapes(self, a: Attention) -> dict[str, tuple[Index, ...]]:
        """The shapes of the values: parts, batches, rows, and columns."""
        extents = tuple(product([x.extent for x in axes]) for axes in (a.batch, a.rows, a.columns))
        rows = (Index.of(self.count), *extents[:2])
        return {self.sums: (*rows, extents[2]), self.highest: rows, self.total: rows}

    def places(self, a: Attention) -> dict[str, Place]:
        """Where they lie."""
        return {name: dense(name, F32, shape) for name, shape in self.shapes(a).items()}

    def row(self, a: Attention, row: Index) -> Index:
        """Where a number of a row lies, in the block's part."""
        return flatten((Index.of(self.axis), number_of(a.batch), row), self.shapes(a)[self.total])

    def element(self, a: Attention, row: Index, column: Index) -> Index:
        """Where a sum lies, in the block's part."""
        return flatten((Index.of(self.axis), number_of(a.batch), row, column), self.shapes(a)[self.sums])


@dataclass(frozen=True, slots=True)
class InParts:
    """An attention whose blocks have parts of the keys."""

    attention: Attention
    parts: KeySplits

    @property
    def reads(self) -> frozenset[str]:
        """Values that it reads."""
        return self.attention.reads

    @property
    def nests(self) -> tuple[Nest, ...]:
        """What blocks leave."""
        shapes = self.parts.shapes(self.attention)
        return tuple(Nest(name, F32, shape, (), (), const(0.0)) for name, shape in shapes.items())


def number_of(axes: tuple[Axis, ...]) -> Index:
    """The number that axes are the digits of."""
    return flatten(tuple(map(Index.of, axes)), tuple(x.extent for x in axes))


def parts_of(a: Attention, target: Gpu) -> KeySplits | None:
    """The parts of an attention whose blocks would leave half of a GPU idle; None where they would cost more.

    Tiles of keys mostly wait, so that a multiprocessor has several blocks; parts take one more kernel.
    """
    tile = tile_of(a, target)
    batch, rows, keys, _, _ = sizes_of(a)
    if tile is None or batch.constant is None or rows.constant is None:
        return None
    blocks = batch.constant * -(-rows.constant // tile.rows)
    tiles = -(-(keys.constant or USUAL_KEYS) // tile.keys)
    if 2 * blocks > target.sms:
        return None
    count = 1
    while 2 * count <= min(MOST_PARTS, SIDE_BY_SIDE * target.sms // max(blocks, 1), tiles // FEWEST_TILES):
        count *= 2
    saved = (tiles - -(-tiles // count)) * TILE_US
    return KeySplits(a.nest.name, count) if saved > target.boundary_us + target.latency_us else None


def put_together(a: Attention, p: KeySplits, d: Definition) -> tuple[Definition, ...]:
    """What makes the result of what the blocks leave: largest scores, totals, and the values of a definition."""
    shapes = p.shapes(a)
    batch, row = Axis(f"{p.name}_b", shapes[p.total][1]), Axis(f"{p.name}_r", shapes[p.total][2])
    at = (Index.of(batch), Index.of(row))
    names = {"highest": f"{p.name} of all highest", "total": f"{p.name} of all total"}

    def part(name: str) -> Axis:
        return Axis(f"{p.name}_{name}", Index.of(p.count))

    def scaled(x: Axis, of_parts: str, here: tuple[Index, ...], rest: tuple[Index, ...]) -> Scalar:
        """What a part has, by how far its largest score is below that of all."""
        highest = Load(names["highest"], here, F32)
        below = apply("select", apply("equal", highest, LOWEST), const(0.0), highest)
        mine = Load(p.highest, (Index.of(x), *here), F32)
        power = apply("exp_or_zero", apply("sub", mine, below))
        return apply("mul", Load(of_parts, (Index.of(x), *here, *rest), F32), power)

    h, t, s = part("h"), part("t"), part("s")
    highest = Reduce("maxnum", (h,), (Load(p.highest, (Index.of(h), *at), F32),), F32)
    total = Reduce("sum", (t,), (scaled(t, p.total, at, ()),), F32)
    here = (number_of(a.batch), number_of(a.rows))
    sums = Reduce("sum", (s,), (scaled(s, p.sums, here, (number_of(a.columns),)),), F32)
    of_row = Load(names["total"], here, F32)
    value = apply("mul", sums, apply("reciprocal", of_row))
    if a.hidden is not None:
        nothing = apply("or", apply("isnan", of_row), apply("equal", of_row, const(0.0)))
        value = apply("select", nothing if a.hidden == HIDES_NAN else a.hidden, const(0.0), value)
    made = replaced(a.finish, variable(SUM, F32), value)
    digits = a.nest.digits_at(tuple(map(Index.of, d.axes)))
    return (
        Definition(names["highest"], (batch, row), highest),
        Definition(names["total"], (batch, row), total),
        Definition(d.name, d.axes, substitute_axes(made, digits), d.demands),
    )
