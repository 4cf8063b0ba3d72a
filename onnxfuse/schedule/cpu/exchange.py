"""Contractions with operands swapped: filters are the rows of a tile, pixels its columns.

A channels-first image needs no transposition before or after: a panel of pixels is packed where it is multiplied, once
for all filters, and the result is channels first again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from onnxfuse.cost.serial import elements, multiply_adds
from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least
from onnxfuse.ir.indexing import coefficient, flatten, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Prefetch, Split, Stmt, When
from onnxfuse.ir.scalar import Guard, Load, cast, const
from onnxfuse.ir.tile import Packed, Panel, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.operand_order import rows_of_tiles
from onnxfuse.schedule.cpu.tiles import C, Span, epilogue
from onnxfuse.schedule.nests.frame import Frame, flat_in
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

SIDE = "places"  # buffer of a panel of the image
NEAR = 0.5  # fraction of L1 for the panel that all tiles read, and for their sums


def exchanged_phase(job: Job, places: dict[str, Place], target: Cpu) -> Phase:
    """The phase of a contraction with exchanged operands: for each panel of pixels all filters, tile by tile."""
    t = job.tiled
    assert t is not None
    assert t.lines is not None
    rows, depth, width = product(_extents(t.rows)), product(_extents(t.ranges)), target.panel
    tile_rows, panels = rows_of_tiles(t.rows, target.rows), floor_div(t.places + (width - 1), Index.of(width))
    m, line, panel = Axis("m", rows), Axis("l", product(_extents(t.lines))), Axis("p", panels)
    shared = dict(zip(t.rows, unflatten(Index.of(m), _extents(t.rows)), strict=True))
    shared |= dict(zip(t.lines, unflatten(Index.of(line), _extents(t.lines)), strict=True))
    frame = Frame(shared, m, Index.of(Axis("m0", rows)), tile_rows, places)
    inner = _Multiplied(job, t, frame, panel, width, target).statements()
    l0, l1, p0, p1 = (
        Axis(name, a.extent + more) for a in (line, panel) for name, more in ((f"{a.name}0", 0), (f"{a.name}1", 1))
    )
    body: Stmt = Loop(panel, Index.of(p0), Index.of(p1), "serial", inner)
    body = Loop(line, Index.of(l0), Index.of(l1), "serial", (body,))
    splits = (Split(l0, l1, line.extent), Split(p0, p1, panels))
    computed = (
        floor_div(rows + (tile_rows - 1), Index.of(tile_rows)) * tile_rows * panels * width
    )  # unused ones included
    packed = elements(panels * width * depth * line.extent, 0, target.serial)
    work = multiply_adds(computed * depth * line.extent, target) + packed
    return Phase(splits, work, tuple(frame.locals), (body,))


def _extents(axes: Sequence[Axis]) -> tuple[Index, ...]:
    return tuple(a.extent for a in axes)


@dataclass(frozen=True, slots=True)
class _Multiplied:
    """A panel of pixels times all filters, with its epilogue."""

    job: Job
    tiled: Tiled
    frame: Frame
    panel: Axis
    width: int
    target: Cpu

    def statements(self) -> tuple[Stmt, ...]:
        """All statements: the whole reduction at once, or in parts if the panel does not fit in L1."""
        t, frame, width, tile_rows = self.tiled, self.frame, self.width, self.frame.tile_rows
        row, stop = frame.row, Axis("jn", Index.of(width + 1))
        assert row is not None
        tiles = floor_div(row.extent + (tile_rows - 1), Index.of(tile_rows))
        at, end = Axis("t", tiles), Axis("m1", row.extent + 1)
        window = (
            Bind(Axis("m0", row.extent), Index.of(at) * tile_rows),
            Bind(end, Index.of(at) * tile_rows + tile_rows, row.extent),
        )
        outer = self.outer(tiles * tile_rows)
        depth, some = (product(_extents(ranges)) for ranges in (t.ranges, t.ranges[outer:]))
        sums = (C, Index.of(at) * tile_rows * width if outer else ZERO)
        frame.local(SIDE, some * width)
        frame.local(C, tiles * tile_rows * width if outer else Index.of(width * tile_rows))
        left = Packed(t.left.source, Index.of(at) * depth * tile_rows, 1, some)
        right = Panel(SIDE, ZERO, ZERO if outer else Index.of(stop))
        tile = Tile(C, sums[1], Index.of(tile_rows), TileCore(tile_rows, width), left, right)
        finish = _line_by_line if t.pitch else epilogue
        stored = finish(self.job, frame, self.panel, width, row, Index.of(end), sums)
        if self.far:
            stored = (Loop(row, frame.first, Index.of(end), "serial", (self.next_results(),)), *stored)
        known = Bind(stop, t.places - Index.of(self.panel) * width, Index.of(width))
        if not outer:
            lanes = self.target.lanes
            used = floor_div(Index.of(stop) + (lanes - 1), Index.of(lanes)) * lanes
            return (known, *self.side(stop, used, {}), Loop(at, ZERO, tiles, "serial", (*window, tile, *stored)))
        part = Axis("d", product(_extents(t.ranges[:outer])))
        digits = dict(zip(t.ranges[:outer], unflatten(Index.of(part), _extents(t.ranges[:outer])), strict=True))
        tile = replace(tile, left=replace(left, at=left.at + part * some * tile_rows), more=Index.of(part))
        made = (*self.side(stop, Index.of(width), digits), Loop(at, ZERO, tiles, "serial", (tile,)))
        return (
            known,
            Loop(part, ZERO, part.extent, "serial", made),
            Loop(at, ZERO, tiles, "serial", (*window, *stored)),
        )

    @property
    def far(self) -> bool:
        """Whether the image lies beyond a core's own cache, so that lines are prefetched."""
        size = product(self.job.nest.shape).constant or 0
        return self.target.prefetches(size * self.job.nest.dtype.bytes)

    def next_results(self) -> Prefetch:
        """A prefetch of what the next panel of pixels stores in the current row."""
        t, place = self.tiled, self.frame.places[self.job.nest.name]
        column = (Index.of(self.panel) + 1) * self.width
        values = dict(zip(t.columns, unflatten(column, _extents(t.columns)), strict=True))
        dims = tuple(substitute(substitute(e, values), self.frame.shared) for e in self.job.nest.dims)
        return Prefetch(place.buffer, place.offset(dims), self.width)

    def next_lines(self, read: Load, ranges: Sequence[Axis], lane: Axis) -> tuple[Stmt, ...]:
        """Prefetches of the next panel of pixels: of each line, not of each tap along it."""
        at, width = read.index[0], Index.of(self.width)
        apart = (coefficient(at, lane) or ZERO).constant
        pitches = {r: (coefficient(at, r) or ZERO).constant or 0 for r in ranges}
        lines = [r for r in ranges if pitches[r] >= self.width]
        if not self.far or not apart or coefficient(at, self.panel) != width * apart:
            return ()
        begin = substitute(at, dict.fromkeys([lane, *(r for r in ranges if r not in lines)], ZERO)) + width * apart
        fetched: tuple[Stmt, ...] = (Prefetch(read.source, begin, self.width * apart),)
        for r in reversed(lines):
            fetched = (Loop(r, ZERO, r.extent, "serial", fetched),)
        return fetched

    def outer(self, rows: Index) -> int:
        """How many of the reduction axes, from the first one on, iterate over parts of the reduction."""
        room = NEAR * self.target.l1_bytes / (F32.bytes * self.width)
        extents = [a.extent.constant for a in self.tiled.ranges]
        known = [e for e in extents if e is not None]
        if len(known) < len(extents) or (rows.constant or room + 1) > room:
            return 0
        return next((at for at in range(len(known)) if prod(known[at:]) <= room), 0)

    def side(self, stop: Axis, end: Index, digits: Mapping[Axis, Index]) -> tuple[Stmt, ...]:
        """Packs a panel of pixels: a row of whole vectors for each step of the reduction.

        It is padded with zeros, since a tile multiplies the padding too, and subnormals in it would be slow.
        """
        t, width = self.tiled, self.width
        lane, column = Axis("j", Index.of(width)), Index.of(self.panel) * width + Axis("j", Index.of(width))
        values = dict(zip(t.columns, unflatten(column, _extents(t.columns)), strict=True))
        if t.pitch:  # elements between two lines are read too
            values = dict(zip(t.columns, (ZERO, column), strict=True))
        inner = [r for r in t.ranges if r not in digits]
        step = flatten(tuple(map(Index.of, inner)), _extents(inner))
        read = flat_in(substitute_axes(t.right, {**values, **digits}), self.frame)
        assert isinstance(read, Load)
        apart = coefficient(read.index[0], lane) or ONE
        inside = (Guard(Index.of(lane) * apart, Index.of(stop) * apart),)
        known = replace(read, guards=inside, otherwise=const(0.0, read.dtype))
        to = step * width + lane

        def copied(x: Load, end: Index, prefix: str) -> tuple[Stmt, ...]:
            levels = [*map(Level, inner), Level(lane, "vector", ZERO, end)]
            return written([Goal(SIDE, to, cast(x, F32))], levels, prefix)

        ahead = self.next_lines(read, inner, lane)
        if t.places.constant is not None and t.places.constant % width == 0:
            return (*ahead, *copied(read, Index.of(width), "x"))
        missing = width - Index.of(stop)
        return (
            *ahead,
            When((Guard(missing, ONE),), copied(read, Index.of(width), "x")),
            When((Guard(missing - 1, Index.of(width)),), copied(known, end, "y")),
        )


def _line_by_line(
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
    lines = (floor_div(first, Index.of(t.pitch)), floor_div(first + stop - 1, Index.of(t.pitch)) + 1)
    return (Loop(at, *lines, "serial", body),)
