"""Phases of a contraction with panels that all tasks share: weights are read once, rows stay in cache.

Loops: blocks of row tiles that fit in L2, then panels, then the tiles of the block. Short, deep contractions read a
packed copy of their rows; others (convolutions among them) go through row pointers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from onnxfuse.config import Target
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Pack, Phase, Point, Split, Stmt, Tile
from onnxfuse.ir.products import Product, Unit
from onnxfuse.schedule.align import Together
from onnxfuse.schedule.frame import Frame
from onnxfuse.schedule.jobs import Job
from onnxfuse.schedule.memory import Place
from onnxfuse.schedule.nest import walks_as_one
from onnxfuse.schedule.tiled import Part, Tiled
from onnxfuse.schedule.tiles import (
    EVEN,
    TABLE,
    C,
    coding,
    epilogue,
    even_rows,
    index_axes,
    left_load,
    padding_of,
    right_offset,
    tile_window,
)

PACKED = "packed"
SUMS = "partial"
SHORTEST = 256  # steps of a part of the depth, at least
POINTERS = 2048  # entries of a table of row pointers, at most
STEP = 10  # picoseconds of a step of the sum; those of the narrower types go side by side
READ = 250  # picoseconds to read a float32 weight that is in no cache
CODE = 50  # picoseconds to make a code of a sum
USUAL = 128  # rows, where nothing is known of them
MANY = 16  # tiles that can be shared evenly among cores


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one contraction, and what was decided from them."""

    rows: Index
    depth: Index
    panels: Index
    tall: int  # rows of a tile at most
    tiles: Index
    block: int  # tiles of a row block
    segments: int
    packed: bool
    columns_first: bool  # tasks share the panels rather than the rows
    streams: bool  # weights are larger than a cache, so the next panel is prefetched
    chunks: int  # parts of the depth, taken one after the other over all columns
    inside: bool  # rows are packed block by block by the task that multiplies them, with all columns
    unit: Unit | None  # with one, packed rows and sums of every tile have the place of the tallest
    packed_depth: Index  # steps of a packed row

    @property
    def places(self) -> Index:
        """Rows of the sums that there is room for, and of what is packed."""
        return self.rows if self.unit is None else self.tiles * self.tall

    def before(self, at: Axis, first: Axis) -> Index:
        """Those of the tiles before the tile `at`, whose first row is `first`."""
        return Index.of(first) if self.unit is None else Index.of(at) * self.tall

    def height(self, first: Axis, end: Index) -> Index:
        """Those of one tile, of the rows from `first` to `end`."""
        return end - first if self.unit is None else Index.of(self.tall)


def shape_of(t: Tiled, offset: Index, target: Target) -> Shape:
    """Decide tile height, row blocks and the order of the splits from sizes; the left side is read at `offset`."""
    rows, depth = product([a.extent for a in t.rows]), product([a.extent for a in t.ranges])
    columns = product([a.extent for a in t.columns])
    panels = floor_div(columns + (target.panel - 1), Index.of(target.panel))
    segments = product([s.extent for s in t.segments]).constant or 1
    m, k, n = rows.constant, depth.constant or 512, columns.constant or 512
    how = t.product
    guess = product([a.extent for a in t.rows if a.extent.constant is not None]).constant or 1
    guess = m if m is not None else guess if guess > 1 else USUAL
    tall, crosses = height(t, offset, target)
    tiles = floor_div(rows + (tall - 1), Index.of(tall))
    weights = k * n * how.right.bytes
    row_bytes = how.left.bytes * (k if segments == 1 else k // segments)
    block = max(1, target.l2_bytes * 3 // 4 // (row_bytes * tall))
    count = -(-guess // tall)
    panel_count = -(-n // target.panel)
    stays = weights <= target.l2_bytes // 2 and weights <= row_bytes * guess and count >= MANY
    columns_first = not stays and panel_count >= 4
    if not columns_first:
        block = 1 if stays else min(block, max(1, count // 8))
    elif m is not None:
        block = min(block, count)
    packed = (m is None or m > 1) and k >= 256 and n >= 256 and columns_first and (segments == 1 or crosses)
    packed = (packed and not how.exact) or t.left.dtype != how.left or bool(t.parts)
    if not packed:
        block = min(block, max(1, POINTERS // (segments * tall)))
    chunks = _chunks(k, how, tall * count, target) if packed and depth.constant is not None else 1
    if chunks > 1:
        block = max(1, target.l2_bytes // 2 // (how.left.bytes * k // chunks * tall))
    streams = weights > target.l2_bytes // 16
    small = max(1, target.l2_bytes // 2 // (how.left.bytes * k * tall))
    inside = packed and m is not None and chunks == 1 and depth.constant is not None and count >= MANY * small
    if inside:
        block, columns_first = small, False
    padded = depth if how.unit is None else floor_div(depth + (how.piece - 1), Index.of(how.piece)) * how.piece
    return Shape(
        rows,
        depth,
        panels,
        tall,
        tiles,
        block,
        segments,
        packed,
        columns_first,
        streams,
        chunks,
        inside,
        how.unit,
        padded,
    )


def _chunks(depth: int, how: Product, rows: int, target: Target) -> int:
    """Parts of the depth of which one of all rows stays in half of L2."""
    most = target.l2_bytes // 2 // (how.left.bytes * rows)  # steps of a part
    if depth <= most:
        return 1
    parts = (n for n in range(2, depth // SHORTEST + 1) if depth % (n * how.piece) == 0)
    return next((n for n in parts if depth // n <= most), 1)


def height(t: Tiled, offset: Index, target: Target) -> tuple[int, bool]:
    """Rows of a tile, and whether tiles cross the lines of an image, so that their rows do not lie evenly.

    Rows that go on at one distance from line to line are divided into tiles of equal height; others line by line, where
    a line can be.
    """
    most = t.product.unit.rows if t.product.unit is not None else target.rows
    width, rows = t.rows[-1].extent.constant if t.rows else 1, product([a.extent for a in t.rows]).constant
    if t.left.guards or not all(walks_as_one(offset, high, low) for high, low in pairwise(t.rows)):
        heights = range(most, most // 2, -1)
        line = next((h for h in heights if width is not None and width % h == 0), None)
        if line is not None:
            return line, False
        return _balanced(rows, most), True
    return _balanced(rows, most), False


def _balanced(rows: int | None, most: int) -> int:
    """Rows of a tile, at most so many, such that the last one is not much shorter."""
    return most if rows is None else max(1, -(-rows // -(-rows // most)))


def gemm_phases(t: Together, places: dict[str, Place], target: Target) -> tuple[tuple[Phase, ...], tuple[Buffer, ...]]:
    """The phases of one contraction, and the scratch that they share."""
    job = t.jobs[0]
    tiled = job.tiled
    assert tiled is not None
    s = shape_of(tiled, places[tiled.left.source].offset(tiled.left.index), target)
    m, first = Axis("m", s.rows), Axis("m0", s.rows)
    digits = unflatten(Index.of(m), tuple(a.extent for a in tiled.rows))
    frame = Frame(dict(zip(tiled.rows, digits, strict=True)), m, Index.of(first), s.tall, places)
    main = _main_phase(job, s, frame, m, first, target)
    if not s.packed or s.inside:
        return (main,), ()
    scratch = [Buffer(PACKED, tiled.product.left, s.places * s.packed_depth, "scratch")]
    if s.chunks > 1:
        scratch.append(Buffer(SUMS, F32, s.places * s.panels * target.panel, "scratch"))
    return (_pack_phase(tiled, s, frame, m, first), main), tuple(scratch)


def _pack_phase(t: Tiled, s: Shape, frame: Frame, m: Axis, first: Axis) -> Phase:
    """Rows of each tile side by side, so that the tile's loads are one stream."""
    at, lo, hi = Axis("t", s.tiles), Axis("t0", s.tiles), Axis("t1", s.tiles + 1)
    block = _Block(at, lo, hi, tile_window(at, s.tiles, s.rows, first))
    loop = block.loop(*_packing(t, s, frame, m, first, s.before(at, first) * s.packed_depth))
    return Phase((Split(lo, hi, s.tiles),), s.rows * s.depth * 150, (), (loop,))


def _packing(t: Tiled, s: Shape, frame: Frame, m: Axis, first: Axis, to: Index) -> tuple[Stmt, ...]:
    """What packs the rows of one tile to the offset `to`."""
    end = Index.of(Axis("m1", s.rows + 1))
    segment = flatten(tuple(map(Index.of, t.segments)), tuple(a.extent for a in t.segments))
    made: tuple[Stmt, ...] = ()
    for part in t.parts or (Part(t.left, Axis("k", t.length), 0),):
        start = left_load(part.load, (*t.ranges, part.axis), t.segments, frame)
        load = replace(start, index=(start.index[0] + part.axis,))
        step = segment * t.length + part.begin
        if s.unit is not None:
            pack = Pack(PACKED, to, m, Index.of(first), end, part.axis, load, s.tall, unit=s.unit, skip=step)
        else:
            pack = Pack(PACKED, to + step * (end - first), m, Index.of(first), end, part.axis, load)
        made = (*made, pack)
    for a in reversed(t.segments):
        made = (Loop(a, ZERO, a.extent, "serial", made),)
    return made


@dataclass(frozen=True, slots=True)
class _Block:
    """The row tiles `at` from `begin` to `end` that a task takes together; `window` binds the rows of one."""

    at: Axis
    begin: Axis
    end: Axis
    window: tuple[Stmt, ...]

    def loop(self, *body: Stmt) -> Loop:
        """A loop over the tiles of the block."""
        return Loop(self.at, Index.of(self.begin), Index.of(self.end), "serial", (*self.window, *body))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where a tile of the block finds its rows, and what makes them ready for the block."""

    ready: tuple[Stmt, ...]
    kind: str
    source: str
    at: Index
    segments: int
    length: Index


def _rows(t: Tiled, s: Shape, frame: Frame, m: Axis, first: Axis, block: _Block, padding: str) -> _Rows:
    """Rows packed before, packed here for the block, or pointers to them where they lie."""
    here = Index.of(block.at) - block.begin
    if s.packed:
        slot = s.before(block.at, first) * s.packed_depth
        ready: tuple[Stmt, ...] = ()
        if s.inside:
            slot = here * s.tall * s.packed_depth
            frame.local(PACKED, s.packed_depth * (s.tall * s.block), t.product.left)
            ready = (block.loop(*_packing(t, s, frame, m, first, slot)),)
        return _Rows(ready, "packed", PACKED, slot, 1, floor_div(s.depth, Index.of(s.chunks)))
    load = left_load(t.left, t.ranges, t.segments, frame)
    even = t.zeros is None and even_rows(t, t.rows, load, m, s.tall, frame.places)
    entries = s.segments * (EVEN if even else s.tall)
    frame.local(TABLE, Index.of(entries * s.block), t.product.left, "pointers")
    end = Index.of(Axis("m1", s.rows + 1))
    point = Point(TABLE, m, Index.of(first), end, s.tall, t.segments, load, t.length, here * entries, even, padding)
    return _Rows((block.loop(point),), "even" if even else "rows", TABLE, here * entries, s.segments, t.length)


def _main_phase(job: Job, s: Shape, frame: Frame, m: Axis, first: Axis, target: Target) -> Phase:
    tiled = job.tiled
    assert tiled is not None
    blocks = floor_div(s.tiles + (s.block - 1), Index.of(s.block))
    rb, b0, b1 = Axis("rb", blocks), Axis("b0", blocks), Axis("b1", blocks + 1)
    panel = next(a for a in index_axes(tiled.right.index) if a.name.endswith("_p"))
    p0, p1 = Axis("p0", s.panels), Axis("p1", s.panels + 1)
    at, t0, t1 = Axis("t", s.tiles), Axis("t0", s.tiles), Axis("t1", s.tiles + 1)
    block = _Block(at, t0, t1, tile_window(at, s.tiles, s.rows, first))
    end = Index.of(Axis("m1", s.rows + 1))
    b_at = right_offset(tiled.right, tiled.ranges, frame)
    before, padding = padding_of(tiled, frame)
    rows = _rows(tiled, s, frame, m, first, block, padding)
    if s.chunks == 1:
        frame.local(C, Index.of(target.panel * s.tall), tiled.product.sums)
    sums = (C, ZERO) if s.chunks == 1 else (SUMS, (Index.of(panel) * s.places + s.before(at, first)) * target.panel)
    columns = (ZERO, s.panels) if s.inside else (Index.of(p0), Index.of(p1))
    codes, present = coding(tiled, frame, panel, target.panel)

    def over_panels(chunk: Index, after: tuple[Stmt, ...]) -> Stmt:
        """One part of the depth over all columns and the rows of the block, and what comes `after` each tile."""
        skipped = chunk * rows.length if s.chunks > 1 else ZERO
        right = b_at + skipped * target.panel
        tile = Tile(
            *sums,
            end - Index.of(first),
            s.tall,
            "codes" if codes is not None else rows.kind,
            rows.source,
            rows.at + skipped * s.height(first, end),
            rows.segments,
            rows.length,
            frame.places[tiled.right.source].buffer,
            right,
            target.panel,
            right + tiled.depth * target.panel if s.streams else None,
            Index.of(at) - t0,
            Index.of(t1) - t0,
            chunk,
            tiled.product,
            codes,
            present,
        )
        return Loop(panel, *columns, "serial", (block.loop(tile, *after),))

    finish = epilogue(job, frame, panel, target.panel, m, end, sums, touch=True)
    loops = [over_panels(Index.of(s.chunks - 1), finish)]
    if s.chunks > 1:
        chunk = Axis("kc", Index.of(s.chunks - 1))
        loops.insert(0, Loop(chunk, ZERO, chunk.extent, "serial", (over_panels(Index.of(chunk), ()),)))
    bounds = (Bind(t0, Index.of(rb) * s.block), Bind(t1, Index.of(rb) * s.block + s.block, s.tiles))
    loop = Loop(rb, Index.of(b0), Index.of(b1), "serial", (*bounds, *rows.ready, *loops))
    splits = [Split(b0, b1, blocks)] if s.inside else [Split(b0, b1, blocks), Split(p0, p1, s.panels)]
    if s.columns_first:
        splits.reverse()
    return Phase(tuple(splits), _work(s, tiled), tuple(frame.locals), (*before, loop))


def _work(s: Shape, t: Tiled) -> Index:
    """Serial picoseconds, roughly."""
    columns = product([a.extent for a in t.columns])
    step, read = STEP * t.product.left.bytes // F32.bytes, READ * t.product.right.bytes // F32.bytes
    step = max(1, step // s.unit.speed) if s.unit is not None else step
    work = (s.rows * step + read) * s.depth * columns
    if t.zeros is not None:
        work = work + s.rows * columns * CODE
    return work if work != ZERO else ONE
