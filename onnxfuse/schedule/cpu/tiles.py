"""Parts of phases with register tiles: windows of rows, operands of a tile, and its epilogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from onnxfuse.ir.compose import loads, rebuild, substitute_axes
from onnxfuse.ir.dtype import F16, F32
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    axes_of,
    floor_div,
    greatest,
    least,
    lower,
    nonnegative,
    upper,
)
from onnxfuse.ir.indexing import coefficient, flatten, looked_up, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Prefetch, Stmt, When
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.ir.tile import Channels, Coding, Quantized
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.cpu.tile_results import record_of, turned_results
from onnxfuse.schedule.nests.frame import Frame, flat_in
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

C = "acc"  # the register tile's buffer
PACKED = "packed"
TABLE = "rows"  # row pointers
PADDING = "padding"  # a row of the zero point
TRANSPOSED_TYPES = (F32, F16)  # dtypes that are transposed in registers before they are stored


def tile_window(at: Axis, tiles: Index, rows: Index, first: Axis) -> tuple[Stmt, ...]:
    """Rows m0 up to m1 of tile `at`: all tiles within one row of the same height."""
    last = Axis("m1", rows + 1)
    return (
        Bind(first, floor_div(Index.of(at) * rows, tiles)),
        Bind(last, floor_div((Index.of(at) + 1) * rows, tiles)),
    )


@dataclass(frozen=True, slots=True)
class TileLoop:
    """The row tiles `at` from `begin` to `end` that a task takes together; `window` binds the rows of one."""

    at: Axis
    begin: Index
    end: Index
    window: tuple[Stmt, ...]

    @property
    def number(self) -> Index:
        """The number of a tile among these."""
        return Index.of(self.at) - self.begin

    def over(self, *body: Stmt) -> Loop:
        """The loop over these tiles."""
        return Loop(self.at, self.begin, self.end, "serial", (*self.window, *body))


def even_tiles(tiles: Index, rows: Index, first: Axis, begin: Axis, end: Axis) -> TileLoop:
    """Those from `begin` to `end` of so many tiles of the same height; the first row of a tile is `first`."""
    at = Axis("t", tiles)
    return TileLoop(at, Index.of(begin), Index.of(end), tile_window(at, tiles, rows, first))


def copied_rows(t: Tiled, frame: Frame, first: Axis, to: Index, rows: int | None) -> tuple[Stmt, ...]:
    """Statements that pack rows which lie side by side in memory, vector by vector.

    Of so many `rows` in all, tiles have two heights at most, each with a loop of its own: where vectors are cut off, it
    is known to how many lanes.
    """
    m, step = frame.row, flatten(tuple(map(Index.of, t.ranges)), tuple(a.extent for a in t.ranges))
    assert m is not None
    height, value = Index.of(Axis("m1", m.extent + 1)) - first, flat_in(t.left, frame)

    def copied(here: Mapping[Axis, Index], lane: Level, height: Index, prefix: str) -> tuple[Stmt, ...]:
        goal = Goal(PACKED, to + step * height + m - first, value).substituted(here)
        return written([goal], [*map(Level, t.ranges), lane], prefix)

    if rows is None:
        return copied({}, Level(m, "vector", Index.of(first), height + first), height, "")
    count = -(-rows // frame.tile_rows)
    low, higher = divmod(rows, count)
    made: list[Stmt] = []
    for each, tiles in ((low, count - higher), (low + 1, higher)):
        lane = Axis("i", Index.of(each))
        loops = copied({m: Index.of(first) + lane}, Level(lane, "vector"), Index.of(each), f"h{each}")
        if 2 * tiles < count:  # the others tell what it costs
            loops = tuple(replace(s, kind="seldom") if isinstance(s, Loop) else s for s in loops)
        if tiles:
            made += (When((Guard(height - each, ONE),), loops),) if tiles < count else loops
    return tuple(made)


def left_load(left: Load, ranges: tuple[Axis, ...], segments: tuple[Axis, ...], frame: Frame) -> Load:
    """The load of the first element of each contiguous piece of the left side."""
    start = {r: ZERO for r in ranges if r not in segments}
    got = flat(substitute_axes(substitute_axes(left, frame.shared), start), frame.places)
    assert isinstance(got, Load)
    return got


def pieces_of(t: Tiled, frame: Frame) -> list[tuple[Load, tuple[Axis, ...], int]]:
    """The loads of the segments of unpacked rows, each with the axes that number them and how many are before it."""
    if not t.segment:
        return [(left_load(t.left, (*t.ranges, *t.columns), t.pieces, frame), t.pieces, 0)]
    made: list[tuple[Load, tuple[Axis, ...], int]] = []
    for part in t.parts:
        start = left_load(part.load, (*t.ranges, part.axis), (), frame)
        axis = Axis("s", floor_div(part.axis.extent, Index.of(t.segment)))
        load = replace(start, index=(start.index[0] + Index.of(axis) * t.segment,))
        made.append((load, (axis,), part.begin // t.segment))
    return made


def even_rows(
    t: Tiled, rows: Sequence[Axis], load: Load, row: Axis, tile_rows: int, places: Mapping[str, Place]
) -> bool:
    """Whether in every tile all rows but the first and the last are proven to be equidistant.

    `load` is the left side in the flat axis `row`, the fusion of `rows`; a tile has at most `tile_rows` rows.
    """
    if not load.guards and coefficient(load.index[0], row) is not None:
        return True
    if not rows:
        return False
    x = rows[-1]
    lines = x.extent.constant is not None and x.extent.constant % tile_rows == 0  # a tile is a part of one
    affine = coefficient(places[t.left.source].offset(t.left.index), x) is not None
    return lines and affine and all(_padded_at_ends(g, x) for g in t.left.guards)


def _padded_at_ends(g: Guard, x: Axis) -> bool:
    """Whether a guard, for every tap, is uniform along a line or fails at its first and last element only."""
    step, width = coefficient(g.index, x), x.extent.constant or 0
    if step == ZERO:
        return True
    rest = substitute(g.index, {x: ZERO})
    if step is None or step.constant is None or step.constant < 0:
        return False
    first, last = lower(rest), upper(rest)
    if first is None or last is None:
        return False
    return nonnegative(first + step) and nonnegative(g.extent - 1 - last - step * (width - 2))


def right_offset(t: Tiled, frame: Frame) -> Index:
    """The offset of a panel of the right side."""
    start = dict.fromkeys((*t.ranges, t.lane), ZERO)
    index = tuple(substitute(substitute(e, frame.shared), start) for e in t.right.index)
    return frame.places[t.right.source].offset(index)


def coding(t: Tiled, frame: Frame, panel: Axis, width: int) -> tuple[Coding | None, Index]:
    """The quantization of a tile, and the number of valid columns of the panel; None for floats."""
    if t.zeros is None:
        return None, ZERO
    left, right = (flat(zero, frame.places) for zero in t.zeros)
    first = Index.of(panel) * width
    zeros: Scalar | tuple[str, Index] = right
    if isinstance(right, Load) and axes_of(right.index[0]):
        start = dict.fromkeys(axes_of(right.index[0]), first)
        zeros = (right.source, substitute(right.index[0], start))
    columns = product([a.extent for a in t.columns]) - first
    return Coding(t.left.dtype, left, t.right.dtype, zeros), columns


def quantized_left(t: Tiled, at: Index, quantization: Coding, tile_rows: int) -> Quantized:
    """The left side of a quantized tile of so many rows, from entry `at` of the pointer table on."""
    found = (TABLE, at, product([s.extent for s in t.segments]).constant or 1, t.length, quantization)
    return (
        Channels(*found, Index.of(t.panel) * t.lane.extent, _slides(t, tile_rows)) if t.channels else Quantized(*found)
    )


def _slides(t: Tiled, tile_rows: int) -> bool:
    """Whether windows of neighbouring rows of a tile are one column apart: tiles are parts of a line."""
    if not t.segments or t.rows[-1].extent.constant is None or t.rows[-1].extent.constant % tile_rows:
        return False
    moved, stepped = (substitute_axes(t.left, {a: Index.of(a) + 1}) for a in (t.rows[-1], t.ranges[0]))
    return moved == stepped


def half_panel(t: Tiled, panel: Axis, target: Cpu) -> tuple[Bind, ...]:
    """The bind of the number of columns of a panel, if the last panel leaves whole vectors unused."""
    count, width = product([a.extent for a in t.columns]), target.panel
    if not 1 <= (count.constant or 0) % width <= width - target.lanes:
        return ()
    return (Bind(Axis("jn", Index.of(width + 1)), count - Index.of(panel) * width, Index.of(width)),)


def padding_of(t: Tiled, frame: Frame) -> tuple[tuple[Stmt, ...], str]:
    """Statements that write a row of padding (the zero point), and its name, for a padded quantized operand."""
    if t.zeros is None or not t.left.guards:
        return (), ""
    at = Axis("z", t.reach)
    frame.local(PADDING, t.reach, t.left.dtype)
    goal = Goal(PADDING, Index.of(at), flat(t.zeros[0], frame.places))
    return written([goal], [Level(at, "vector")]), PADDING


def _prefetches(value: Scalar, sums: str, lane: Axis, row: Axis, tile_rows: int, width: int) -> Iterator[Prefetch]:
    """Prefetches of the elements that the next tile reads, in each tensor that varies with lanes and rows.

    Not of looked-up elements: after the last row, the lookup of their indices would be out of bounds.
    """
    for load in loads(value):
        at = load.index[0]
        if looked_up(at):
            continue
        if load.source != sums and coefficient(at, lane) == ONE and row in axes_of(at):
            yield Prefetch(load.source, substitute(at, {lane: ZERO, row: Index.of(row) + tile_rows}), width)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of lanes of a panel, and the columns they stand for."""

    columns: Mapping[Axis, Index]
    begin: Axis
    end: Axis


@dataclass(frozen=True, slots=True)
class EarlyLines:
    """Where the lines of a result are fetched before they are stored to: if nothing else is, and beside operands.

    None: nowhere; otherwise where guards hold, which are none if the size of the result is known.
    """

    alone: tuple[Guard, ...] | None = None
    with_operands: tuple[Guard, ...] | None = None

    def beside(self, operands: Sequence[Prefetch]) -> tuple[Guard, ...] | None:
        """Where they are, beside these operands."""
        return self.with_operands if operands else self.alone


NEVER = EarlyLines()


def early_lines(job: Job, target: Cpu) -> EarlyLines:
    """For the result of a job: where it exceeds a share of L2."""
    size, elements = product(job.nest.shape), target.l2_bytes / job.nest.dtype.bytes
    return EarlyLines(*(exceeds(size, share * elements) for share in target.early_lines))


def exceeds(size: Index, number: float) -> tuple[Guard, ...] | None:
    """The guards under which a size exceeds a number; None if it never does."""
    if size.constant is not None or number == inf:
        return () if (size.constant or 0) > number else None
    return (Guard(size - (int(number) + 1), size),)


def epilogue(
    job: Job,
    frame: Frame,
    panel: Axis,
    width: int,
    row: Axis,
    end: Index,
    sums: tuple[str, Index] = (C, ZERO),
    prefetch: bool = False,
    span: Span | None = None,
    early: EarlyLines = NEVER,
) -> tuple[Stmt, ...]:
    """The epilogue of a tile whose accumulators are in `sums`: the rest of the expression, vectorised over columns.

    With `prefetch`, the operands of the next tile's epilogue are prefetched, and the lines that it stores to, if they
    are fetched `early`. With a `span`, only its columns are computed. If the result is contiguous along the rows, it
    overwrites the sums first, and the tile is transposed in registers.
    """
    tiled = job.tiled
    assert tiled is not None
    lane = Axis("j", Index.of(width))
    values, begin, used, bind = _all_columns(tiled, panel, lane, width)
    if span is not None:
        values, begin, used, bind = span.columns, Index.of(span.begin), Index.of(span.end), ()
    here = Load(sums[0], (sums[1] + (Index.of(row) - frame.first) * width + lane,), tiled.product.sums)
    finish = rebuild(tiled.finish, lambda n: here if isinstance(n, Load) and n.source == "%acc" else None, lambda i: i)
    places = frame.places | {sums[0]: Place(sums[0], tiled.product.sums, lambda i: i[0])}
    value = flat_in(
        substitute_axes(finish, values),
        Frame(frame.shared, frame.row, frame.first, frame.tile_rows, places),
    )
    dims = tuple(substitute(substitute(e, values), frame.shared) for e in job.nest.dims)
    place = frame.places[job.nest.name]
    loops = [Level(row, "serial", frame.first, end), Level(lane, "vector", begin, used)]
    ahead = tuple(_prefetches(value, sums[0], lane, row, frame.tile_rows, width)) if prefetch else ()
    goal = Goal(place.buffer, place.offset(dims), value)
    fetched: tuple[Stmt, ...] = ()
    if (guards := early.beside(ahead)) is not None and coefficient(goal.offset, lane) == ONE:
        at = substitute(goal.offset, {lane: ZERO, row: Index.of(row) + frame.tile_rows})
        lines = Prefetch(place.buffer, at, width)
        ahead = (*ahead, lines) if not guards else ahead
        fetched = (When(guards, (Loop(row, frame.first, end, "serial", (lines,)),)),) if guards else ()
    order = loops if tiled.zeros is None else loops[::-1]  # values shared by the columns are computed once
    turns = place.dtype in TRANSPOSED_TYPES and tiled.product.sums == F32
    turned = turned_results(goal, here, loops, order) if turns else None
    exchanged = tiled.lines is not None and place.dtype == F32
    record = record_of(goal, row, lane) if exchanged and turned is None else 0
    if record:
        u = Axis("u", floor_div(row.extent, Index.of(record)))
        each = Level(u, "serial", *(floor_div(e, Index.of(record)) for e in (frame.first, end)))
        goals = [goal.substituted({row: Index.of(u) * record + k}) for k in range(record)]
        return (*bind, *written(goals, [each, loops[1]], interleaved=True))
    stored = written([goal], order) if turned is None else turned
    return (*bind, *((Loop(row, frame.first, end, "serial", ahead),) if ahead else ()), *fetched, *stored)


def _all_columns(
    t: Tiled, panel: Axis, lane: Axis, width: int
) -> tuple[Mapping[Axis, Index], Index, Index, tuple[Stmt, ...]]:
    """The columns of a panel with its first and end lane, and the binds that define them."""
    extents, column = tuple(a.extent for a in t.columns), Index.of(panel) * width + lane
    columns, values = product(extents), dict(zip(t.columns, unflatten(column, extents), strict=True))
    if columns.constant is not None and columns.constant % width == 0:
        return values, ZERO, Index.of(width), ()
    stop = Axis("jn", Index.of(width + 1))
    return values, ZERO, Index.of(stop), (Bind(stop, columns - Index.of(panel) * width, Index.of(width)),)


def line_by_line(
    job: Job, frame: Frame, panel: Axis, width: int, row: Axis, end: Index, sums: tuple[str, Index]
) -> tuple[Stmt, ...]:
    """The epilogue of a panel that holds parts of several lines, line by line."""
    t = job.tiled
    assert t is not None
    line, place = t.columns
    first, stop = Index.of(panel) * width, Index.of(Axis("jn", Index.of(width + 1)))
    at, begin, beyond = Axis("ll", line.extent), Axis("j0", Index.of(width)), Axis("j1", Index.of(width + 1))
    ahead = Index.of(at) * t.pitch - first  # lanes before the line
    span = Span({line: Index.of(at), place: Index.of(Axis("j", Index.of(width))) - ahead}, begin, beyond)
    binds = (
        Bind(begin, greatest(ahead, ZERO)),
        Bind(beyond, least(ahead + place.extent, stop)),
    )
    body = (*binds, *epilogue(job, frame, panel, width, row, end, sums, span=span))
    lines = (floor_div(first, t.pitch), floor_div(first + stop - 1, t.pitch) + 1)
    return (Loop(at, *lines, "serial", body),)
