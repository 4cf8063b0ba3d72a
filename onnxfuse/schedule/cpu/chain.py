"""Consecutive contractions in one phase: each block of rows goes through all of them before the next block does.

Before the first of them, its rows may be computed: a normalization, an activation, a scale for each channel.

Intermediate results stay in a buffer of the task, where they are read again while they are in cache. In return each
task reads all weights, so that there are only as many tasks as cores, with about equal numbers of rows.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.tile import EVEN_ENTRIES, Ahead, Panel, Pointers, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.gemm import POINTERS
from onnxfuse.schedule.cpu.rows import in_rows
from onnxfuse.schedule.cpu.tiles import (
    TABLE,
    C,
    TileLoop,
    epilogue,
    even_rows,
    even_tiles,
    half_panel,
    left_load,
    right_offset,
)
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame, flat_in, goal_of, inner_axes, serial_time
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.tile_rows import tile_height
from onnxfuse.target import Cpu
from onnxfuse.target.cpu import SerialTimes

SHARES = 4  # cores among which tiles are divided evenly, if there are enough rows
LEAST = 8  # rows of a tile, at least, for that
BLOCK = {False: 2, True: 5}  # eighths of L2 for the rows of a block, by whether it is small: then weights are read less
PAGE = 1024  # elements: rows at such a distance map to the same few cache sets


def chain_phase(t: AlignedJobs, places: dict[str, Place], kept: set[str], target: Cpu) -> Phase:
    """The phase of contractions over the same rows, whose number is known. `kept` are values that later phases read."""
    rows = product([a.extent for a in t.rows])
    products = [j for j in t.jobs if j.tiled is not None]
    count, tile_rows = _tiles(products[0], rows.constant or 1, places, target)
    tiles = Index.of(count)
    m, first, begin = Axis("m", rows), Axis("m0", rows), Axis("mb", rows)
    digits = unflatten(Index.of(m), tuple(a.extent for a in t.rows))
    frame = Frame(dict(zip(t.rows, digits, strict=True)), m, Index.of(first), tile_rows, places)
    inside = [j for j in t.jobs if j.nest.name not in kept and not j.nest.output]
    buffer_of = _reused_buffers(inside, t)
    widths: dict[str, int] = {}
    for j in inside:
        widths[buffer_of[j.nest.name]] = max(widths.get(buffer_of[j.nest.name], 0), pitch_of(j, t))
    entries = max(segments_of(j) * max(tile_rows, EVEN_ENTRIES) for j in products)
    room = target.l2_bytes * BLOCK[target.small_l2] // 8
    most = max(1, min(room // (4 * tile_rows * max(1, sum(widths.values()))), POINTERS // entries, count))
    for buffer, width in widths.items():
        frame.local(buffer, Index.of(most * tile_rows * width))
    for j in inside:
        frame.places[j.nest.name] = place_in(j, t, buffer_of[j.nest.name], begin)
    frame.local(TABLE, Index.of(entries * most), F32, "pointers")
    frame.local(C, Index.of(target.panel * tile_rows))
    u0, u1 = Axis("u0", tiles), Axis("u1", tiles + 1)
    t0, t1, rb = Axis("t0", tiles), Axis("t1", tiles + 1), Axis("rb", tiles)
    start = Index.of(u0) + Index.of(rb) * most
    bounds = (
        Bind(t0, start),
        Bind(t1, start + most, Index.of(u1)),
        Bind(begin, floor_div(Index.of(t0) * rows, tiles)),
    )
    block = even_tiles(tiles, rows, first, t0, t1)
    following = (*t.jobs[1:], None)
    stages = [
        s
        for j, then in zip(t.jobs, following, strict=True)
        for s in (stage(j, then, frame, block, target) if j.tiled is not None else (block.over(*by_rows(j, t, frame)),))
    ]
    blocks = floor_div(Index.of(u1) - u0 + (most - 1), Index.of(most))
    loop = Loop(rb, ZERO, blocks, "serial", (*bounds, *stages))
    return Phase((Split(u0, u1, tiles),), _serial_time(t, rows, target.serial), tuple(frame.locals), (loop,), few=True)


def _tiles(job: Job, rows: int, places: dict[str, Place], target: Cpu) -> tuple[int, int]:
    """Number of tiles of the first contraction, and rows of the largest: whole lines of an image, or even per core."""
    tiled = job.tiled
    assert tiled is not None
    tile_rows = tile_height(tiled, places[tiled.left.source].offset(tiled.left.index), target)
    count = -(-rows // tile_rows)
    even = -(-count // SHARES) * SHARES
    if rows % tile_rows and rows // even >= LEAST:
        count = even
    return count, -(-rows // count)


def segments_of(job: Job) -> int:
    """Contiguous pieces of a row that a contraction reads."""
    assert job.tiled is not None
    return product([s.extent for s in job.tiled.segments]).constant or 1


def pitch_of(job: Job, t: AlignedJobs) -> int:
    """Row pitch of a value in a buffer, in elements."""
    size = product([a.extent for a in inner_axes(job.nest, t)]).constant or 1
    return size + 16 if size % PAGE == 0 else size


def _reused_buffers(inside: list[Job], t: AlignedJobs) -> dict[str, str]:
    """Buffers of values; a buffer is reused once the last reader of its value is done."""
    at = {j.nest.name: k for k, j in enumerate(t.jobs)}
    last = {name: max(k for k, j in enumerate(t.jobs) if name in _read(j)) for name in (j.nest.name for j in inside)}
    buffer_of: dict[str, str] = {}
    free: dict[str, int] = {}  # buffer to the last reader of its value
    for name in last:
        buffer = next((r for r, until in free.items() if until < at[name]), f"between{len(free)}")
        buffer_of[name], free[buffer] = buffer, last[name]
    return buffer_of


def _read(job: Job) -> set[str]:
    return {x.source for x in job.reads}


def place_in(job: Job, t: AlignedJobs, buffer: str, begin: Axis) -> Place:
    """A value in a buffer that holds the rows of one block, from row `begin` on."""
    nest, pitch = job.nest, pitch_of(job, t)
    inner = inner_axes(nest, t)

    def offset(index: tuple[Index, ...]) -> Index:
        found = nest.digits_at(index)
        within = flatten(tuple(found[a] for a in inner), tuple(a.extent for a in inner))
        row = flatten(tuple(found[a] for a in t.rows), tuple(a.extent for a in t.rows))
        return within + (row - begin) * pitch

    return Place(buffer, nest.dtype, offset)


def stage(job: Job, then: Job | None, frame: Frame, block: TileLoop, target: Cpu) -> tuple[Stmt, ...]:
    """One contraction, panel by panel, for a block of tiles.

    Each panel prefetches the next one, the last panel the first one of the contraction `then`.
    """
    tiled, m = job.tiled, frame.row
    assert tiled is not None
    assert m is not None
    end = Index.of(Axis("m1", m.extent + 1))
    load = left_load(tiled.left, tiled.ranges, tiled.segments, frame)
    even = even_rows(tiled, tiled.rows, load, m, frame.tile_rows, frame.places)
    segments, depth = segments_of(job), product([r.extent for r in tiled.ranges])
    here = block.number * (segments * (EVEN_ENTRIES if even else frame.tile_rows))
    point = RowPointer(TABLE, m, frame.first, end, frame.tile_rows, tiled.segments, load, tiled.length, here, even)
    panel = tiled.panel
    right, weights = right_offset(tiled, frame), frame.places[tiled.right.source].buffer
    counted = half_panel(tiled, panel, target)
    after = (Index.of(panel), panel.extent, then.tiled.right.source) if then and then.tiled else None
    tile = Tile(
        C,
        ZERO,
        end - frame.first,
        TileCore(frame.tile_rows, target.panel),
        Pointers(TABLE, here, segments, tiled.length, even),
        Panel(weights, right, Index.of(counted[0].axis) if counted else ZERO),
        ahead=Ahead(weights, right + depth * target.panel, block.number, block.end - block.begin, after),
    )
    finish = (x for x in epilogue(job, frame, panel, target.panel, m, end, prefetch=True) if x not in counted)
    tiles = block.over(tile, *finish)
    return (block.over(point), Loop(panel, ZERO, panel.extent, "serial", (*counted, tiles)))


def by_rows(job: Job, t: AlignedJobs, frame: Frame) -> tuple[Stmt, ...]:
    """A value of the rows of a tile, row by row."""
    goal = goal_of(job, frame, flat_in(job.nest.value, frame))
    return in_rows(frame, [goal], inner_axes(job.nest, t))


def _serial_time(t: AlignedJobs, rows: Index, times: SerialTimes) -> Index:
    """Picoseconds of one core."""
    total = serial_time(replace(t, jobs=tuple(j for j in t.jobs if j.tiled is None)), times)
    for job in t.jobs:
        if job.tiled is not None:
            total = total + rows * times.multiply_add * product(
                [a.extent for a in (*job.tiled.ranges, *job.tiled.columns)]
            )
    return total if total != ZERO else ONE
