"""Phases of 3x3 convolutions with fewer products than taps: Winograd's algorithm over tiles of an image.

A task takes a block of tiles, of one group of channels, and transforms its inputs; then, panel by panel, it transforms
the filters, multiplies, and transforms the products back to results, with the epilogue. All intermediate values are in
buffers of the task; filters are stored untransformed in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.errors import counted
from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import F32, I64
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, axes_of, floor_div, modulo
from onnxfuse.ir.indexing import product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.scalar import Guard, Load, Reduce, Scalar, apply, cast, const
from onnxfuse.ir.tile import EVEN_ENTRIES, Ahead, Panel, Pointers, Tile, TileCore
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.cpu.groups import by_group, digits_of, group_axis
from onnxfuse.schedule.cpu.tiles import TABLE, C, epilogue, tile_window
from onnxfuse.schedule.cpu.toom import Transform, combined
from onnxfuse.schedule.nests.frame import Frame
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level
from onnxfuse.schedule.nests.sliding import TAPS, Windows
from onnxfuse.schedule.nests.tiled import PAIR, balanced
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

LEFT, RIGHT, SUMS, HALF, LINES, ODD = "image", "filters", "products", "half", "lines", "odd"
PAD = 16  # elements between the matrices of products, so that they do not map to the same cache set
PAGE = 1024  # elements: rows at such a distance map to the same cache set


@dataclass(frozen=True, slots=True)
class WinogradBlocking:
    """How tasks divide the work.

    Tasks get blocks of `block` register tiles, or (`by_panels`) panels; where there are more cores, some of the other
    too, if one block has all tiles or images are of any size. With `keep` filters are transformed once, else per block.
    """

    transform: Transform
    block: int
    by_panels: bool
    keep: bool

    def __str__(self) -> str:
        m = self.transform.outputs
        kept = "once" if self.keep else "for each block"
        shared = "output channels" if self.by_panels else "tiles"
        block = counted(self.block, "tile")
        return f"F({m}x{m}, 3x3), parallel over {shared}, blocks of {block}, filters transformed {kept}"


FilterNests = dict[tuple[int, tuple[int, ...], Index, int], tuple[Stmt, ...]]


def winograd_phase(
    job: Job, w: Windows, division: WinogradBlocking, places: dict[str, Place], target: Cpu, filters: FilterNests
) -> Phase:
    """The one phase of such a convolution. `filters` keeps transformations that its divisions have in common."""
    return _Winograd(job, w, division, places, target, filters).phase()


class _Winograd:
    """Builds the phase: sizes, axes, and the buffers of a task."""

    def __init__(
        self,
        job: Job,
        w: Windows,
        division: WinogradBlocking,
        places: dict[str, Place],
        target: Cpu,
        filters: FilterNests,
    ) -> None:
        assert job.tiled is not None
        self.filters = filters
        self.job, self.tiled, self.w, self.division, self.places = job, job.tiled, w, division, places
        self.transform, self.target, self.lanes, self.width = division.transform, target, target.lanes, target.panel
        self.size, self.outputs = division.transform.size, division.transform.outputs
        self.depth = w.channel.extent.constant or 0
        shape = (*(a.extent for a in w.images), *w.tiles(self.outputs))
        self.rows = product(list(shape))  # tiles of all images, one row each of the transformed inputs
        self.tile_rows = balanced(self.rows.constant, target.rows, PAIR)
        self.tiles = floor_div(self.rows + (self.tile_rows - 1), Index.of(self.tile_rows))
        self.panel = self.tiled.panel
        self.row, self.first, self.begin = (Axis(name, self.rows) for name in ("m", "m0", "mb"))
        self.last, self.end = (Axis(name, self.rows + 1) for name in ("m1", "me"))
        self.at, self.t0, self.t1 = Axis("t", self.tiles), Axis("t0", self.tiles), Axis("t1", self.tiles + 1)
        names = [Axis(f"n{i}", e) for i, e in enumerate(shape)]
        self.digits = dict(zip(names, unflatten(Index.of(self.row), shape), strict=True))
        self.group = digits_of(group_axis(self.tiled), self.tiled.batch)
        self.image = dict(zip(w.images, map(Index.of, names), strict=False)) | self.group
        self.corner = tuple(
            floor_div(Index.of(a), Index.of(d)) * (self.outputs * d) + modulo(Index.of(a), Index.of(d))
            for a, d in zip(names[len(w.images) :], w.dilations, strict=True)
        )
        most = division.block * self.tile_rows
        self.pitch = self.depth + (PAD if self.depth % PAGE == 0 else 0)
        self.left = most * self.pitch + PAD  # elements from the transformed inputs of one product to those of the next
        self.right = self.depth * self.width + PAD
        self.sums = most * self.width + PAD
        self.nests = 0

    def phase(self) -> Phase:
        """The complete phase."""
        division, tiles = self.division, self.tiles
        blocks = floor_div(tiles + (division.block - 1), Index.of(division.block))
        whole = blocks == ONE and not division.keep  # its tiles are divided
        parts = tiles if whole else blocks
        rb, b0, b1 = Axis("rb", blocks), Axis("b0", parts), Axis("b1", parts + 1)
        p0, p1 = Axis("p0", self.panel.extent), Axis("p1", self.panel.extent + 1)
        few = whole or self.rows.constant is None  # there may be fewer blocks than cores
        by_block, by_panel = Split(b0, b1, parts), Split(p0, p1, self.panel.extent)
        splits = (by_panel, by_block) if division.by_panels else (by_block, by_panel)[: 1 + few]
        panels = (Index.of(p0), Index.of(p1)) if len(splits) > 1 else (ZERO, self.panel.extent)
        inside = Loop(self.panel, *panels, "serial", (*self._products(), self._results()))
        block = Index.of(rb) * division.block
        ends = (Index.of(b1),) if whole else (block + division.block, tiles)
        bounds = (
            Bind(self.t0, Index.of(b0) if whole else block),
            Bind(self.t1, *ends),
            Bind(self.begin, floor_div(Index.of(self.t0) * self.rows, tiles)),
            Bind(self.end, floor_div(Index.of(self.t1) * self.rows, tiles)),
        )
        body: tuple[Stmt, ...] = (*bounds, self._image(), inside)
        body = body if whole else (Loop(rb, Index.of(b0), Index.of(b1), "serial", body),)
        if division.keep:
            n = self.size
            firsts = [(group, Index.of(self.panel) * (n * n) + group[0] * n) for group in self.transform.groups]
            filters = tuple(s for group, at in firsts for s in self._filters(group, at))
            body = (Loop(self.panel, *panels, "serial", filters), *body)
        body, splits = by_group(self.job, body, splits, self.places)
        return Phase(splits, self._serial_time(), tuple(self._locals()), body, few=True)

    def _locals(self) -> Sequence[Buffer]:
        n, most = self.size, max(map(len, self.transform.groups))
        sizes = {
            LEFT: Index.of(n * n * self.left),
            RIGHT: (self.panel.extent * n if self.division.keep else Index.of(most)) * (n * self.right),
            SUMS: Index.of(n * self.sums),
            HALF: Index.of(n * self.outputs * self.sums),
            LINES: Index.of(n * n * self.lanes),
            C: Index.of(self.outputs * self.outputs * self.width),
        }
        return [
            *(Buffer(name, F32, size, "local") for name, size in sizes.items()),
            Buffer(ODD, I64, ONE, "local"),
            Buffer(TABLE, F32, Index.of(EVEN_ENTRIES), "pointers"),
        ]

    def _written(self, goals: Sequence[Goal], loops: Sequence[Level]) -> tuple[Stmt, ...]:
        self.nests += 1
        return written(goals, loops, f"w{self.nests}_")

    def _each_row(self, body: Sequence[Stmt]) -> Loop:
        """A loop of the body over the image tiles of the block."""
        place = tuple(Bind(axis, value) for axis, value in self.digits.items())
        return Loop(self.row, Index.of(self.begin), Index.of(self.end), "serial", (*place, *body))

    def _image(self) -> Stmt:
        """Transformed inputs: B^T d B of each tile, a vector of channels at a time."""
        n, lanes, t = self.size, self.lanes, self.transform.inputs
        chunk, lane = Axis("c0", Index.of(-(-self.depth // lanes))), Axis("c", Index.of(lanes))
        channel = Index.of(chunk) * lanes + lane
        stop = Axis("cn", Index.of(lanes + 1))
        whole = self.depth % lanes == 0
        bind = () if whole else (Bind(stop, Index.of(self.depth) - Index.of(chunk) * lanes, Index.of(lanes)),)
        level = Level(lane, "vector", ZERO, Index.of(lanes) if whole else Index.of(stop))
        i, j = Axis("i", Index.of(n)), Axis("j", Index.of(n))
        left = _guarded(self.tiled.left, self.w)

        def element(at: int) -> Scalar:
            values = dict(zip(self.w.place, self.corner, strict=True)) | self.image
            values |= {self.w.taps[0]: Index.of(at), self.w.taps[1]: Index.of(j), self.w.channel: channel}
            return flat(simplify(substitute_axes(left, values)), self.places)

        down = combined(t, [element(k) for k in range(n)])
        goals = [Goal(LINES, (Index.of(j) + k * n) * lanes + lane, x) for k, x in enumerate(down)]
        along = combined(t, [Load(LINES, ((Index.of(i) * n + k) * lanes + lane,), F32) for k in range(n)])
        slot = (Index.of(self.row) - self.begin) * self.pitch + channel
        more = [Goal(LEFT, (Index.of(i) * n + k) * self.left + slot, x) for k, x in enumerate(along)]
        body = (*bind, *self._written(goals, [Level(j), level]), *self._written(more, [Level(i), level]))
        return self._each_row([Loop(chunk, ZERO, chunk.extent, "serial", body)])

    def _filters(self, group: tuple[int, ...], at: Index) -> tuple[Stmt, ...]:
        """Transformed filters: a group of rows of G g G^T, from product `at` on."""
        key = (self.outputs, group, at, self.nests)
        if key in self.filters:
            self.nests += 1
        else:
            self.filters[key] = self._transformed(group, at)
        return self.filters[key]

    def _transformed(self, group: tuple[int, ...], at: Index) -> tuple[Stmt, ...]:
        t, source = self.transform.filters, self.places[self.tiled.right.source].buffer
        e = Axis("e", Index.of(self.depth * self.width))
        stored = self.tiled.right.dtype
        taps = [[_single(Load(source, (self._tap(i, j) + e,), stored)) for i in range(TAPS)] for j in range(TAPS)]
        columns = [combined([t[k] for k in group], column) for column in taps]
        made = [x for row in zip(*columns, strict=True) for x in combined(t, row)]
        goals = [Goal(RIGHT, (at + k) * self.right + e, x) for k, x in enumerate(made)]
        return self._written(goals, [Level(e, "vector")])

    def _tap(self, i: int, j: int) -> Index:
        """The offset of the weights of a tap, for all channels and the columns of the panel."""
        right = self.tiled.right
        taps = dict(zip(self.w.taps, (Index.of(i), Index.of(j)), strict=True))
        values = {**taps, self.w.channel: ZERO, self.tiled.lane: ZERO, **self.group}
        index = tuple(substitute(x, values) for x in right.index)
        return self.places[right.source].offset(index)

    def _products(self) -> tuple[Stmt, ...]:
        """All products of block and panel, row by row, each row transformed back along itself."""
        n = self.size
        if self.division.keep:
            k = Axis("k", Index.of(n))
            return (Loop(k, ZERO, k.extent, "serial", self._row(Index.of(k), (Index.of(self.panel) * n + k) * n)),)
        made: tuple[Stmt, ...] = ()
        for group in self.transform.groups:
            rows = (s for at, k in enumerate(group) for s in self._row(Index.of(k), Index.of(at * n)))
            made = (*made, *self._filters(group, ZERO), *rows)
        return made

    def _row(self, k: Index, right: Index) -> tuple[Stmt, ...]:
        """The products of row k, whose transformed filters begin at number `right`, transformed back along the row."""
        n, m = self.size, self.outputs
        p, begin = Axis("p", Index.of(n)), Index.of(self.first) - self.begin
        load = Load(LEFT, ((k * n + p) * self.left + (Index.of(self.row) - self.begin) * self.pitch,), F32)
        first, last, depth = Index.of(self.first), Index.of(self.last), Index.of(self.depth)
        table = RowPointer(TABLE, self.row, first, last, self.tile_rows, (), load, depth, even=True)
        tile = Tile(
            SUMS,
            Index.of(p) * self.sums + begin * self.width,
            last - first,
            TileCore(self.tile_rows, self.width),
            Pointers(TABLE, ZERO, 1, depth, even=True),
            Panel(RIGHT, (right + p) * self.right),
            ahead=self._ahead(k * n + p),
        )
        window = tile_window(self.at, self.tiles, self.rows, self.first)
        made = Loop(self.at, Index.of(self.t0), Index.of(self.t1), "serial", (*window, table, tile))
        chunk, lane, slot = self._columns()
        along = combined(self.transform.results, [Load(SUMS, (slot + i * self.sums,), F32) for i in range(n)])
        goals = [Goal(HALF, (k * m + i) * self.sums + slot, x) for i, x in enumerate(along)]
        rows = Level(self.row, "serial", Index.of(self.begin), Index.of(self.end))
        return (
            Loop(p, ZERO, p.extent, "serial", (made,)),
            *self._written(goals, [rows, Level(chunk), Level(lane, "vector")]),
        )

    def _ahead(self, number: Index) -> Ahead | None:
        """The prefetch of a part of the next panel's weights by a product, if products are a multiple of the taps."""
        per_tap, rest = divmod(self.size * self.size, TAPS * TAPS)
        if self.division.keep or rest:
            return None
        weights = self.depth * self.width  # of a tap
        begin, tiles = Index.of(self.at) - self.t0, Index.of(self.t1) - self.t0
        share = self._tap(0, 0) + TAPS * TAPS * weights + number * (weights // per_tap)
        return Ahead(self.places[self.tiled.right.source].buffer, share, begin, tiles * per_tap)

    def _columns(self) -> tuple[Axis, Axis, Index]:
        """Axes over the columns of a panel, and their offset in a matrix of sums."""
        chunk, lane = Axis("c0", Index.of(self.width // self.lanes)), Axis("c", Index.of(self.lanes))
        return chunk, lane, (Index.of(self.row) - self.begin) * self.width + Index.of(chunk) * self.lanes + lane

    def _results(self) -> Stmt:
        """A^T M A of each tile of the block in the columns of the panel, and the epilogue."""
        n, m = self.size, self.outputs
        chunk, lane, slot = self._columns()
        j = Axis("j", Index.of(m))
        down = [Load(HALF, ((Index.of(j) + k * m) * self.sums + slot,), F32) for k in range(n)]
        column = Index.of(chunk) * self.lanes + lane
        goals = [
            Goal(C, (Index.of(j) + i * m) * self.width + column, x)
            for i, x in enumerate(combined(self.transform.results, down))
        ]
        made = self._written(goals, [Level(chunk), Level(j), Level(lane, "vector")])
        return self._each_row([*made, *self._once_more(), *self._stored()])

    def _once_more(self) -> tuple[Stmt, ...]:
        """The results of a tile as direct sums, if one of them is not finite.

        A NaN or an infinity of the image reaches every result of the tile, and large numbers can overflow in the
        transforms; direct sums have them only where they belong.
        """
        m, w = self.outputs, self.w
        e, line, spot = (Axis(name, Index.of(n)) for name, n in (("z", m * m * self.width), ("da", m), ("db", m)))
        zeros = apply("mul", Load(C, (Index.of(e),), F32), const(0.0, F32))
        found = cast(apply("isnan", Reduce("sum", (e,), (zeros,), F32)), I64)
        times, again = Axis("times", Index.of(2)), Axis("again", Index.of(2))
        chunk, lane, _ = self._columns()
        column = Index.of(chunk) * self.lanes + lane
        values = self._output(line, spot) | {**self.image, self.tiled.lane: column}
        both = apply("mul", _guarded(self.tiled.left, w), _single(self.tiled.right))
        total = Reduce("sum", (*w.taps, w.channel), (both,), F32)
        goal = Goal(
            C,
            (Index.of(line) * m + spot) * self.width + column,
            flat(simplify(substitute_axes(total, values)), self.places),
        )
        loops = [Level(line), Level(spot), Level(chunk), Level(lane, "vector")]
        return (
            *self._written([Goal(ODD, ZERO, found)], []),
            Bind(times, Index.of(Loaded(ODD, (ZERO,), times.extent))),
            Loop(again, ZERO, Index.of(times), "seldom", self._written([goal], loops)),
        )

    def _stored(self) -> tuple[Stmt, ...]:
        """The epilogue of the results of one tile that are inside the image."""
        m = self.outputs
        line, spot = Axis("a", Index.of(m)), Axis("b", Index.of(m))
        ends = tuple(Axis(name, Index.of(m + 1)) for name in ("an", "bn"))
        bounds = tuple(
            Bind(end, floor_div(axis.extent - corner + (d - 1), Index.of(d)), Index.of(m))
            for end, axis, corner, d in zip(ends, self.w.place, self.corner, self.w.dilations, strict=True)
        )
        frame = Frame(self.image | self._output(line, spot), spot, ZERO, m, self.places)
        here = (C, Index.of(line) * (m * self.width))
        end = Index.of(ends[1])
        inner = epilogue(self.job, frame, self.panel, self.width, spot, end, here, prefetch=True)
        return (*bounds, Loop(line, ZERO, Index.of(ends[0]), "serial", inner))

    def _output(self, line: Axis, spot: Axis) -> dict[Axis, Index]:
        """Where in the result an output of the tile is."""
        steps = zip(self.w.place, self.corner, (line, spot), self.w.dilations, strict=True)
        return {axis: corner + Index.of(at) * d for axis, corner, at, d in steps}

    def _serial_time(self) -> Index:
        """Picoseconds of one core."""
        columns = product([a.extent for a in (*self.tiled.batch, *self.tiled.columns)])
        return self.rows * columns * (self.size * self.size * self.depth * self.target.serial.multiply_add)


def _single(x: Load) -> Scalar:
    """The value as float32."""
    return x if x.dtype == F32 else cast(x, F32)


def _guarded(left: Load, w: Windows) -> Load:
    """The load of the image with zeros where tiles extend over its ends."""
    guards = {g.index: g for g in left.guards}
    for y, tap, d in zip(w.place, w.taps, w.dilations, strict=True):
        e = next(e for e in left.index if tap in axes_of(e))
        guards.setdefault(e, Guard(Index.of(y) + Index.of(tap) * d, y.extent + (TAPS - 1) * d))
    return replace(left, guards=tuple(guards.values()), otherwise=left.otherwise or const(0.0, left.dtype))
