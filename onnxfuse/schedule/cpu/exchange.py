"""Contractions with operands swapped: filters are the rows of a tile, pixels its columns.

A channels-first image needs no transposition before or after: a panel of pixels is packed where it is multiplied, once
for all filters, and the result is channels first again. Every channel of both images is a stream of its own: where
these are more than a machine follows, several panels are multiplied together, while the lines of the next are fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from onnxfuse.cost.serial import elements, multiply_adds
from onnxfuse.ir.compose import substitute_axes, walk
from onnxfuse.ir.dtype import F32, I64
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div, greatest, least
from onnxfuse.ir.indexing import coefficient, flatten, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Prefetch, RowPointer, Split, Stmt, When
from onnxfuse.ir.scalar import FromIndex, Guard, Load, Scalar, apply, cast, const
from onnxfuse.ir.tile import Packed, Panel, Pointers, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.operand_order import rows_of_tiles
from onnxfuse.schedule.cpu.tiles import C, epilogue, exceeds, line_by_line
from onnxfuse.schedule.nests.frame import Frame, flat_in
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level, walks_as_one
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

SIDE = "places"  # buffer of a panel of the image
SOURCES = "sources"  # table of pointers to the rows of pixels of a panel
MOST_SOURCES = 512  # pointers of a panel, at most
MOST_TILES = 6  # of a panel, at most: a copy for more is little beside them, and comes from memory all at once
FEWEST_ROWS = 4  # rows of a tile that makes the panel, at least: with fewer it waits for sums, not for vectors
NEAR = 0.5  # fraction of L1 for the panels that all tiles read, and for their sums
TOGETHER = 4  # panels that are multiplied together, at most


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
    multiplied = _Multiplied(job, t, frame, panel, width, target)
    blocks = multiplied.blocks
    l0, l1, p0, p1 = (
        Axis(f"{name}{end}", extent + end) for name, extent in (("l", line.extent), ("p", blocks)) for end in (0, 1)
    )
    inner = multiplied.panels(Index.of(p0), Index.of(p1))
    body = Loop(line, Index.of(l0), Index.of(l1), "serial", (inner,))
    splits = (Split(l0, l1, line.extent), Split(p0, p1, blocks))
    computed = (
        floor_div(rows + (tile_rows - 1), Index.of(tile_rows)) * tile_rows * panels * width
    )  # unused ones included
    packed = elements(panels * width * depth * line.extent, 0, target.serial)
    work = multiply_adds(computed * depth * line.extent, target) + packed
    return Phase(splits, work, tuple(frame.locals), (body,))


def _extents(axes: Sequence[Axis]) -> tuple[Index, ...]:
    return tuple(a.extent for a in axes)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A reduction in parts of the same `inner` axes: `part` numbers them, of which the `outer` axes are digits.

    Without a number it is one part.
    """

    part: Axis | None
    inner: tuple[Axis, ...]
    outer: Mapping[Axis, Index]


@dataclass(frozen=True, slots=True)
class _Multiplied:
    """Panels of pixels times all filters, with their epilogue."""

    job: Job
    tiled: Tiled
    frame: Frame
    panel: Axis
    width: int
    target: Cpu

    @property
    def blocks(self) -> Index:
        """How many blocks of panels there are that are multiplied together."""
        together = self.together
        return self.panel.extent if together == 1 else floor_div(self.panel.extent + (together - 1), Index.of(together))

    def panels(self, begin: Index, end: Index) -> Stmt:
        """The blocks of panels from `begin` to `end`: the whole reduction at once, or in parts if one exceeds L1."""
        t, frame, width, tile_rows = self.tiled, self.frame, self.width, self.frame.tile_rows
        row, stop = frame.row, Axis("jn", Index.of(width + 1))
        assert row is not None
        tiles = floor_div(row.extent + (tile_rows - 1), Index.of(tile_rows))
        at, last_row = Axis("t", tiles), Axis("m1", row.extent + 1)
        window = (
            Bind(Axis("m0", row.extent), Index.of(at) * tile_rows),
            Bind(last_row, Index.of(at) * tile_rows + tile_rows, row.extent),
        )
        parts, together = self.parts, self.together
        part, some = parts.part, product(_extents(parts.inner))
        first = Axis("pf", self.panel.extent)
        here = (Index.of(self.panel) - first) * some * width if together > 1 else ZERO
        sums = (C, Index.of(at) * tile_rows * width if part is not None else ZERO)
        frame.local(SIDE, some * width * together)
        frame.local(C, tiles * tile_rows * width if part is not None else Index.of(width * tile_rows))
        start = {**dict.fromkeys((*t.ranges, t.lane), ZERO), t.panel: Index.of(at)}
        filters = frame.places[t.left.source].offset(tuple(substitute(e, start) for e in t.left.index))
        left = Packed(t.left.source, filters, 1, some)
        right = Panel(SIDE, here, Index.of(stop))
        tile = Tile(C, sums[1], Index.of(tile_rows), TileCore(tile_rows, width), left, right)
        finish = line_by_line if t.pitch != ZERO else epilogue
        stored = finish(self.job, frame, self.panel, width, row, Index.of(last_row), sums)
        known = Bind(stop, t.places - Index.of(self.panel) * width, Index.of(width))
        lanes = self.target.lanes
        used = floor_div(Index.of(stop) + (lanes - 1), Index.of(lanes)) * lanes
        packed = self.side(stop, used, parts, here)
        if part is not None:
            tile = replace(tile, left=replace(left, at=left.at + part * some * tile_rows), more=Index.of(part))
            packed, filled = self._filled(packed, tile, at, parts)
            over_parts = Loop(part, ZERO, part.extent, "serial", (*packed, Loop(at, ZERO, tiles, "serial", filled)))
            last_loop = Loop(at, ZERO, tiles, "serial", (*window, *stored))
            return Loop(self.panel, begin, end, "serial", (known, over_parts, last_loop))
        if together == 1:
            packed, filled = self._filled(packed, tile, at, parts)
            packed = (known, *packed)
            finished = (*window, *self.near_results(Index.of(last_row)), *filled, *stored)
            multiplied = Loop(at, ZERO, tiles, "serial", finished)
            return Loop(self.panel, begin, end, "serial", (*packed, multiplied))
        packed = (known, *packed)
        stored = tuple(x for x in stored if x != known)  # bound before the tile
        finished = (known, tile, *self.next_results(together, Index.of(last_row)), *stored)
        return self._blocks(
            begin, end, (*self.next_pixels(together), *packed), Loop(at, ZERO, tiles, "serial", window), finished
        )

    def _blocks(
        self, begin: Index, end: Index, packed: tuple[Stmt, ...], tiles: Loop, finished: tuple[Stmt, ...]
    ) -> Loop:
        """Blocks from `begin` to `end`: each panel is `packed`, and for `tiles` of filters each panel is `finished`."""
        together, block = self.together, Axis("pb", self.blocks)
        first, last = Axis("pf", self.panel.extent), Axis("pl", self.panel.extent + 1)
        start, of_block = Index.of(block) * together, (Index.of(first), Index.of(last))
        body = (
            Bind(first, start),
            Bind(last, start + together, self.panel.extent),
            Loop(self.panel, *of_block, "serial", packed),
            replace(tiles, body=(*tiles.body, Loop(self.panel, *of_block, "serial", finished))),
        )
        return Loop(block, begin, end, "serial", body)

    @property
    def fills(self) -> bool:
        """Whether the first tile of a panel copies it while it multiplies.

        That is of known rows of pixels side by side, where panels of few tiles are multiplied one after another.
        """
        lanes = (*[ZERO] * (len(self.tiled.columns) - 1), self._lane)
        read, depth = self._pixels(lanes, self.parts), product(_extents(self.parts.inner)).constant
        beside = coefficient(read.index[0], next(iter(axes_of(self._lane)))) == ONE
        rows, tile_rows = product(_extents(self.tiled.rows)).constant or 0, self.frame.tile_rows
        few = 0 < (depth or 0) <= MOST_SOURCES and tile_rows >= FEWEST_ROWS and rows <= MOST_TILES * tile_rows
        known = all(e.constant is not None for e in _extents(self.parts.inner))
        single = read.dtype == F32 and not read.guards and self.together == 1
        in_one_line = not self.seamed or (self.tiled.columns[1].extent.constant or 0) >= self.width
        return bool(self.parts.inner) and few and beside and known and single and in_one_line

    def _filled(
        self, packed: tuple[Stmt, ...], tile: Tile, at: Axis, parts: _Parts
    ) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """What is done before the tiles of a panel, and each tile.

        The first makes a panel that is whole and in one line; others are packed before it.
        """
        if not self.fills:
            return packed, (tile,)
        t, row, first = self.tiled, parts.inner[-1], Index.of(self.panel) * self.width
        depth, length = product(_extents(parts.inner)).constant or 0, Index.of(self.width)
        self.frame.local(SOURCES, Index.of(depth), F32, "pointers")
        read = self._pixels(self._columns(first), parts)
        pointers = RowPointer(SOURCES, row, ZERO, row.extent, row.extent.constant or 1, parts.inner[:-1], read, length)
        source = Pointers(SOURCES, ZERO, depth, length)
        made = replace(tile, right=replace(tile.right, source=source))
        short = ZERO if self._whole else greatest(self.width - (t.places - first), ZERO)
        if self.seamed:
            line = t.columns[1].extent
            short = short + greatest(self.width - (line * (floor_div(first, line) + 1) - first), ZERO)
        before: tuple[Stmt, ...] = (pointers,)
        with_made, with_packed = list[Guard](), list[tuple[Guard, ...]]()
        binds = list[Stmt]()
        if at.extent != ONE:
            later = Axis("tf", Index.of(2))
            binds.append(Bind(later, Index.of(at), ONE))
            with_made.append(_none(later))
            with_packed.append((_some(later),))
        if short != ZERO:
            unready = Axis("pu", Index.of(2))
            before = (
                Bind(unready, short, ONE), When((_some(unready),), packed), When((_none(unready),), (pointers,)),
            )  # fmt: skip
            with_packed.append((*with_made, _some(unready)))
            with_made.append(_none(unready))
        tiles = [When(guards, (tile,)) for guards in with_packed]
        return before, (*binds, When(tuple(with_made), (made,)) if with_made else made, *tiles)

    @property
    def _whole(self) -> bool:
        """Whether all panels are known to be whole."""
        places = self.tiled.places.constant
        return places is not None and places % self.width == 0

    @property
    def _lane(self) -> Index:
        return Index.of(Axis("j", Index.of(self.width)))

    def _columns(self, at: Index) -> Sequence[Index]:
        """The columns of a place, counted over all of a panel's lines."""
        t = self.tiled
        return (ZERO, at) if t.pitch != ZERO else unflatten(at, _extents(t.columns))

    def _pixels(self, columns: Sequence[Index], parts: _Parts) -> Load:
        """The element of the image that a step of the reduction multiplies in a column."""
        t = self.tiled
        values = {**dict(zip(t.columns, columns, strict=True)), **parts.outer}
        read = flat_in(substitute_axes(t.right, values), self.frame)
        assert isinstance(read, Load)
        return read

    def _seams(self, first: Index) -> Sequence[tuple[int, Index]]:
        """Of each vector of a panel its first lane, and that of the next line; none if all panels are in one line."""
        if not self.seamed:
            return ()
        line = self.tiled.columns[1].extent
        vectors = range(0, self.width, self.target.lanes)
        return [(begin, line * (floor_div(first + begin, line) + 1) - first) for begin in vectors]

    @property
    def together(self) -> int:
        """How many panels are multiplied together.

        One, if the streams are few, or if both images are known to stay in L2 or not known.
        """
        t, lines = self.tiled, product(_extents(self.tiled.lines or ())).constant
        streams = (self._rows_of_pixels().constant or 0, product(_extents(t.rows)).constant or 0)
        pixels, depth = t.places.constant, product(_extents(t.ranges)).constant
        if t.pitch != ZERO or lines is None or pixels is None or depth is None or sum(streams) <= self.target.streams:
            return 1
        if self.parts.part is not None or sum(streams) * lines * pixels * F32.bytes <= self.target.l2_bytes:
            return 1
        return max(1, min(TOGETHER, int(NEAR * self.target.l1_bytes) // (F32.bytes * self.width * depth)))

    def _rows_of_pixels(self) -> Index:
        """How many rows of pixels a panel is read from."""
        offset = self.frame.places[self.tiled.right.source].offset(self.tiled.right.index)
        steps = [(r, (coefficient(offset, r) or ZERO).constant) for r in self.tiled.ranges]
        return product([r.extent for r, step in steps if abs(step or self.width) >= self.width])

    def next_pixels(self, after: int) -> tuple[Stmt, ...]:
        """Fetches the pixels of the panel so many panels later, unless windows read most of them more than once."""
        t = self.tiled
        if self._rows_of_pixels() != product(_extents(t.ranges)):
            return ()
        lane = Axis("j", Index.of(self.width))
        column = (Index.of(self.panel) + after) * self.width + lane
        values = dict(zip(t.columns, unflatten(column, _extents(t.columns)), strict=True))
        read = flat_in(substitute_axes(t.right, values), self.frame)
        assert isinstance(read, Load)
        apart = (coefficient(read.index[0], lane) or ONE).constant or 1
        made: Stmt = Prefetch(read.source, substitute(read.index[0], {lane: ZERO}), self.width * apart)
        for r in reversed(t.ranges):
            made = Loop(r, ZERO, r.extent, "serial", (made,))
        return (made,)

    def near_results(self, end: Index) -> tuple[Stmt, ...]:
        """Fetches the lines that a tile is stored to before it is multiplied, if they are expected beyond L2.

        Not beside what an epilogue reads by pixels, and not where a panel is stored to several lines.
        """
        t, nest = self.tiled, self.job.nest
        read = [n for n in walk(t.finish) if isinstance(n, Load) and n.source != "%acc"]
        if t.pitch != ZERO or any(axes_of(e) & set(t.columns) for n in read for e in n.index):
            return ()
        most = self.target.near_lines * self.target.l2_bytes / nest.dtype.bytes
        guards = exceeds(product(nest.shape), most)
        if guards is None:
            return ()
        fetched = self.next_results(0, end, near=True)
        return (When(guards, fetched),) if guards else fetched

    def next_results(self, after: int, end: Index, *, near: bool = False) -> tuple[Stmt, ...]:
        """Fetches the lines that the panel so many panels later is stored to, in the rows of a tile."""
        t, row, nest = self.tiled, self.frame.row, self.job.nest
        assert row is not None
        at = (Index.of(self.panel) + after) * self.width
        values = dict(zip(t.columns, unflatten(at, _extents(t.columns)), strict=True))
        dims = tuple(substitute(substitute(e, values), self.frame.shared) for e in nest.dims)
        place = self.frame.places[nest.name]
        fetched = Prefetch(place.buffer, place.offset(dims), self.width, near)
        return (Loop(row, self.frame.first, end, "serial", (fetched,)),)

    @property
    def parts(self) -> _Parts:
        """The reduction, in parts that stay in L1 if there are many filters."""
        ranges, room = self.tiled.ranges, NEAR * self.target.l1_bytes / (F32.bytes * self.width)
        tile_rows, all_rows = self.frame.tile_rows, product(_extents(self.tiled.rows))
        rows = floor_div(all_rows + (tile_rows - 1), Index.of(tile_rows)) * tile_rows
        extents = [a.extent.constant for a in ranges]
        known = [e for e in extents if e is not None]
        at = next((at for at in range(len(known)) if prod(known[at:]) <= room), 0)
        if len(known) < len(extents) or (rows.constant or room + 1) > room or not at:
            return _Parts(None, ranges, {})
        last, rest = known[at - 1], prod(known[at:])
        steps = max(n for n in range(1, last + 1) if last % n == 0 and n * rest <= room)
        counts = (*_extents(ranges[: at - 1]), Index.of(last // steps))
        part, within = Axis("d", product(counts)), Axis("dd", Index.of(steps))
        *digits, digit = unflatten(Index.of(part), counts)
        inner = (within, *ranges[at:]) if steps > 1 else ranges[at:]
        outer = {ranges[at - 1]: digit * steps + within if steps > 1 else digit}
        return _Parts(part, inner, dict(zip(ranges[: at - 1], digits, strict=True)) | outer)

    def side(self, stop: Axis, end: Index, parts: _Parts, place: Index) -> tuple[Stmt, ...]:
        """Packs a part of a panel of pixels to `place`: a row of whole vectors for each step of the reduction.

        It is padded with zeros, since a tile multiplies the padding too, and subnormals in it would be slow. Where it
        begins in one line and ends in the next, its rows are blends of vectors of both.
        """
        t, width, lane, lanes = self.tiled, self.width, self._lane, self.target.lanes
        first = Index.of(self.panel) * width
        step = flatten(tuple(map(Index.of, parts.inner)), _extents(parts.inner))

        def packed(x: Scalar, begin: int, end: Index, prefix: str) -> tuple[Stmt, ...]:
            levels = [*map(Level, parts.inner), Level(Axis("j", Index.of(width)), "vector", Index.of(begin), end)]
            return written([Goal(SIDE, place + step * width + lane, cast(x, F32))], levels, f"{prefix}{begin or ''}")

        binds, whole, known = list[Stmt](), list[Stmt](), list[Stmt]()
        for begin, next_line in self._seams(first):
            line = t.columns[1].extent
            number = floor_div(first + begin, line)
            at, end_of_vector = first + lane - number * line, Index.of(begin + lanes)
            seam = Axis(f"js{begin or ''}", Index.of(lanes + 1))  # lanes of the line in which the vector begins
            binds.append(Bind(seam, next_line - begin, Index.of(lanes)))
            here, there = self._pixels((number, at), parts), self._pixels((number + 1, at - line), parts)
            in_first = apply("less", FromIndex(lane - begin - Index.of(seam), I64), const(0, I64))
            one = packed(here, begin, end_of_vector, "x")
            two = packed(apply("select", in_first, here, there), begin, end_of_vector, "s")
            whole.append(When((Guard(lanes - Index.of(seam), ONE),), one))
            whole.append(When((Guard(lanes - 1 - Index.of(seam), Index.of(lanes)),), two))
            beyond = least(Index.of(seam) + begin, Index.of(stop))
            some = _within(here, lane, Index.of(begin), beyond, const(0.0, here.dtype))
            some = _within(there, lane, Index.of(seam) + begin, Index.of(stop), some)
            known += packed(some, begin, least(end_of_vector, end), "y")
        if not self.seamed:  # with a pitch, elements between two lines are read too
            read = self._pixels(self._columns(first + lane), parts)
            whole += packed(read, 0, Index.of(width), "x")
            known += packed(_within(read, lane, ZERO, Index.of(stop), const(0.0, read.dtype)), 0, end, "y")
        if self._whole:
            return (*binds, *whole)
        missing = width - Index.of(stop)
        return (
            *binds,
            When((Guard(missing, ONE),), tuple(whole)),
            When((Guard(missing - 1, Index.of(width)),), tuple(known)),
        )

    @property
    def seamed(self) -> bool:
        """Whether panels hold ends of lines and begins of the next."""
        t, places = self.tiled, self.frame.places
        if t.pitch != ZERO or len(t.columns) == 1:
            return False
        return not walks_as_one(places[t.right.source].offset(t.right.index), *t.columns[-2:])


def _none(a: Axis) -> Guard:
    """Whether it is 0."""
    return Guard(Index.of(a), ONE)


def _some(a: Axis) -> Guard:
    """Whether it is 1."""
    return Guard(Index.of(a) - 1, ONE)


def _within(x: Load, lane: Index, begin: Index, end: Index, otherwise: Scalar) -> Load:
    """A load of the lanes from `begin` to `end`."""
    (at,) = axes_of(lane)
    apart = coefficient(x.index[0], at) or ONE
    return replace(x, guards=(Guard((lane - begin) * apart, greatest(end - begin, ZERO) * apart),), otherwise=otherwise)
