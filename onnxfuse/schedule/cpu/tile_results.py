"""How the results of a tile are stored where they are not contiguous along its columns."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Atom, Axis, Div, Index, Mod, atoms, floor_div, greatest, modulo
from onnxfuse.ir.indexing import coefficient, substitute, transform
from onnxfuse.ir.kernel import Bind, Loop, Pack, Stmt, When
from onnxfuse.ir.scalar import Guard, Load, cast
from onnxfuse.schedule.nests.nest import RECORDS, Goal, Level
from onnxfuse.schedule.nests.writer import written

APART = 2**24  # elements from a column to the next, at most, of a result that is contiguous along the rows


def turned_results(goal: Goal, sums: Load, loops: Sequence[Level], order: Sequence[Level]) -> tuple[Stmt, ...] | None:
    """Results that are contiguous along the rows: they overwrite the sums, which are then transposed in registers.

    `loops` are over rows and lanes of the tile, which is computed in some `order` of them. Rows of two images are
    contiguous in each of them only: such a tile, of which there are few, stores element by element. None where
    results are not contiguous.
    """
    row, lane = (level.axis for level in loops)
    (first, end), (begin, used) = ((level.begin, level.end or level.axis.extent) for level in loops)
    pitch, image = coefficient(goal.offset, lane), _rows_of_image(goal.offset, row)
    near = pitch is not None and (pitch.constant is None or 1 < pitch.constant < APART)
    inside = goal.offset if image is None else _of_one_image(goal.offset, row, first)
    if pitch is None or not near or coefficient(inside, row) != ONE:
        return None
    k = Axis("k", used if begin == ZERO else greatest(used - begin, ZERO))
    done = Load(sums.source, (substitute(sums.index[0], {lane: begin + k}),), F32)
    at = substitute(inside, {lane: begin, row: first})
    pack = Pack(goal.buffer, at, row, first, end, k, done, pitch, apart=True)
    turned = (*written([Goal(sums.source, sums.index[0], cast(goal.value, F32))], order), pack)
    if image is None:
        return turned
    apart, times = Axis("apart", Index.of(2)), Axis("times", Index.of(2))
    beyond = modulo(first, image) + end - first - image  # rows in the next image
    return (
        Bind(apart, greatest(beyond, ZERO), ONE),
        When((Guard(Index.of(apart), ONE),), turned),
        Loop(times, ZERO, Index.of(apart), "seldom", written([goal], order, "s")),
    )


def _rows_of_image(offset: Index, row: Axis) -> Index | None:
    """How many rows one image has, if rows are divided by that and by nothing else."""
    found = {a.den for a in atoms(offset) if isinstance(a, (Div, Mod)) and a.num == Index.of(row)}
    return next(iter(found)) if len(found) == 1 else None


def _of_one_image(offset: Index, row: Axis, first: Index) -> Index:
    """The offset of rows that are in the same image as the first one."""

    def inside(a: Atom) -> Index | None:
        if not isinstance(a, (Div, Mod)) or a.num != Index.of(row):
            return None
        return floor_div(first, a.den) if isinstance(a, Div) else modulo(first, a.den) + row - first

    return transform(offset, inside)


def record_of(goal: Goal, row: Axis, lane: Axis) -> int:
    """How many rows of a tile are adjacent elements of the result in each lane; 0 if they are not."""
    apart = coefficient(goal.offset, lane)
    count = 0 if apart is None else apart.constant or 0
    if count not in RECORDS or row.extent.constant is None or row.extent.constant % count:
        return 0
    u = Axis("u", floor_div(row.extent, Index.of(count)))
    places = [substitute(goal.offset, {row: Index.of(u) * count + k}) for k in range(count)]
    return count if all(at == places[0] + k for k, at in enumerate(places)) else 0
