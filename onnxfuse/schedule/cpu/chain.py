"""Consecutive contractions in one phase: each block of rows goes through all of them before the next block does.

Before the first of them, its rows may be computed: a normalization, an activation, a scale for each channel.

What one makes for the next alone stays in a buffer of the task, where it is read again while it is near. In return each
task reads all weights, so that there are as few tasks as cores, all of about as many rows.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.tile import EVEN_ENTRIES, Ahead, Panel, Pointers, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.gemm import POINTERS, height
from onnxfuse.schedule.cpu.rows import in_rows
from onnxfuse.schedule.cpu.tiles import (
    TABLE,
    C,
    epilogue,
    even_rows,
    left_load,
    right_offset,
    tile_window,
)
from onnxfuse.schedule.nests.align import Together
from onnxfuse.schedule.nests.frame import Frame, flat_in, goal_of, inner_axes, work_of
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.target import Cpu

SHARES = 4  # tiles are divided evenly among as many cores, where rows allow
LEAST = 8  # rows of a tile, for that
PAGE = 1024  # elements: rows at such a distance from each other meet in the same few lines of a cache


def chain_phase(t: Together, places: dict[str, Place], kept: set[str], target: Cpu) -> Phase:
    """The phase of contractions that share their rows, whose number is known. `kept` are values that are read later."""
    rows = product([a.extent for a in t.rows])
    products = [j for j in t.jobs if j.tiled is not None]
    count, tall = _tiles(products[0], rows.constant or 1, places, target)
    tiles = Index.of(count)
    m, first, begin = Axis("m", rows), Axis("m0", rows), Axis("mb", rows)
    digits = unflatten(Index.of(m), tuple(a.extent for a in t.rows))
    frame = Frame(dict(zip(t.rows, digits, strict=True)), m, Index.of(first), tall, places)
    inside = [j for j in t.jobs if j.nest.name not in kept and not j.nest.output]
    rooms = _rooms(inside, t)
    widths: dict[str, int] = {}
    for j in inside:
        widths[rooms[j.nest.name]] = max(widths.get(rooms[j.nest.name], 0), _pitch(j, t))
    entries = max(_segments(j) * max(tall, EVEN_ENTRIES) for j in products)
    block = max(1, min(target.l2_bytes // 4 // (4 * tall * max(1, sum(widths.values()))), POINTERS // entries, count))
    for room, width in widths.items():
        frame.local(room, Index.of(block * tall * width))
    for j in inside:
        frame.places[j.nest.name] = _place(j, t, rooms[j.nest.name], begin)
    frame.local(TABLE, Index.of(entries * block), F32, "pointers")
    frame.local(C, Index.of(target.panel * tall))
    u0, u1 = Axis("u0", tiles), Axis("u1", tiles + 1)
    t0, t1, rb = Axis("t0", tiles), Axis("t1", tiles + 1), Axis("rb", tiles)
    start = Index.of(u0) + Index.of(rb) * block
    bounds = (
        Bind(t0, start),
        Bind(t1, start + block, Index.of(u1)),
        Bind(begin, floor_div(Index.of(t0) * rows, tiles)),
    )
    following = (*t.jobs[1:], None)
    stages = [
        s
        for j, then in zip(t.jobs, following, strict=True)
        for s in (
            _stage(j, then, frame, (tiles, t0, t1), first, target)
            if j.tiled is not None
            else _prologue(j, t, frame, (tiles, t0, t1), first)
        )
    ]
    blocks = floor_div(Index.of(u1) - u0 + (block - 1), Index.of(block))
    loop = Loop(rb, ZERO, blocks, "serial", (*bounds, *stages))
    return Phase((Split(u0, u1, tiles),), _work(t, rows), tuple(frame.locals), (loop,), few=True)


def _tiles(job: Job, rows: int, places: dict[str, Place], target: Cpu) -> tuple[int, int]:
    """Tiles of the first contraction, and rows of the tallest: parts of an image's lines, or as cores share evenly."""
    tiled = job.tiled
    assert tiled is not None
    tall = height(tiled, places[tiled.left.source].offset(tiled.left.index), target)
    count = -(-rows // tall)
    even = -(-count // SHARES) * SHARES
    if rows % tall and rows // even >= LEAST:
        count = even
    return count, -(-rows // count)


def _segments(job: Job) -> int:
    assert job.tiled is not None
    return product([s.extent for s in job.tiled.segments]).constant or 1


def _pitch(job: Job, t: Together) -> int:
    """Elements from one row of a value in a buffer to the next."""
    size = product([a.extent for a in inner_axes(job.nest, t)]).constant or 1
    return size + 16 if size % PAGE == 0 else size


def _rooms(inside: list[Job], t: Together) -> dict[str, str]:
    """Buffers for values: one whose last reader comes before a value is made is free for that value."""
    at = {j.nest.name: k for k, j in enumerate(t.jobs)}
    last = {name: max(k for k, j in enumerate(t.jobs) if name in _read(j)) for name in (j.nest.name for j in inside)}
    rooms: dict[str, str] = {}
    free: dict[str, int] = {}  # the last reader of what is in it
    for name in last:
        room = next((r for r, until in free.items() if until < at[name]), f"between{len(free)}")
        rooms[name], free[room] = room, last[name]
    return rooms


def _read(job: Job) -> set[str]:
    return {x.source for x in job.reads}


def _place(job: Job, t: Together, room: str, begin: Axis) -> Place:
    """A value in a buffer that holds the rows of one block, from row `begin` on."""
    nest, pitch = job.nest, _pitch(job, t)
    inner = inner_axes(nest, t)

    def offset(index: tuple[Index, ...]) -> Index:
        found = nest.digits_at(index)
        within = flatten(tuple(found[a] for a in inner), tuple(a.extent for a in inner))
        row = flatten(tuple(found[a] for a in t.rows), tuple(a.extent for a in t.rows))
        return within + (row - begin) * pitch

    return Place(room, nest.dtype, offset)


def _stage(
    job: Job, then: Job | None, frame: Frame, tiles: tuple[Index, Axis, Axis], first: Axis, target: Cpu
) -> tuple[Stmt, ...]:
    """One contraction for a block of tiles (of how many, from the first up to the last): panel by panel.

    Meanwhile the next panel is fetched, and in the last one the first of the contraction that comes `then`.
    """
    tiled, m = job.tiled, frame.row
    assert tiled is not None
    assert m is not None
    count, t0, t1 = tiles
    at, end = Axis("t", count), Index.of(Axis("m1", m.extent + 1))
    window = tile_window(at, count, m.extent, first)
    load = left_load(tiled.left, tiled.ranges, tiled.segments, frame)
    even = even_rows(tiled, tiled.rows, load, m, frame.tall, frame.places)
    segments, depth = _segments(job), product([r.extent for r in tiled.ranges])
    here = (Index.of(at) - t0) * (segments * (EVEN_ENTRIES if even else frame.tall))
    point = RowPointer(TABLE, m, frame.first, end, frame.tall, tiled.segments, load, tiled.length, here, even)
    panel = tiled.panel
    right, weights = right_offset(tiled, frame), frame.places[tiled.right.source].buffer
    after = (Index.of(panel), panel.extent, then.tiled.right.source) if then and then.tiled else None
    tile = Tile(
        C,
        ZERO,
        end - first,
        TileCore(frame.tall, target.panel),
        Pointers(TABLE, here, segments, tiled.length, even),
        Panel(weights, right),
        ahead=Ahead(weights, right + depth * target.panel, Index.of(at) - t0, Index.of(t1) - t0, after),
    )
    finish = epilogue(job, frame, panel, target.panel, m, end, touch=True)
    inner = Loop(at, Index.of(t0), Index.of(t1), "serial", (*window, tile, *finish))
    return (
        Loop(at, Index.of(t0), Index.of(t1), "serial", (*window, point)),
        Loop(panel, ZERO, panel.extent, "serial", (inner,)),
    )


def _prologue(job: Job, t: Together, frame: Frame, tiles: tuple[Index, Axis, Axis], first: Axis) -> tuple[Stmt, ...]:
    """A value of the rows of a block of tiles, before a contraction reads it."""
    assert frame.row is not None
    count, t0, t1 = tiles
    at = Axis("t", count)
    goal = goal_of(job, frame, flat_in(job.nest.value, frame))
    made = in_rows(frame, [goal], inner_axes(job.nest, t))
    window = tile_window(at, count, frame.row.extent, first)
    return (Loop(at, Index.of(t0), Index.of(t1), "serial", (*window, *made)),)


def _work(t: Together, rows: Index) -> Index:
    """Serial picoseconds."""
    total = work_of(replace(t, jobs=tuple(j for j in t.jobs if j.tiled is None)))
    for job in t.jobs:
        if job.tiled is not None:
            total = total + rows * 10 * product([a.extent for a in (*job.tiled.ranges, *job.tiled.columns)])
    return total if total != ZERO else ONE
