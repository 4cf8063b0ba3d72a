"""Phases of a contraction with panels that all tasks share: weights are read once, rows stay in cache.

Loops: blocks of row tiles that fit in L2, then panels, then the tiles of the block. Short, deep contractions read a
packed copy of their rows; others (convolutions among them) go through row pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import flatten, product, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Pack, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.products import Product, Unit
from onnxfuse.ir.tile import EVEN_ENTRIES, Ahead, Coding, Left, Packed, Panel, Pointers, Quantized, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import Way, usual_rows
from onnxfuse.schedule.cpu.tiles import (
    TABLE,
    C,
    coding,
    epilogue,
    even_rows,
    left_load,
    padding_of,
    right_offset,
    tile_window,
)
from onnxfuse.schedule.nests.align import Together
from onnxfuse.schedule.nests.frame import Frame
from onnxfuse.schedule.nests.nest import walks_as_one
from onnxfuse.schedule.nests.tiled import Part, Tiled, balanced
from onnxfuse.target import Cpu

PACKED = "packed"
SUMS = "partial"
SHORTEST = 256  # steps of a part of the depth, at least
POINTERS = 2048  # entries of a table of row pointers, at most
PARTS = (1, 2, 3, 4, 6, 8)  # of the depth, that are worth measuring
LOWER = 2  # rows by which tiles may be lower, likewise
CODE = 50  # picoseconds to make a code of a sum


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one contraction, and a way through it."""

    rows: Index
    depth: Index
    panels: Index
    tall: int  # rows of a tile at most
    tiles: Index
    segments: int
    streams: bool  # weights are larger than a cache, so the next panel is prefetched
    unit: Unit | None  # with one, packed rows and sums of every tile have the place of the tallest
    packed_depth: Index  # steps of a packed row
    block: int = 1  # tiles of a row block
    packed: bool = False
    columns_first: bool = False  # tasks share the panels rather than the rows
    chunks: int = 1  # parts of the depth, taken one after the other over all columns
    inside: bool = False  # rows are packed block by block by the task that multiplies them, with all columns
    low: bool = False  # tiles have fewer rows than they could have

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

    def __str__(self) -> str:
        rows = "packed block by block" if self.inside else "packed" if self.packed else "unpacked"
        parts = f", K in {self.chunks} parts" if self.chunks > 1 else ""
        blocks = f"blocks of {self.block} x {self.tall} rows" if self.block > 1 else f"tiles of {self.tall} rows"
        return f"A {rows}, parallel over {'N' if self.columns_first else 'M'}, {blocks}{parts}"


def shapes_of(t: Tiled, offset: Index, target: Cpu) -> tuple[Shape, ...]:
    """The ways through a contraction whose times are to be compared; the left side is read at `offset`.

    The left side A is read unpacked or packed first. Tasks share the rows (M), tile by tile where weights stay in L2
    and else in blocks, or the columns (N): then blocks are of as many rows as stay in L2, or the depth (K) is taken in
    parts of which all rows stay there. Where A has to be packed, each task may do that for itself. What touches least
    comes first.
    """
    tall, *lower = heights(t, offset, target)
    lows = [replace(s, low=True) for h in lower for s in _shapes(t, h, target) if not s.packed]
    return (*_shapes(t, tall, target), *lows)


def _shapes(t: Tiled, tall: int, target: Cpu) -> tuple[Shape, ...]:
    """The ways with tiles of so many rows."""
    rows, depth = product([a.extent for a in t.rows]), product([a.extent for a in t.ranges])
    columns = product([a.extent for a in t.columns])
    panels = floor_div(columns + (target.panel - 1), Index.of(target.panel))
    segments = product([s.extent for s in t.segments]).constant or 1
    m, k, n = rows.constant, depth.constant or 512, columns.constant or 512
    how = t.product
    count, panel_count = -(-usual_rows([a.extent for a in t.rows]) // tall), -(-n // target.panel)
    must = t.left.dtype != how.left or bool(t.parts)
    may = must or (not how.exact and m != 1 and panel_count > 1)
    tile = how.left.bytes * tall * k
    lines = tile if must else tile // segments  # windows beside each other share what they read
    here = count if must else min(count, max(1, POINTERS // (segments * tall)))
    share = -(-count // (2 * target.cores))  # tiles of a task, where all cores are to have some

    def fitting(eighths: int, size: int, most: int) -> int:
        """Tiles of so many bytes that take no more than a part of L2."""
        return max(1, min(target.l2_bytes * eighths // 8 // size, most))

    tiles = floor_div(rows + (tall - 1), Index.of(tall))
    streams = k * n * how.right.bytes > target.l2_bytes // 16
    padded = depth if how.unit is None else floor_div(depth + (how.piece - 1), Index.of(how.piece)) * how.piece
    by_rows = Shape(rows, depth, panels, tall, tiles, segments, streams, how.unit, padded, packed=must)
    by_columns = replace(by_rows, columns_first=panel_count > 1)
    ways = [replace(by_columns, block=fitting(6, lines, here))] if panel_count > 1 or count == 1 else []
    if count > 1:
        all_rows = [by_rows, replace(by_rows, block=fitting(6, lines, min(here, share)))]
        ways = [*ways, *all_rows] if streams else [all_rows[0], *ways, all_rows[1]]
        if must and None not in (m, depth.constant):
            ways.insert(0, replace(by_rows, inside=True, block=fitting(4, tile, share)))
    if may:
        ways.append(replace(by_columns, packed=True, block=fitting(6, tile, count)))
        chunks = _chunks(k, how, tall * count, target) if depth.constant is not None else 1
        if chunks > 1:
            ways.append(replace(ways[-1], chunks=chunks, block=fitting(4, tile // chunks, count)))
    return tuple(dict.fromkeys(ways))


def varied(shapes: Sequence[Shape], t: Tiled, target: Cpu) -> tuple[Shape, ...]:
    """Ways besides these, for those who measure: other blocks, other parts of the depth, lower tiles.

    What cannot be, is not: rows that are not packed have so many pointers, parts are of whole pieces.
    """
    found: dict[Shape, None] = {}
    for s in shapes:
        count = -(-usual_rows([a.extent for a in t.rows]) // s.tall)
        most = count if s.packed else min(count, max(1, POINTERS // (s.segments * s.tall)))
        blocks = [b for b in (s.block // 4, s.block // 2, s.block * 2, s.block * 4, most) if 1 <= b <= most]
        found |= dict.fromkeys(replace(s, block=b) for b in blocks)
        if s.packed and s.columns_first and (depth := s.depth.constant) is not None:
            parts = [n for n in PARTS if depth % (n * t.product.piece) == 0 and depth // n >= SHORTEST]
            found |= dict.fromkeys(replace(s, chunks=n, block=b) for n in parts for b in (s.block, most))
        if s.unit is None and s.tall == balanced(s.rows.constant, target.rows):
            heights = range(s.tall - 1, max(s.tall - LOWER, s.tall // 2) - 1, -1)
            found |= dict.fromkeys(_lower(s, tall) for tall in heights if tall > 0)
    return tuple(s for s in found if s not in shapes)


def _lower(s: Shape, tall: int) -> Shape:
    tiles = floor_div(s.rows + (tall - 1), Index.of(tall))
    return replace(s, tall=tall, tiles=tiles, block=max(1, s.block * s.tall // tall), low=True)


def _chunks(depth: int, how: Product, rows: int, target: Cpu) -> int:
    """Parts of the depth of which one of all rows stays in half of L2."""
    most = target.l2_bytes // 2 // (how.left.bytes * rows)  # steps of a part
    if depth <= most:
        return 1
    parts = (n for n in range(2, depth // SHORTEST + 1) if depth % (n * how.piece) == 0)
    return next((n for n in parts if depth // n <= most), 1)


def height(t: Tiled, offset: Index, target: Cpu) -> int:
    """Rows of a tile.

    Rows that go on at one distance from line to line are divided into tiles of equal height; others line by line, where
    a line can be.
    """
    most = t.product.unit.rows if t.product.unit is not None else target.rows
    width, rows = t.rows[-1].extent.constant if t.rows else 1, product([a.extent for a in t.rows]).constant
    if t.left.guards or not all(walks_as_one(offset, high, low) for high, low in pairwise(t.rows)):
        heights = range(most, most // 2, -1)
        line = next((h for h in heights if width is not None and width % h == 0), None)
        if line is not None:
            return line
    return balanced(rows, most)


def heights(t: Tiled, offset: Index, target: Cpu) -> tuple[int, ...]:
    """Rows of a tile, and half as many where lines are whole tiles of those only: then rows are evenly apart.

    That is less to load, which takes longest where a tile has one vector of columns.
    """
    tall, half = height(t, offset, target), target.rows // 2
    width = t.rows[-1].extent.constant if t.rows else None
    lines = width is not None and width % half == 0 and width % tall
    narrow = (product([a.extent for a in t.columns]).constant or target.panel) <= target.lanes
    return (tall, half) if lines and narrow and t.product.unit is None and tall > half else (tall,)


def gemm_ways(t: Together, places: dict[str, Place], target: Cpu, *, every: bool = False) -> tuple[Way, ...]:
    """The ways through one contraction, each as its phases and the scratch that they share; `every` one on request."""
    job = t.jobs[0]
    tiled = job.tiled
    assert tiled is not None
    shapes = usual = shapes_of(tiled, places[tiled.left.source].offset(tiled.left.index), target)
    shapes = (*usual, *varied(usual, tiled, target)) if every else usual
    panel = tiled.panel
    m, first, end = (Axis(name, shapes[0].rows + more) for name, more in (("m", 0), ("m0", 0), ("m1", 1)))
    digits = unflatten(Index.of(m), tuple(a.extent for a in tiled.rows))
    shared = dict(zip(tiled.rows, digits, strict=True))
    apart = (
        SUMS,
        (Index.of(panel) * shapes[0].places + shapes[0].before(Axis("t", shapes[0].tiles), first)) * target.panel,
    )
    finishes: dict[tuple[tuple[str, Index], int], tuple[Stmt, ...]] = {}
    ways = []
    for s in shapes:
        frame = Frame(shared, m, Index.of(first), s.tall, places)
        sums = (C, ZERO) if s.chunks == 1 else apart
        if (sums, s.tall) not in finishes:
            finishes[sums, s.tall] = epilogue(job, frame, panel, target.panel, m, Index.of(end), sums, touch=True)
        phases = [_main_phase(tiled, s, frame, m, first, panel, target, sums, finishes[sums, s.tall])]
        scratch = []
        if s.packed and not s.inside:
            phases.insert(0, _pack_phase(tiled, s, frame, m, first))
            scratch.append(Buffer(PACKED, tiled.product.left, s.places * s.packed_depth, "global"))
        if s.chunks > 1:
            scratch.append(Buffer(SUMS, F32, s.places * s.panels * target.panel, "global"))
        ways.append(Way(str(s), tuple(phases), tuple(scratch), usual=s in usual))
    return tuple(ways)


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
    left: Left


def _rows(
    t: Tiled, s: Shape, frame: Frame, m: Axis, first: Axis, block: _Block, padding: str, codes: Coding | None
) -> _Rows:
    """Rows packed before, packed here for the block, or pointers to unpacked ones."""
    here = Index.of(block.at) - block.begin
    if s.packed:
        slot = s.before(block.at, first) * s.packed_depth
        ready: tuple[Stmt, ...] = ()
        if s.inside:
            slot = here * s.tall * s.packed_depth
            frame.local(PACKED, s.packed_depth * (s.tall * s.block), t.product.left)
            ready = (block.loop(*_packing(t, s, frame, m, first, slot)),)
        return _Rows(ready, Packed(PACKED, slot, 1, floor_div(s.depth, Index.of(s.chunks))))
    load = left_load(t.left, t.ranges, t.segments, frame)
    even = t.zeros is None and even_rows(t, t.rows, load, m, s.tall, frame.places)
    entries = s.segments * (EVEN_ENTRIES if even else s.tall)
    frame.local(TABLE, Index.of(entries * s.block), t.product.left, "pointers")
    end = Index.of(Axis("m1", s.rows + 1))
    point = RowPointer(
        TABLE, m, Index.of(first), end, s.tall, t.segments, load, t.length, here * entries, even, padding
    )
    found = (TABLE, here * entries, s.segments, t.length)
    return _Rows((block.loop(point),), Pointers(*found, even) if codes is None else Quantized(*found, codes))


def _main_phase(
    tiled: Tiled,
    s: Shape,
    frame: Frame,
    m: Axis,
    first: Axis,
    panel: Axis,
    target: Cpu,
    sums: tuple[str, Index],
    finish: tuple[Stmt, ...],
) -> Phase:
    """Tiles over all rows and columns, with their `sums` where those are to be, and what finishes them."""
    blocks = floor_div(s.tiles + (s.block - 1), Index.of(s.block))
    rb, b0, b1 = Axis("rb", blocks), Axis("b0", blocks), Axis("b1", blocks + 1)
    p0, p1 = Axis("p0", s.panels), Axis("p1", s.panels + 1)
    at, t0, t1 = Axis("t", s.tiles), Axis("t0", s.tiles), Axis("t1", s.tiles + 1)
    block = _Block(at, t0, t1, tile_window(at, s.tiles, s.rows, first))
    end = Index.of(Axis("m1", s.rows + 1))
    b_at = right_offset(tiled, frame)
    before, padding = padding_of(tiled, frame)
    codes, present = coding(tiled, frame, panel, target.panel)
    counted = _columns(tiled, panel, target) if s.unit is None and codes is None else ()
    if counted:
        present, finish = Index.of(counted[0].axis), tuple(x for x in finish if x not in counted)
    rows = _rows(tiled, s, frame, m, first, block, padding, codes)
    if s.chunks == 1:
        frame.local(C, Index.of(target.panel * s.tall), tiled.product.sums)
    columns = (ZERO, s.panels) if s.inside else (Index.of(p0), Index.of(p1))
    weights, turn = frame.places[tiled.right.source].buffer, (Index.of(at) - t0, Index.of(t1) - t0)

    def over_panels(chunk: Index, after: tuple[Stmt, ...]) -> Stmt:
        """One part of the depth over all columns and the rows of the block, and what comes `after` each tile."""
        skipped = chunk * rows.left.length if s.chunks > 1 else ZERO
        right = b_at + skipped * target.panel
        tile = Tile(
            *sums,
            end - Index.of(first),
            TileCore(s.tall, target.panel, tiled.product),
            replace(rows.left, at=rows.left.at + skipped * s.height(first, end)),
            Panel(weights, right, present),
            chunk,
            Ahead(weights, right + tiled.depth * target.panel, *turn) if s.streams else None,
        )
        return Loop(panel, *columns, "serial", (*counted, block.loop(tile, *after)))

    loops = [over_panels(Index.of(s.chunks - 1), finish)]
    if s.chunks > 1:
        chunk = Axis("kc", Index.of(s.chunks - 1))
        loops.insert(0, Loop(chunk, ZERO, chunk.extent, "serial", (over_panels(Index.of(chunk), ()),)))
    bounds = (Bind(t0, Index.of(rb) * s.block), Bind(t1, Index.of(rb) * s.block + s.block, s.tiles))
    loop = Loop(rb, Index.of(b0), Index.of(b1), "serial", (*bounds, *rows.ready, *loops))
    splits = [Split(b0, b1, blocks)] if s.inside else [Split(b0, b1, blocks), Split(p0, p1, s.panels)]
    if s.columns_first:
        splits.reverse()
    return Phase(tuple(splits), _work(s, tiled, target), tuple(frame.locals), (*before, loop))


def _columns(t: Tiled, panel: Axis, target: Cpu) -> tuple[Bind, ...]:
    """What says how many columns a panel has, where its last one leaves vectors empty."""
    count, width = product([a.extent for a in t.columns]), target.panel
    if (count.constant or 0) % width not in range(1, width - target.lanes + 1):
        return ()
    return (Bind(Axis("jn", Index.of(width + 1)), count - Index.of(panel) * width, Index.of(width)),)


def _work(s: Shape, t: Tiled, target: Cpu) -> Index:
    """Serial picoseconds, roughly: multiply-adds at the peak, and the way of weights that are in no cache."""
    columns = product([a.extent for a in t.columns])
    step = round(2e3 / target.gflops * t.product.left.bytes / F32.bytes)
    step = max(1, step // s.unit.speed) if s.unit is not None else step
    read = round(1e3 / target.bandwidth * t.product.right.bytes)
    work = (s.rows * step + read) * s.depth * columns
    if t.zeros is not None:
        work = work + s.rows * columns * CODE
    return work if work != ZERO else ONE
