"""Convolutions with lanes over the pixels of lines that lie side by side: rows of a tile are filters.

Neither image is turned. Each task takes a block of pixels: what the taps of all channels read of it is copied, one
line for each step of the sum, and every panel of filters goes over it.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.config import Target
from onnxfuse.ir.compose import rebuild, substitute_axes
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.indexing import coefficient, flatten, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Phase, Split, Stmt, Store, Tile
from onnxfuse.ir.layout import Layout
from onnxfuse.ir.scalar import Const, Load, Scalar
from onnxfuse.schedule.contract import ACC, Contraction, panel_layout
from onnxfuse.schedule.memory import Nest, Place, flat
from onnxfuse.schedule.nest import Goal, Level, walks_as_one
from onnxfuse.schedule.writer import written

FILTERS = 12  # of a panel at most: whole tiles of it on most machines, which share the weights
SUMS, COLUMNS = "acc", "columns"  # buffers: a tile, and the copied block
WIDEST = 256  # pixels of a block at most
SKEW = 16  # elements by which the lines of a block are longer than their pixels, which are whole panels
KEPT = 0.6  # share of L1 within which the pixels of a panel stay there for all filters
STEP, COPY = 12, 60  # picoseconds of a multiply-add of one pixel, roughly, and of copying it


@dataclass(frozen=True, slots=True)
class Pixels:
    """A contraction whose rows are the pixels of `images`, in lines, and whose columns are filters.

    `left` is what a step of the sum reads of a pixel; the buffer `right` are panels of `width` filters.
    """

    left: Scalar
    right: str
    images: tuple[Axis, ...]
    line: Axis
    x: Axis
    columns: tuple[Axis, ...]
    ranges: tuple[Axis, ...]
    finish: Scalar
    width: int

    @property
    def depth(self) -> int:
        """Steps of the sum."""
        return product([r.extent for r in self.ranges]).constant or 0


def filters_layout(c: Contraction, shape: tuple[Index, ...]) -> tuple[Layout, int] | None:
    """The layout that stores constant weights as panels of filters, and how many filters a panel has."""
    count = product([a.extent for a in c.columns]).constant
    if count is None or any(r.extent.constant is None for r in c.ranges):
        return None
    width = -(-count // -(-count // FILTERS))
    layout = panel_layout(c, shape, width, 1)
    return (layout, width) if layout is not None else None


def pixels_of(c: Contraction, left: Scalar, width: int, offset: Index) -> Pixels | None:
    """The contraction with lanes over pixels, stored at an offset; None where no line of pixels lies side by side."""
    x = next((a for a in c.rows if coefficient(offset, a) == ONE), None)
    if x is None or c.batch or not isinstance(c.right, Load):
        return None
    line = next((a for a in c.rows if a is not x and walks_as_one(offset, a, x)), Axis("line", ONE))
    images = tuple(a for a in c.rows if a not in (x, line))
    return Pixels(left, c.right.source, images, line, x, c.columns, c.ranges, c.finish, width)


@dataclass(frozen=True, slots=True)
class _Block:
    """Pixels of a task at a time: some whole lines, or a part of one line."""

    lines: int
    wide: Index  # pixels of a line in the block
    pitch: int  # from one step of the sum to the next

    @property
    def whole(self) -> bool:
        return self.lines > 1


def _block(p: Pixels, target: Target) -> _Block:
    """As many pixels as fit, with few columns of panels left over."""
    panel, width, height = target.panel, p.x.extent.constant, p.line.extent.constant
    most = max(panel, min(WIDEST, int(target.l1_bytes * KEPT) // (4 * p.depth)) // panel * panel)
    if width is None or width > most:
        count = -(-width // most) if width is not None else 1
        part = most if width is None else -(-width // count // panel) * panel
        return _Block(1, Index.of(part), part + SKEW)
    high = max(1, min(most // width, height if height is not None else most))

    def left_over(lines: int) -> tuple[float, int]:
        pixels = lines * width
        more = -(-height // lines) * lines / height if height else 1.0
        return round(-(-pixels // panel) * panel / pixels * more, 2), -lines

    lines = min(range(1, high + 1), key=left_over)
    return _Block(lines, Index.of(width), -(-lines * width // panel) * panel + SKEW)


@dataclass(frozen=True, slots=True)
class _Window:
    """Where a block is: its first line and pixel, the ends of both, and how many pixels it has."""

    block: _Block
    y0: Axis
    y1: Axis
    x0: Axis
    x1: Axis
    count: Axis
    shared: dict[Axis, Index]

    def pixel(self, p: Pixels, at: Index) -> dict[Axis, Index]:
        """The axes of the pixel `at` of the block."""
        if not self.block.whole:
            return self.shared | {p.line: Index.of(self.y0), p.x: Index.of(self.x0) + at}
        line, x = unflatten(at, (p.line.extent, p.x.extent))
        return self.shared | {p.line: Index.of(self.y0) + line, p.x: x}


def pixel_phase(nest: Nest, p: Pixels, places: dict[str, Place], target: Target) -> Phase:
    """The phase of a contraction with lanes over pixels."""
    block = _block(p, target)
    ups = floor_div(p.line.extent + (block.lines - 1), Index.of(block.lines))
    parts = floor_div(p.x.extent + block.wide - 1, block.wide)
    extents = (*(a.extent for a in p.images), ups, parts)
    q = Axis("q", product(list(extents)))
    *outer, up, part = unflatten(Index.of(q), extents)
    y0, x0 = Axis("y0", p.line.extent), Axis("x0", p.x.extent)
    y1, x1 = Axis("y1", p.line.extent + 1), Axis("x1", p.x.extent + 1)
    count = Axis("n", Index.of(block.pitch))
    w = _Window(block, y0, y1, x0, x1, count, dict(zip(p.images, outer, strict=True)))
    binds = (
        Bind(y0, up * block.lines),
        Bind(y1, Index.of(y0) + block.lines, p.line.extent),
        Bind(x0, part * block.wide),
        Bind(x1, Index.of(x0) + block.wide, p.x.extent),
        Bind(count, (Index.of(y1) - y0) * p.x.extent if block.whole else Index.of(x1) - x0),
    )
    filters = product([a.extent for a in p.columns])
    tiles = floor_div(filters + (p.width - 1), Index.of(p.width))
    t, t0, t1 = Axis("t", tiles), Axis("t0", tiles), Axis("t1", tiles + 1)
    b0, b1 = Axis("b0", q.extent), Axis("b1", q.extent + 1)
    panel = Axis("p", Index.of((block.pitch - SKEW) // target.panel))
    panels = Axis("pn", panel.extent + 1)
    inner = _tiles(nest, p, w, t, panel, places, target)
    loops = [(t, Index.of(t0), Index.of(t1)), (panel, ZERO, Index.of(panels))]
    if p.depth * target.panel * F32.bytes <= target.l1_bytes * KEPT:
        loops.reverse()
    for axis, begin, end in reversed(loops):
        inner = (Loop(axis, begin, end, "serial", inner),)
    used = Bind(panels, floor_div(Index.of(count) + (target.panel - 1), Index.of(target.panel)), panel.extent)
    body = Loop(q, Index.of(b0), Index.of(b1), "serial", (*binds, used, *_copied(p, w, places), *inner))
    size = Index.of(p.depth * block.pitch + target.panel)
    at = Axis("z", size)
    # Behind the pixels of a block stands what stood there before: numbers, at which multiplication is not slow.
    cleared = Loop(at, ZERO, size, "vector", (Store(COLUMNS, Index.of(at), Const(0.0, F32)),))
    buffers = (
        Buffer(COLUMNS, F32, size, "local"),
        Buffer(SUMS, F32, Index.of(target.panel * target.rows), "local"),
    )
    work = product([a.extent for a in (*p.images, p.line, p.x)]) * p.depth * (filters * STEP + COPY)
    return Phase((Split(b0, b1, q.extent), Split(t0, t1, tiles)), work, buffers, (cleared, body))


def _copied(p: Pixels, w: _Window, places: dict[str, Place]) -> tuple[Stmt, ...]:
    """What each step of the sum reads of the pixels of a block, line by line."""
    step = flatten(tuple(map(Index.of, p.ranges)), tuple(r.extent for r in p.ranges))
    line = (Index.of(p.line) - w.y0) * p.x.extent if w.block.whole else ZERO
    value = flat(substitute_axes(p.left, w.shared), places)
    goal = Goal(COLUMNS, step * w.block.pitch + line + p.x - w.x0, value)
    lines = Level(p.line, "serial", Index.of(w.y0), Index.of(w.y1))
    return written([goal], [*map(Level, p.ranges), lines, Level(p.x, "vector", Index.of(w.x0), Index.of(w.x1))])


def _tiles(
    nest: Nest, p: Pixels, w: _Window, t: Axis, panel: Axis, places: dict[str, Place], target: Target
) -> tuple[Stmt, ...]:
    """One panel of filters over one panel of pixels, tile by tile."""
    stop = Axis("jn", Index.of(target.panel + 1))
    body: list[Stmt] = [Bind(stop, Index.of(w.count) - Index.of(panel) * target.panel, Index.of(target.panel))]
    tall = -(-p.width // -(-p.width // target.rows))
    for first in range(0, p.width, tall):
        rows = min(tall, p.width - first)
        a_at = Index.of(t) * (p.depth * p.width) + first
        tile = Tile(
            SUMS, ZERO, Index.of(rows), tall, "parts", places[p.right].buffer, a_at, 1, Index.of(p.depth), COLUMNS,
            Index.of(panel) * target.panel, target.panel, pitches=(p.width, w.block.pitch),
        )  # fmt: skip
        body += [tile, *_finished(nest, p, w, t, panel, stop, first, rows, places, target)]
    return tuple(body)


def _finished(
    nest: Nest,
    p: Pixels,
    w: _Window,
    t: Axis,
    panel: Axis,
    stop: Axis,
    first: int,
    rows: int,
    places: dict[str, Place],
    target: Target,
) -> tuple[Stmt, ...]:
    """What is done with the sums of a tile, of which the first row is filter `first` of its panel."""
    row, lane = Axis("i", Index.of(rows)), Axis("j", Index.of(target.panel))
    sums = Load(SUMS, (Index.of(row) * target.panel + lane,), F32)
    filters, begin = product([a.extent for a in p.columns]), Index.of(t) * p.width + first
    values = w.pixel(p, Index.of(panel) * target.panel + lane)
    values |= dict(zip(p.columns, unflatten(begin + row, tuple(a.extent for a in p.columns)), strict=True))
    value = rebuild(p.finish, lambda n: sums if isinstance(n, Load) and n.source == ACC else None, lambda i: i)
    here = places | {SUMS: Place(SUMS, F32, lambda i: i[0])}
    place = places[nest.name]
    offset = place.offset(tuple(substitute(e, values) for e in nest.dims))
    goal = Goal(place.buffer, offset, flat(substitute_axes(value, values), here))
    end = Index.of(rows)
    bind: tuple[Stmt, ...] = ()
    if (filters.constant or 1) % p.width:
        last = Axis(f"rows{first}", Index.of(rows + 1))
        end, bind = Index.of(last), (Bind(last, filters - begin, Index.of(rows)),)
    levels = [Level(row, "serial", ZERO, end), Level(lane, "vector", ZERO, Index.of(stop))]
    return (*bind, *written([goal], levels, f"t{first}"))
