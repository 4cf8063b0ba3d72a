"""Contractions with their sides exchanged: filters are the rows of a tile, places of an image are its columns.

An image whose lines lie side by side is neither turned before nor behind: a panel of places is put together where it is
multiplied, once for all filters, and what is made of it lies as the image does.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least
from onnxfuse.ir.indexing import coefficient, flatten, product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt, Tile
from onnxfuse.ir.scalar import Guard, Load, const
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.tiles import C, Span, epilogue
from onnxfuse.schedule.nests.frame import Frame, flat_in
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level
from onnxfuse.schedule.nests.tiled import Tiled, balanced
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Target

SIDE = "places"  # a panel of the image


def exchanged_phase(job: Job, places: dict[str, Place], target: Target) -> Phase:
    """The phase of a contraction with its sides exchanged: for each panel of places all filters, tile by tile."""
    t = job.tiled
    assert t is not None
    assert t.lines is not None
    rows, columns = product([a.extent for a in t.rows]), t.places
    depth, width = product([a.extent for a in t.ranges]), target.panel
    tall = balanced(rows.constant, target.rows)
    tiles, panels = floor_div(rows + (tall - 1), Index.of(tall)), floor_div(columns + (width - 1), Index.of(width))
    m, first, end, at = Axis("m", rows), Axis("m0", rows), Axis("m1", rows + 1), Axis("t", tiles)
    line, panel = Axis("l", product([a.extent for a in t.lines])), Axis("p", panels)
    shared = dict(zip(t.rows, unflatten(Index.of(m), tuple(a.extent for a in t.rows)), strict=True))
    shared |= dict(zip(t.lines, unflatten(Index.of(line), tuple(a.extent for a in t.lines)), strict=True))
    frame = Frame(shared, m, Index.of(first), tall, places)
    frame.local(SIDE, depth * width)
    frame.local(C, Index.of(width * tall))
    tile = Tile(
        C, ZERO, Index.of(tall), tall, "packed", t.left.source, Index.of(at) * depth * tall, 1, depth, SIDE, ZERO,
        width, columns=Index.of(Axis("jn", Index.of(width + 1))),
    )  # fmt: skip
    window = (Bind(first, Index.of(at) * tall), Bind(end, Index.of(at) * tall + tall, rows))
    stored = (_line_by_line if t.pitch else epilogue)(job, frame, panel, width, m, Index.of(end))
    inner = (*_panel(t, frame, panel, width, target.lanes), Loop(at, ZERO, tiles, "serial", (*window, tile, *stored)))
    l0, l1, p0, p1 = (
        Axis(name, a.extent + more) for a in (line, panel) for name, more in ((f"{a.name}0", 0), (f"{a.name}1", 1))
    )
    body: Stmt = Loop(panel, Index.of(p0), Index.of(p1), "serial", inner)
    body = Loop(line, Index.of(l0), Index.of(l1), "serial", (body,))
    splits = (Split(l0, l1, line.extent), Split(p0, p1, panels))
    step = max(1, round(2e3 / target.gflops))
    return Phase(splits, rows * step * depth * columns * line.extent, tuple(frame.locals), (body,))


def _panel(t: Tiled, frame: Frame, panel: Axis, width: int, lanes: int) -> tuple[Stmt, ...]:
    """What puts a panel of places together: a row for each step of the sum, in whole vectors.

    Zeros lie behind the last place: a tile multiplies those too, and what memory held may be subnormal: slow.
    """
    lane, column = Axis("j", Index.of(width)), Index.of(panel) * width + Axis("j", Index.of(width))
    values = dict(zip(t.columns, unflatten(column, tuple(a.extent for a in t.columns)), strict=True))
    if t.pitch:  # what lies between two lines is read with them
        values = dict(zip(t.columns, (ZERO, column), strict=True))
    stop = Axis("jn", Index.of(width + 1))
    step = flatten(tuple(map(Index.of, t.ranges)), tuple(a.extent for a in t.ranges))
    read = flat_in(substitute_axes(t.right, values), frame)
    assert isinstance(read, Load)
    apart = coefficient(read.index[0], lane) or ONE
    inside = (Guard(Index.of(lane) * apart, Index.of(stop) * apart),)
    goal = Goal(SIDE, step * width + lane, replace(read, guards=inside, otherwise=const(0.0, read.dtype)))
    end = floor_div(Index.of(stop) + (lanes - 1), Index.of(lanes)) * lanes
    levels = [*map(Level, t.ranges), Level(lane, "vector", ZERO, end)]
    return (Bind(stop, t.places - Index.of(panel) * width, Index.of(width)), *written([goal], levels, "x"))


def _line_by_line(job: Job, frame: Frame, panel: Axis, width: int, row: Axis, end: Index) -> tuple[Stmt, ...]:
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
    body = (*binds, *epilogue(job, frame, panel, width, row, end, span=span))
    lines = (floor_div(first, Index.of(t.pitch)), floor_div(first + stop - 1, Index.of(t.pitch)) + 1)
    return (Loop(at, *lines, "serial", body),)
