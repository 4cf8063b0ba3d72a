"""Phases of a contraction with panels that all tasks share: weights are read once, rows stay in cache.

Loops: blocks of row tiles that fit in L2, then panels, then the tiles of the block. Short, deep contractions read a
packed copy of their rows; others (convolutions among them) go through row pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.cost.serial import contraction
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Pack, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.products import ProductKind, Unit
from onnxfuse.ir.tile import EVEN_ENTRIES, Ahead, Coding, Left, Packed, Panel, Pointers, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import ScheduleCandidate, usual_rows
from onnxfuse.schedule.cpu.groups import by_group, digits_of, group_axis
from onnxfuse.schedule.cpu.tiles import (
    PACKED,
    TABLE,
    C,
    TileLoop,
    coding,
    copied_rows,
    early_lines,
    epilogue,
    even_rows,
    even_tiles,
    half_panel,
    left_load,
    padding_of,
    pieces_of,
    quantized_left,
    right_offset,
)
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.tile_rows import elements_read, tile_heights
from onnxfuse.schedule.nests.tiled import KSubrange, Tiled, balanced
from onnxfuse.target import Cpu

SUMS = "partial"
SHORTEST_K_SPLIT = 256  # steps of a k-split, at least
POINTERS = 2048  # entries of a table of row pointers, at most
K_SPLITS = (1, 2, 3, 4, 6, 8)  # numbers of k-splits that are measured
FINER = 8  # times as many blocks of rows that are packed by copying, for more cores
FEWER_ROWS = 2  # rows by which measured tiles may be smaller than the usual ones


@dataclass(frozen=True, slots=True)
class GemmSchedule:
    """Sizes of one contraction, and a schedule for it."""

    rows: Index
    depth: Index
    panels: Index
    tile_rows: int  # rows of a tile, at most
    tiles: Index
    segments: int
    streams: bool  # weights are larger than a cache, so the next panel is prefetched
    unit: Unit | None  # with one, packed rows and sums of every tile are padded to the rows of the largest
    packed_depth: Index  # steps of a packed row
    block: int = 1  # tiles of a row block
    packed: bool = False
    columns_first: bool = False  # tasks share the panels rather than the rows
    k_splits: int = 1  # taken one after the other, each over all columns
    packed_by_task: bool = False  # rows are packed block by block by the task that multiplies them, with all columns

    @property
    def places(self) -> Index:
        """Rows of the buffers of sums and packed rows, padding included."""
        return self.rows if self.unit is None else self.tiles * self.tile_rows

    def rows_before(self, at: Axis, first: Axis) -> Index:
        """Rows, padding included, of the tiles before tile `at`, whose first row is `first`."""
        return Index.of(first) if self.unit is None else Index.of(at) * self.tile_rows

    def tile_height(self, first: Axis, end: Index) -> Index:
        """Rows, padding included, of the tile of rows from `first` to `end`."""
        return end - first if self.unit is None else Index.of(self.tile_rows)

    def __str__(self) -> str:
        rows = "packed block by block" if self.packed_by_task else "packed" if self.packed else "unpacked"
        parts = f", K in {self.k_splits} parts" if self.k_splits > 1 else ""
        blocks = (
            f"blocks of {self.block} x {self.tile_rows} rows" if self.block > 1 else f"tiles of {self.tile_rows} rows"
        )
        return f"A {rows}, parallel over {'N' if self.columns_first else 'M'}, {blocks}{parts}"


def gemm_schedules(t: Tiled, offset: Index, target: Cpu) -> tuple[GemmSchedule, ...]:
    """The schedules of a contraction whose times are compared; the left side is read at `offset`.

    The left side A is read unpacked, or packed first. Tasks divide the rows (M), tile by tile if weights stay in L2,
    else in blocks, or the columns (N): then blocks have as many rows as fit in L2, or there are k-splits for which all
    rows fit. If A has to be packed, each task may pack its own rows. Schedules with the least memory traffic come
    first. With batch axes, tasks divide those too, and A is read unpacked.
    """
    tile_rows, *lower = tile_heights(t, offset, target)
    lows = [s for h in lower for s in _schedules(t, offset, h, target) if not s.packed]
    return (*_schedules(t, offset, tile_rows, target), *lows)


def _schedules(t: Tiled, offset: Index, tile_rows: int, target: Cpu) -> tuple[GemmSchedule, ...]:
    """The schedules with tiles of so many rows, which are read at `offset`."""
    rows, depth = product([a.extent for a in t.rows]), product([a.extent for a in t.ranges])
    columns = product([a.extent for a in t.columns])
    panels = floor_div(columns + (target.panel - 1), Index.of(target.panel))
    segments = (depth.constant or 0) // t.segment if t.segment else product([s.extent for s in t.pieces]).constant or 1
    m, k, n = rows.constant, depth.constant or 512, columns.constant or 512
    kind = t.product
    count, panel_count = -(-usual_rows([a.extent for a in t.rows]) // tile_rows), -(-n // target.panel)
    must = t.left.dtype != kind.left or (bool(t.parts) and not t.segment) or t.along_rows
    groups = product([a.extent for a in t.batch]).constant or 1
    may = must or (not kind.exact and m != 1 and panel_count > 1 and not t.batch)
    tile = kind.left.bytes * tile_rows * k
    lines = tile if must or t.parts else kind.left.bytes * elements_read(t, offset, tile_rows, k)
    here = count if must else min(count, max(1, POINTERS // (segments * tile_rows)))
    share = -(-count * groups // (2 * target.cores))  # tiles of a task, if all cores get some

    def fitting(eighths: int, size: int, most: int) -> int:
        """Tiles of `size` bytes of a block, from 1 to `most`: what fits in `eighths` of L2; even if weights stream."""
        return balanced(count if m and streams else None, max(1, min(target.l2_bytes * eighths // 8 // size, most)))

    tiles = floor_div(rows + (tile_rows - 1), Index.of(tile_rows))
    streams = k * n * kind.right.bytes > target.l2_bytes // 16
    padded = depth if kind.unit is None else floor_div(depth + (kind.piece - 1), Index.of(kind.piece)) * kind.piece
    by_rows = GemmSchedule(rows, depth, panels, tile_rows, tiles, segments, streams, kind.unit, padded, packed=must)
    by_columns = replace(by_rows, columns_first=panel_count > 1)
    candidates = [replace(by_columns, block=fitting(6, lines, here))] if panel_count > 1 or count == 1 else []
    if count > 1:
        block = fitting(6, lines, min(here, share))
        shared = streams and m is not None and target.small_l2  # by as many tasks as get a block at a time
        all_rows = [by_rows, replace(by_rows, block=_even(count, block, target.cores) if shared else block)]
        if shared and count * lines > k * n * kind.right.bytes:
            candidates = [all_rows[1], *candidates, all_rows[0]]
        else:
            candidates = [*candidates, *all_rows] if streams else [all_rows[0], *candidates, all_rows[1]]
        if (must or t.parts) and None not in (m, depth.constant):
            most = (share, max(1, share // FINER)) if t.along_rows else (share,)
            blocks = [fitting(4, tile, tiles_) for tiles_ in most]
            candidates[:0] = [replace(by_rows, packed_by_task=True, block=block) for block in blocks]
    if may:
        candidates.append(replace(by_columns, packed=True, block=fitting(6, tile, count)))
        k_splits = _k_splits(k, kind, tile_rows * count, target) if depth.constant is not None else 1
        if k_splits > 1:
            candidates.append(replace(candidates[-1], k_splits=k_splits, block=fitting(4, tile // k_splits, count)))
    return tuple(dict.fromkeys(candidates))


def _even(count: int, block: int, cores: int) -> int:
    """Tiles of a block, at most `block`, so that cores get the same number of blocks.

    >>> _even(523, 59, 2), _even(33, 9, 2)
    (53, 9)
    """
    blocks = -(-count // block)
    return -(-count // (-(-blocks // cores) * cores))


def tuning_schedules(schedules: Sequence[GemmSchedule], t: Tiled, target: Cpu) -> tuple[GemmSchedule, ...]:
    """Further schedules for tuning: other block sizes, other k-splits, smaller tiles.

    They respect the limits of the others: the number of row pointers, and k-splits of whole pieces.
    """
    found: dict[GemmSchedule, None] = {}
    for s in schedules:
        count = -(-usual_rows([a.extent for a in t.rows]) // s.tile_rows)
        most = count if s.packed else min(count, max(1, POINTERS // (s.segments * s.tile_rows)))
        blocks = [b for b in (s.block // 4, s.block // 2, s.block * 2, s.block * 4, most) if 1 <= b <= most]
        found |= dict.fromkeys(replace(s, block=b) for b in blocks)
        if s.packed and s.columns_first and (depth := s.depth.constant) is not None:
            parts = [n for n in K_SPLITS if depth % (n * t.product.piece) == 0 and depth // n >= SHORTEST_K_SPLIT]
            found |= dict.fromkeys(replace(s, k_splits=n, block=b) for n in parts for b in (s.block, most))
        if s.unit is None and s.tile_rows == balanced(s.rows.constant, target.rows):
            tile_heights = range(s.tile_rows - 1, max(s.tile_rows - FEWER_ROWS, s.tile_rows // 2) - 1, -1)
            found |= dict.fromkeys(_with_fewer_rows(s, tile_rows) for tile_rows in tile_heights if tile_rows > 0)
    return tuple(s for s in found if s not in schedules)


def _with_fewer_rows(s: GemmSchedule, tile_rows: int) -> GemmSchedule:
    tiles = floor_div(s.rows + (tile_rows - 1), Index.of(tile_rows))
    return replace(s, tile_rows=tile_rows, tiles=tiles, block=max(1, s.block * s.tile_rows // tile_rows))


def _k_splits(depth: int, kind: ProductKind, rows: int, target: Cpu) -> int:
    """The number of k-splits for which one split of all rows and of two panels (one prefetched) fits in half of L2."""
    most = target.l2_bytes // 2 // (kind.left.bytes * rows + 2 * kind.right.bytes * target.panel)  # steps of a part
    if depth <= most:
        return 1
    parts = (n for n in range(2, depth // SHORTEST_K_SPLIT + 1) if depth % (n * kind.piece) == 0)
    return next((n for n in parts if depth // n <= most), 1)


def gemm_candidates(
    t: AlignedJobs, places: dict[str, Place], target: Cpu, *, every: bool = False, only: str = ""
) -> tuple[ScheduleCandidate, ...]:
    """The schedule candidates of one contraction; with `every` those for tuning too, or `only` the one of this name."""
    (job,), tiled = t.jobs, t.jobs[0].tiled
    assert tiled is not None
    schedules = usual = gemm_schedules(tiled, places[tiled.left.source].offset(tiled.left.index), target)
    schedules = (*usual, *tuning_schedules(usual, tiled, target)) if every else usual
    panel = tiled.panel
    m, first, end = (Axis(name, schedules[0].rows + more) for name, more in (("m", 0), ("m0", 0), ("m1", 1)))
    shared = digits_of(m, tiled.rows) | digits_of(group_axis(tiled), tiled.batch)
    apart = (
        SUMS,
        (Index.of(panel) * schedules[0].places + schedules[0].rows_before(Axis("t", schedules[0].tiles), first))
        * target.panel,
    )
    finishes: dict[tuple[tuple[str, Index], int], tuple[Stmt, ...]] = {}
    early = early_lines(job, target)
    candidates = []
    for s in schedules if not only else [next(s for s in schedules if str(s) == only)]:
        frame = Frame(shared, m, Index.of(first), s.tile_rows, places)
        sums = (C, ZERO) if s.k_splits == 1 else apart
        if (sums, s.tile_rows) not in finishes:
            finishes[sums, s.tile_rows] = epilogue(
                job, frame, panel, target.panel, m, Index.of(end), sums, prefetch=True, early=early
            )
        phases = [_main_phase(job, s, frame, m, first, panel, target, sums, finishes[sums, s.tile_rows])]
        scratch = []
        if s.packed and not s.packed_by_task:
            phases.insert(0, _pack_phase(tiled, s, frame, m, first, target))
            scratch.append(Buffer(PACKED, tiled.product.left, s.places * s.packed_depth, "global"))
        if s.k_splits > 1:
            scratch.append(Buffer(SUMS, F32, s.places * s.panels * target.panel, "global"))
        candidates.append(ScheduleCandidate(str(s), tuple(phases), tuple(scratch), usual=s in usual))
    return tuple(candidates)


def _pack_phase(t: Tiled, s: GemmSchedule, frame: Frame, m: Axis, first: Axis, target: Cpu) -> Phase:
    """The phase that packs the rows of each tile, k-major, so that the tile's loads are one stream."""
    lo, hi = Axis("t0", s.tiles), Axis("t1", s.tiles + 1)
    block = even_tiles(s.tiles, s.rows, first, lo, hi)
    loop = block.over(*_packing(t, s, frame, m, first, s.rows_before(block.at, first) * s.packed_depth, target))
    return Phase((Split(lo, hi, s.tiles),), s.rows * s.depth * 150, (), (loop,))


def _packing(t: Tiled, s: GemmSchedule, frame: Frame, m: Axis, first: Axis, to: Index, target: Cpu) -> tuple[Stmt, ...]:
    """Statements that pack the rows of one tile to the offset `to`."""
    end = Index.of(Axis("m1", s.rows + 1))
    if t.along_rows:
        return copied_rows(t, frame, first, to, s.rows.constant if target.tail else None)
    segment = flatten(tuple(map(Index.of, t.segments)), tuple(a.extent for a in t.segments))
    made: tuple[Stmt, ...] = ()
    for part in t.parts or (KSubrange(t.left, Axis("k", t.length), 0),):
        start = left_load(part.load, (*t.ranges, part.axis), t.segments, frame)
        load = replace(start, index=(start.index[0] + part.axis,))
        step = segment * t.length + part.begin
        if s.unit is not None:
            pack = Pack(
                PACKED, to, m, Index.of(first), end, part.axis, load, Index.of(s.tile_rows), unit=s.unit, skip=step
            )
        else:
            pack = Pack(PACKED, to + step * (end - first), m, Index.of(first), end, part.axis, load)
        made = (*made, pack)
    for a in reversed(t.segments):
        made = (Loop(a, ZERO, a.extent, "serial", made),)
    return made


@dataclass(frozen=True, slots=True)
class _Rows:
    """The left operand of a tile in the block, and the statements that prepare it for the whole block."""

    ready: tuple[Stmt, ...]
    left: Left


def _rows(
    t: Tiled,
    s: GemmSchedule,
    frame: Frame,
    m: Axis,
    first: Axis,
    block: TileLoop,
    padding: str,
    quantization: Coding | None,
    target: Cpu,
) -> _Rows:
    """Rows packed by an earlier phase, packed here for the block, or row pointers to unpacked rows."""
    here = block.number
    if s.packed:
        slot = s.rows_before(block.at, first) * s.packed_depth
        ready: tuple[Stmt, ...] = ()
        if s.packed_by_task:
            slot = here * s.tile_rows * s.packed_depth
            frame.local(PACKED, s.packed_depth * (s.tile_rows * s.block), t.product.left)
            ready = (block.over(*_packing(t, s, frame, m, first, slot, target)),)
        return _Rows(ready, Packed(PACKED, slot, 1, floor_div(s.depth, Index.of(s.k_splits))))
    pieces = pieces_of(t, frame)
    even = t.zeros is None and all(even_rows(t, t.rows, x, m, s.tile_rows, frame.places) for x, _, _ in pieces)
    pitch = EVEN_ENTRIES if even else s.tile_rows
    entries, length = s.segments * pitch, Index.of(t.segment) if t.segment else t.reach
    frame.local(TABLE, Index.of(entries * s.block), t.product.left, "pointers")
    span = (Index.of(first), Index.of(Axis("m1", s.rows + 1)), s.tile_rows)
    points = [
        RowPointer(TABLE, m, *span, axes, load, length, here * entries + before * pitch, even, padding)
        for load, axes, before in pieces
    ]
    if quantization is not None:
        return _Rows((block.over(*points),), quantized_left(t, here * entries, quantization, s.tile_rows))
    return _Rows((block.over(*points),), Pointers(TABLE, here * entries, s.segments, length, even))


def _main_phase(
    job: Job,
    s: GemmSchedule,
    frame: Frame,
    m: Axis,
    first: Axis,
    panel: Axis,
    target: Cpu,
    sums: tuple[str, Index],
    finish: tuple[Stmt, ...],
) -> Phase:
    """The phase of tiles over all rows and columns; `sums` is where they accumulate, `finish` their epilogue."""
    tiled = job.tiled
    assert tiled is not None
    blocks = floor_div(s.tiles + (s.block - 1), Index.of(s.block))
    rb, b0, b1 = Axis("rb", blocks), Axis("b0", blocks), Axis("b1", blocks + 1)
    p0, p1 = Axis("p0", s.panels), Axis("p1", s.panels + 1)
    t0, t1 = Axis("t0", s.tiles), Axis("t1", s.tiles + 1)
    block = even_tiles(s.tiles, s.rows, first, t0, t1)
    end = Index.of(Axis("m1", s.rows + 1))
    b_at = right_offset(tiled, frame)
    prologue, padding = padding_of(tiled, frame)
    quantization, present = coding(tiled, frame, panel, target.panel)
    counted = half_panel(tiled, panel, target) if s.unit is None and quantization is None else ()
    if counted:
        present, finish = Index.of(counted[0].axis), tuple(x for x in finish if x not in counted)
    rows = _rows(tiled, s, frame, m, first, block, padding, quantization, target)
    if s.k_splits == 1:
        frame.local(C, Index.of(target.panel * s.tile_rows), tiled.product.sums)
    columns = (ZERO, s.panels) if s.packed_by_task else (Index.of(p0), Index.of(p1))
    weights, turn = frame.places[tiled.right.source].buffer, (block.number, block.end - block.begin)
    fetched = s.streams and (s.unit is not None or not tiled.product.exact)  # codes on vectors need no prefetch

    def over_panels(k_split: Index, after: tuple[Stmt, ...]) -> Stmt:
        """One k-split over all columns and the rows of the block, with the statements `after` each tile."""
        skipped = k_split * rows.left.length if s.k_splits > 1 else ZERO
        right = b_at + skipped * target.panel
        tile = Tile(
            *sums,
            end - Index.of(first),
            TileCore(s.tile_rows, target.panel, tiled.product),
            replace(rows.left, at=rows.left.at + skipped * s.tile_height(first, end)),
            Panel(weights, right, present),
            k_split,
            Ahead(weights, right + tiled.depth * target.panel, *turn) if fetched else None,
        )
        return Loop(panel, *columns, "serial", (*counted, block.over(tile, *after)))

    loops = [over_panels(Index.of(s.k_splits - 1), finish)]
    if s.k_splits > 1:
        k_split = Axis("kc", Index.of(s.k_splits - 1))
        loops.insert(0, Loop(k_split, ZERO, k_split.extent, "serial", (over_panels(Index.of(k_split), ()),)))
    bounds = (Bind(t0, Index.of(rb) * s.block), Bind(t1, Index.of(rb) * s.block + s.block, s.tiles))
    few = s.k_splits > 1  # a task reads one part of the packed rows for all of its panels
    of_blocks = (ZERO, blocks) if few else (Index.of(b0), Index.of(b1))
    loop = Loop(rb, *of_blocks, "serial", (*bounds, *rows.ready, *loops))
    splits = [] if few else [Split(b0, b1, blocks)]
    splits += [] if s.packed_by_task else [Split(p0, p1, s.panels)]
    if s.columns_first:
        splits.reverse()
    body, divided = by_group(job, (*prologue, loop), tuple(splits), frame.places)
    return Phase(divided, _serial_time(s, tiled, target), tuple(frame.locals), body, few=few)


def _serial_time(s: GemmSchedule, t: Tiled, target: Cpu) -> Index:
    """Picoseconds of one core."""
    columns = product([a.extent for a in t.columns])
    rows = s.rows * group_axis(t).extent
    time = contraction(rows, s.depth, columns, t.product, s.unit.speed if s.unit is not None else 1, target)
    if t.zeros is not None:
        time = time + s.rows * columns * target.serial.quantization
    return time if time != ZERO else ONE
