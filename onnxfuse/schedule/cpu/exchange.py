"""Contractions with operands swapped: filters are the rows of a tile, pixels its columns.

An image whose lines lie side by side is neither turned before nor behind: a panel of places is put together where it is
multiplied, once for all filters, and what is made of it lies as the image does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least
from onnxfuse.ir.indexing import coefficient, flatten, product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt, When
from onnxfuse.ir.scalar import Guard, Load, cast, const
from onnxfuse.ir.tile import Packed, Panel, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.sides import rows_of_tiles
from onnxfuse.schedule.cpu.tiles import C, Span, epilogue
from onnxfuse.schedule.nests.frame import Frame, flat_in
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

SIDE = "places"  # a panel of the image
NEAR = 0.5  # share of L1 that a panel may take which all tiles read, and that their sums may take


def exchanged_phase(job: Job, places: dict[str, Place], target: Cpu) -> Phase:
    """The phase of a contraction with its sides exchanged: for each panel of places all filters, tile by tile."""
    t = job.tiled
    assert t is not None
    assert t.lines is not None
    rows, depth, width = product(_extents(t.rows)), product(_extents(t.ranges)), target.panel
    tall, panels = rows_of_tiles(t.rows, target.rows), floor_div(t.places + (width - 1), Index.of(width))
    m, line, panel = Axis("m", rows), Axis("l", product(_extents(t.lines))), Axis("p", panels)
    shared = dict(zip(t.rows, unflatten(Index.of(m), _extents(t.rows)), strict=True))
    shared |= dict(zip(t.lines, unflatten(Index.of(line), _extents(t.lines)), strict=True))
    frame = Frame(shared, m, Index.of(Axis("m0", rows)), tall, places)
    inner = _Multiplied(job, t, frame, panel, width, target).statements()
    l0, l1, p0, p1 = (
        Axis(name, a.extent + more) for a in (line, panel) for name, more in ((f"{a.name}0", 0), (f"{a.name}1", 1))
    )
    body: Stmt = Loop(panel, Index.of(p0), Index.of(p1), "serial", inner)
    body = Loop(line, Index.of(l0), Index.of(l1), "serial", (body,))
    splits = (Split(l0, l1, line.extent), Split(p0, p1, panels))
    step = max(1, round(2e3 / target.gflops))
    computed = floor_div(rows + (tall - 1), Index.of(tall)) * tall * panels * width  # with what is so in vain
    return Phase(splits, computed * step * depth * line.extent, tuple(frame.locals), (body,))


def _extents(axes: Sequence[Axis]) -> tuple[Index, ...]:
    return tuple(a.extent for a in axes)


@dataclass(frozen=True, slots=True)
class _Multiplied:
    """A panel of places times all filters, and what is done with the results."""

    job: Job
    tiled: Tiled
    frame: Frame
    panel: Axis
    width: int
    target: Cpu

    def statements(self) -> tuple[Stmt, ...]:
        """All of it: at once, or where that finds no place in L1, in parts of the sums."""
        t, frame, width, tall = self.tiled, self.frame, self.width, self.frame.tall
        row, stop = frame.row, Axis("jn", Index.of(width + 1))
        assert row is not None
        tiles = floor_div(row.extent + (tall - 1), Index.of(tall))
        at, end = Axis("t", tiles), Axis("m1", row.extent + 1)
        window = (
            Bind(Axis("m0", row.extent), Index.of(at) * tall),
            Bind(end, Index.of(at) * tall + tall, row.extent),
        )
        outer = self.outer(tiles * tall)
        depth, some = (product(_extents(ranges)) for ranges in (t.ranges, t.ranges[outer:]))
        sums = (C, Index.of(at) * tall * width if outer else ZERO)
        frame.local(SIDE, some * width)
        frame.local(C, tiles * tall * width if outer else Index.of(width * tall))
        left = Packed(t.left.source, Index.of(at) * depth * tall, 1, some)
        right = Panel(SIDE, ZERO, ZERO if outer else Index.of(stop))
        tile = Tile(C, sums[1], Index.of(tall), TileCore(tall, width), left, right)
        finish = _line_by_line if t.pitch else epilogue
        stored = finish(self.job, frame, self.panel, width, row, Index.of(end), sums)
        known = Bind(stop, t.places - Index.of(self.panel) * width, Index.of(width))
        if not outer:
            lanes = self.target.lanes
            used = floor_div(Index.of(stop) + (lanes - 1), Index.of(lanes)) * lanes
            return (known, *self.side(stop, used, {}), Loop(at, ZERO, tiles, "serial", (*window, tile, *stored)))
        part = Axis("d", product(_extents(t.ranges[:outer])))
        digits = dict(zip(t.ranges[:outer], unflatten(Index.of(part), _extents(t.ranges[:outer])), strict=True))
        tile = replace(tile, left=replace(left, at=left.at + part * some * tall), more=Index.of(part))
        made = (*self.side(stop, Index.of(width), digits), Loop(at, ZERO, tiles, "serial", (tile,)))
        return (
            known,
            Loop(part, ZERO, part.extent, "serial", made),
            Loop(at, ZERO, tiles, "serial", (*window, *stored)),
        )

    def outer(self, rows: Index) -> int:
        """How many of the ranges, from the first one on, lead from one part of the sums to the next."""
        room = NEAR * self.target.l1_bytes / (F32.bytes * self.width)
        extents = [a.extent.constant for a in self.tiled.ranges]
        known = [e for e in extents if e is not None]
        if len(known) < len(extents) or (rows.constant or room + 1) > room:
            return 0
        return next((at for at in range(len(known)) if prod(known[at:]) <= room), 0)

    def side(self, stop: Axis, end: Index, digits: Mapping[Axis, Index]) -> tuple[Stmt, ...]:
        """What puts a panel of places together: a row for each step of the sum, in whole vectors.

        Zeros lie behind the last place: a tile multiplies those too, and what memory held may be subnormal: slow.
        """
        t, width = self.tiled, self.width
        lane, column = Axis("j", Index.of(width)), Index.of(self.panel) * width + Axis("j", Index.of(width))
        values = dict(zip(t.columns, unflatten(column, _extents(t.columns)), strict=True))
        if t.pitch:  # what lies between two lines is read with them
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

        if t.places.constant is not None and t.places.constant % width == 0:
            return copied(read, Index.of(width), "x")
        missing = width - Index.of(stop)
        return (
            When((Guard(missing, ONE),), copied(read, Index.of(width), "x")),
            When((Guard(missing - 1, Index.of(width)),), copied(known, end, "y")),
        )


def _line_by_line(
    job: Job, frame: Frame, panel: Axis, width: int, row: Axis, end: Index, sums: tuple[str, Index]
) -> tuple[Stmt, ...]:
    """What is done with the sums of a panel that holds parts of several lines: each line by itself."""
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
