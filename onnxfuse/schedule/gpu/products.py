"""Products in the definitions of a group, with what is done to the rows before and to the sums behind them.

Elementwise work on the left side, and a normalization whose numbers are of whole rows, become part of a product where
nobody else reads them. Convolutions are products too, whose left side is read through a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.cost.gpu_products import BlockTile, Sizes, seconds_of, tiles_of
from onnxfuse.ir.compose import free_axes, inline, loads, outermost, rebuild, replaced, substitute_axes, walk
from onnxfuse.ir.contraction import After, Contraction, contraction_of, scaled_contraction
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.fragments import TENSOR_CORES
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, flatten, product, unflatten
from onnxfuse.ir.kernel import RankedSchedules
from onnxfuse.ir.launch import LibraryProduct
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Load, Reduce, Scalar, apply, cast, variable
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.attention import SUM
from onnxfuse.schedule.analysis.memory import Nest, Place, nest_of
from onnxfuse.schedule.gpu.matrices import copied_in_boxes
from onnxfuse.schedule.gpu.shared_copies import ROW
from onnxfuse.target import MOST_ROWS, Gpu

CANDIDATES = 24  # tiles of a product that may be measured
NEAR = 1.5  # and by how much they may be predicted to be slower than the best
FEWEST = 8  # columns, and steps of the depth, of what is worth a tile


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number of each row, which is needed before the row is multiplied: `value`, at most one reduction in it.

    Rows are counted by `axes`.
    """

    name: str
    axes: tuple[Axis, ...]
    value: Scalar


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """For each batch, row and column: `finish` of the sum over `depth` of left * right; axes are those of `nest`.

    Sums of a tile with splits are parts, which something behind adds up. `numbers` of rows come first; `consumed` are
    the definitions that are in it. `library` may compute it.
    """

    nest: Nest
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    left: Scalar
    right: Scalar
    finish: Scalar
    numbers: tuple[Numbers, ...]
    sizes: Sizes
    tile: BlockTile
    consumed: frozenset[str] = frozenset()
    library: LibraryProduct | None = None

    @property
    def transposed(self) -> bool:
        """Whether rows lie side by side in the result."""
        return self.nest.axes[-1] in self.rows

    @property
    def reads(self) -> frozenset[str]:
        """Values that it reads."""
        parts = (self.left, self.right, self.finish, *(n.value for n in self.numbers))
        return frozenset(x.source for part in parts for x in loads(part) if x.index)


def product_of(
    d: Definition,
    by_name: Mapping[str, Definition],
    outputs: Sequence[str],
    places: Mapping[str, Place],
    target: Gpu,
    measured: Mapping[str, str] = {},
) -> MatrixProduct | None:
    """A definition as a product; None where it is none that tiles are worth.

    `measured` has tiles, by their text, to be taken instead of those predicted best.
    """
    reduce = outermost(d.value)
    if reduce is None or reduce.dtype != F32 or scaled_contraction(d.axes, reduce) is None:
        return None
    return _made(d, by_name, outputs, places, target, measured, prologue=True) or _made(
        d, by_name, outputs, places, target, measured, prologue=False
    )


def _made(
    d: Definition,
    by_name: Mapping[str, Definition],
    outputs: Sequence[str],
    places: Mapping[str, Place],
    target: Gpu,
    measured: Mapping[str, str],
    *,
    prologue: bool,
) -> MatrixProduct | None:
    before = _before(d, by_name, outputs) if prologue else {}
    inlined = {n: (x.axes, x.value) for n, x in before.items() if not _reduces(x)}
    if prologue and not inlined:
        return None
    made = nest_of(replace(d, value=inline(d.value, inlined)) if inlined else d, places)
    whole = outermost(made.value)
    if whole is None:
        return None
    plain = contraction_of(made.axes, whole)  # what was put in for a side is no factor of the product
    scaled = ((plain, ()) if plain is not None else None) if inlined else scaled_contraction(made.axes, whole)
    if scaled is None:
        return None
    nest = replace(made, output=d.name in outputs)
    for c in (scaled[0], scaled[0].swapped):  # what lies side by side in the result are columns
        beside = c.columns[-1:] == nest.axes[-1:]
        found = _divided(nest, c, whole, scaled[1], before, places, target, measured) if beside else None
        if found is not None:
            return found
    return _divided(nest, scaled[0], whole, scaled[1], before, places, target, measured) if inlined else None


def _before(d: Definition, by_name: Mapping[str, Definition], outputs: Sequence[str]) -> dict[str, Definition]:
    """What leads to one side of a product and nowhere else, the first ones first."""
    found: dict[str, Definition] = {}
    waiting = [d]
    while waiting:
        here = waiting.pop()
        for name in {n.source for n in loads(here.value) if n.source in by_name}:
            if name not in found and name not in outputs:
                found[name] = by_name[name]
                waiting.append(by_name[name])
    while True:  # without those that others read
        others = [e for e in by_name.values() if e.name != d.name and e.name not in found]
        seen = {n.source for e in others for n in loads(e.value)} & {*found}
        if not seen:
            return {name: x for name, x in by_name.items() if name in found}
        for name in seen:
            del found[name]


def _reduces(d: Definition) -> bool:
    return any(isinstance(n, Reduce) for n in walk(d.value))


def _divided(
    nest: Nest,
    c: Contraction,
    whole: Reduce,
    after: Sequence[After],
    before: Mapping[str, Definition],
    places: Mapping[str, Place],
    target: Gpu,
    measured: Mapping[str, str],
) -> MatrixProduct | None:
    """The parts of a product with its sides as they stand; None where they do not fit."""
    batch, rows, columns, depth = (size(axes) for axes in (c.batch, c.rows, c.columns, c.ranges))
    if not columns or not depth or min(columns, depth) < FEWEST or (rows is not None and rows <= MOST_ROWS):
        return None
    if not c.rows:
        return None
    reads = {n.source for n in loads(c.left)} & {*before}
    if {n.source for n in loads(c.right)} & {*before} or (reads and c.batch):
        return None
    numbers = _numbers(reads, before, c)
    if numbers is None:
        return None
    left = _in_rows(c.left, numbers, before, c.rows)
    if left is None:
        return None
    left, lifted = _lifted(_by_reciprocals(left, numbers), numbers, c.rows)
    numbers |= lifted
    operand_type = _operand_type(c.left, c.right)
    left, right = _bare(left, operand_type), _bare(c.right, operand_type)
    deep = _deep(right, c)
    sides = (left, c.rows, c.ranges), (right, *((c.columns, c.ranges) if deep else (c.ranges, c.columns)))
    boxes = not c.batch and all(copied_in_boxes(*side, operand_type, places) for side in sides)
    sizes = Sizes(batch or 0, rows or 0, columns, depth, operand_type, deep, len(numbers), boxes)
    tiles = tiles_of(sizes, target)
    if not tiles:
        return None
    wanted = measured.get(str(tiles[0]))
    tile = next((t for t in tiles if str(t) == wanted), tiles[0])
    total: Scalar = variable(SUM, F32)
    for fn, by in after:
        total = apply(fn, total, by)
    finish = replaced(nest.value, whole, total)
    consumed = frozenset(before)
    if consumed & {n.source for n in loads(finish)}:
        return None
    return MatrixProduct(
        nest, c.batch, c.rows, c.columns, c.ranges, left, right, finish, tuple(numbers.values()), sizes, tile, consumed
    )


def size(axes: Sequence[Axis]) -> int | None:
    """Elements that axes run over, where that is known."""
    return product([a.extent for a in axes]).constant


def _numbers(reads: set[str], before: Mapping[str, Definition], c: Contraction) -> dict[str, Numbers] | None:
    """Numbers of rows that the left side reads, and that these read, in order; None where some are none of rows."""
    wanted, waiting = set(reads), list(reads)
    while waiting:
        new = {n.source for n in loads(before[waiting.pop()].value)} & {*before} - wanted
        wanted |= new
        waiting += new
    inlined = {n: (x.axes, x.value) for n, x in before.items() if not _reduces(x)}
    found: dict[str, Numbers] = {}
    for name, x in before.items():
        if name not in wanted:
            continue
        value = inline(x.value, inlined)
        reduce = outermost(value)
        ordered = reduce is None or len(reduce.body) > 1 or MONOIDS[reduce.combine].numpy is None
        if reduce is None or ordered or product(x.shape) != product([a.extent for a in c.rows]):
            return None
        made = _in_rows(value, found, before, x.axes)
        if made is None or any(isinstance(n, Reduce) for b in reduce.body for n in walk(b)):
            return None
        found[name] = Numbers(name, x.axes, made)
    return found


def _in_rows(
    x: Scalar, numbers: Mapping[str, Numbers], before: Mapping[str, Definition], rows: tuple[Axis, ...]
) -> Scalar | None:
    """x with numbers read by the row of the block; None where it reads those of other rows."""
    here = flatten(tuple(map(Index.of, rows)), tuple(a.extent for a in rows))
    for n in loads(x):
        if n.source in before and (n.source not in numbers or n.guards or _row_of(n, before) != here):
            return None

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.source in numbers:
            return Load(in_block(node.source), (Index.of(ROW),), node.dtype)
        return None

    return rebuild(x, leaf, lambda e: e)


def _by_reciprocals(x: Scalar, numbers: Mapping[str, Numbers]) -> Scalar:
    """x with products by reciprocals in place of quotients by what is computed of numbers of the row alone."""
    mine = {in_block(n) for n in numbers}

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Apply) or node.fn != "div" or node.dtype != F32 or free_axes(node.args[1]) - {ROW}:
            return None
        read = {n.source for n in loads(node.args[1])}
        if not read or not read <= mine:
            return None
        return apply("mul", rebuild(node.args[0], leaf, lambda e: e), Apply("reciprocal", (node.args[1],), F32))

    return rebuild(x, leaf, lambda e: e)


def _lifted(x: Scalar, numbers: Mapping[str, Numbers], rows: tuple[Axis, ...]) -> tuple[Scalar, dict[str, Numbers]]:
    """x with what is computed of numbers of the row alone as one more number each."""
    mine = {in_block(n) for n in numbers}
    found: dict[Scalar, str] = {}

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Apply) or node.dtype != F32 or free_axes(node) - {ROW}:
            return None
        read = {n.source for n in loads(node)}
        if not read or not read <= mine:
            return None
        name = found.setdefault(node, f"{'%'.join(numbers)} {len(found)}")
        return Load(in_block(name), (Index.of(ROW),), F32)

    made = rebuild(x, leaf, lambda e: e)
    return made, {name: Numbers(name, rows, value) for value, name in found.items()}


def in_block(name: str) -> str:
    """The buffer of shared memory that a number of each row lies in."""
    return f"{name} of rows"


def _row_of(n: Load, before: Mapping[str, Definition]) -> Index:
    return flatten(n.index, before[n.source].shape)


def _operand_type(left: Scalar, right: Scalar) -> DType:
    """The type that both sides have before they are widened, where tensor cores multiply it; else that of the sums."""
    types = {x.args[0].dtype for x in (left, right) if _widened(x) and isinstance(x, Apply)}
    widened = _widened(left) and _widened(right)
    operand_type = next((c.left.dtype for c in TENSOR_CORES if {c.left.dtype} == types), None)
    return operand_type if widened and operand_type is not None else F32


def _widened(x: Scalar) -> bool:
    return isinstance(x, Apply) and x.fn == "cast" and x.dtype == F32 and x.args[0].dtype.floating


def _bare(x: Scalar, operand_type: DType) -> Scalar:
    """A side in its operand type."""
    return x.args[0] if operand_type != F32 and isinstance(x, Apply) else cast(x, operand_type)


def _deep(right: Scalar, c: Contraction) -> bool:
    """Whether the right side lies along the depth, as a matrix that is multiplied by its transpose."""
    found = [n for n in loads(right) if n.index and free_axes(n) & {*c.columns}]
    last = [n.index[-1] for n in found]
    along = [coefficient(e, c.ranges[-1]) == ONE for e in last]
    return bool(found) and all(along) and not any(coefficient(e, c.columns[-1]) == ONE for e in last)


def in_parts(p: MatrixProduct, d: Definition) -> tuple[MatrixProduct, Definition]:
    """A product whose blocks have parts of the depth: their sums, and what is made of these.

    Sums go to a value of their own, with an axis in front that tells the parts apart.
    """
    name, part = f"{d.name} in parts", Axis(f"{d.name}_part", Index.of(p.tile.splits))
    reduce = outermost(d.value)
    assert reduce is not None
    scaled = scaled_contraction(d.axes, reduce)
    assert scaled is not None
    index = (Index.of(part), *map(Index.of, d.axes))
    total: Scalar = Reduce("sum", (part,), (Load(name, index, F32),), F32)
    for fn, by in scaled[1]:
        total = apply(fn, total, by)
    value = replaced(d.value, reduce, total)
    nest = replace(
        p.nest,
        name=name,
        dtype=F32,
        shape=(part.extent, *p.nest.shape),
        dims=(number_of(split_of(p.tile)), *p.nest.dims),
        output=False,
    )
    return replace(p, nest=nest, finish=variable(SUM, F32)), replace(d, value=value)


def split_of(t: BlockTile) -> Axis:
    """Which part of the depth a block has."""
    return Axis("split", Index.of(t.splits))


def number_of(a: Axis) -> Index:
    """The value of an axis, which is 0 where there is but one."""
    return ZERO if a.extent == ONE else Index.of(a)


def at_row(n: Numbers, row: Index) -> Scalar:
    """The value of a number of a row of all."""
    digits = unflatten(row, tuple(a.extent for a in n.axes))
    return substitute_axes(n.value, dict(zip(n.axes, digits, strict=True)))


def choice_of(p: MatrixProduct, target: Gpu) -> RankedSchedules:
    """The tiles that a product may have, with predicted seconds, best first: those that are near the best."""
    found = [(str(t), seconds_of(p.sizes, t, target)) for t in tiles_of(p.sizes, target)[:CANDIDATES]]
    return RankedSchedules(tuple((name, seconds) for name, seconds in found if seconds <= NEAR * found[0][1]))
