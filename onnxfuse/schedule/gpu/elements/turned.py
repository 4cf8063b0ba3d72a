"""Elementwise phases that read along another axis than they store along, whatever they compute of several elements.

A block has 32 x 32 results. Its threads compute some side by side as they are read, in wide accesses, so that what else
a result takes (places and weights of an enlarged image) is looked up once for all of them. Results go through shared
memory and are stored side by side as they lie; lines there are a few bytes longer, so that neither way meets a bank
often.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, Axis, Index, divides, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Phase, Stmt, Store, When
from onnxfuse.ir.launch import ALIGNED, Launch, Sync
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.builders import axis, loop, wide
from onnxfuse.schedule.gpu.choices import WIDTHS, aligned
from onnxfuse.schedule.gpu.elements.flat import Elements, elements_of
from onnxfuse.schedule.gpu.tiles import ragged
from onnxfuse.schedule.gpu.writer import ThreadWriter, resolved
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.nest import Level
from onnxfuse.target import Gpu

SIDE = 32  # of a tile
APART = 4  # bytes that lines are longer
LEAST = 4  # elements that are read at once
SHORTEST = 16  # line of results that is worth a tile


def turned_phase(t: AlignedJobs, places: Mapping[str, Place], types: Mapping[str, DType], target: Gpu) -> Phase | None:
    """The phase of one value; None where it reads along the axis that it stores along, or not in wide accesses."""
    found = elements_of(t, places)
    along = found.read_along()
    if len(t.jobs) != 1 or along is None or t.jobs[0].nest.name not in places:
        return None
    if (found.axes[-1].extent.constant or 0) < SHORTEST:
        return None
    for width in (w for w in WIDTHS if w >= LEAST):
        if any(divides(Index.of(width), e) is None for e in (along.extent, *found.begins(along))):
            continue
        made = _Turned(found, places, along, width).phase(target)
        if aligned(made, types):
            return made
    return None


@dataclass(frozen=True, slots=True)
class _Turned:
    """One value, computed `width` elements of the axis `along` at a time."""

    elements: Elements
    places: Mapping[str, Place]
    along: Axis
    width: int

    @property
    def place(self) -> Place:
        """Where results lie."""
        return self.places[self.elements.last.nest.name]

    @property
    def across(self) -> Axis:
        """The axis that results lie along."""
        return self.elements.axes[-1]

    @property
    def pitch(self) -> int:
        """From one line of results to the next."""
        return SIDE + max(APART // self.place.dtype.bytes, 1)

    def phase(self, target: Gpu) -> Phase:
        """The phase."""
        tiles = {a: axis(f"tile_of_{a.name}", floor_div(a.extent + (SIDE - 1), Index.of(SIDE))) for a in self.sides}
        over = tuple(tiles.get(a, a) for a in self.elements.axes)
        extents = tuple(a.extent for a in over)
        block = axis("block", product(extents))
        where = [Bind(a, e) for a, e in zip(over, unflatten(Index.of(block), extents), strict=True)]
        first = {a: Index.of(tile) * SIDE for a, tile in tiles.items()}
        body = (*where, self.computed(first), Sync("block"), self.stored(first), Sync("block"))
        size = SIDE * self.pitch
        buffers = (
            Buffer("results", self.place.dtype, Index.of(size), "shared", 0),
            Buffer("line", self.place.dtype, Index.of(self.stored_width), "register"),
        )
        grid = greatest(ONE, least(block.extent, Index.of(target.blocks)))
        threads = Index.of(SIDE * SIDE // self.width)
        launch = Launch(grid, threads, Index.of(size * self.place.dtype.bytes))
        return Phase((), ONE, buffers, (loop(block, "block", *body),), launch=launch)

    @property
    def sides(self) -> tuple[Axis, Axis]:
        """The axes of a tile."""
        return self.along, self.across

    def inside(self, here: Mapping[Axis, Index]) -> tuple[Guard, ...]:
        """Whether a place is inside, where tiles may not be full."""
        return tuple(Guard(here[a], a.extent) for a in self.sides if ragged(a.extent, SIDE))

    def computed(self, first: Mapping[Axis, Index]) -> Stmt:
        """Results of a tile go to shared memory: neighbouring threads are at neighbours of what is read."""
        e, v = axis("e", SIDE * SIDE // self.width), axis("v", self.width)
        pieces = Index.of(SIDE // self.width)
        i, j = modulo(Index.of(e), pieces) * self.width, floor_div(Index.of(e), pieces)
        begin = {self.along: first[self.along] + i, self.across: first[self.across] + j}
        digits = {**begin, self.along: begin[self.along] + v}
        whole = digits | {a: substitute(x, digits) for a, x in self.elements.values.items()}

        def written(value: Scalar) -> tuple[Stmt, ...]:
            writer = ThreadWriter([], at=[[]])

            def fill() -> None:
                made = writer.value(resolved(substitute_axes(value, whole), lambda _: None, self.places))
                writer.store(Store("results", (i + v) * self.pitch + j, made))

            writer.loop([Level(v, "vector")], (), fill)
            return tuple(writer.at[0])

        body: tuple[Stmt, ...] = tuple(
            When((Guard(substitute(p.guard.index, begin), p.guard.extent),), written(p.value))
            for p in self.elements.pieces
        )
        body = body or written(self.elements.last.nest.value)
        guards = self.inside(begin)
        return loop(e, "thread", *((When(guards, body),) if guards else body))

    @property
    def stored_width(self) -> int:
        """Results that are stored at once."""
        most = ALIGNED // self.place.dtype.bytes
        return next(w for w in WIDTHS if w <= most and divides(Index.of(w), self.across.extent) is not None)

    def stored(self, first: Mapping[Axis, Index]) -> Stmt:
        """Results of a tile go where they lie: neighbouring threads are at neighbours of that."""
        width = self.stored_width
        f, u, v = axis("f", SIDE * SIDE // width), axis("u", width), axis("v", width)
        pieces = Index.of(SIDE // width)
        j, i = modulo(Index.of(f), pieces) * width, floor_div(Index.of(f), pieces)
        begin = {self.along: first[self.along] + i, self.across: first[self.across] + j}
        digits = {**begin, self.across: begin[self.across] + v}
        digits |= {a: substitute(x, digits) for a, x in self.elements.values.items()}
        dims = tuple(substitute(x, digits) for x in self.elements.last.nest.dims)
        dtype = self.place.dtype
        read = Store("line", Index.of(u), Load("results", (i * self.pitch + j + u,), dtype))
        put = Store(self.place.buffer, self.place.offset(dims), Load("line", (Index.of(v),), dtype))
        body = (loop(u, "unroll", read), wide(v, put))
        guards = self.inside(begin)
        return loop(f, "thread", *((When(guards, body),) if guards else body))
