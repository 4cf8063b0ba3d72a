"""Transposing phases: tiles read along one axis go through shared memory and are stored along the other.

A block reads 32 x 32 elements as they lie, and goes through them in the other order to store what is made of them.
Lines in shared memory are one element longer, so that neither way meets a bank twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnxfuse.ir.compose import loads, rebuild, substitute_axes
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Phase, Store
from onnxfuse.ir.launch import Launch, Sync
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.gpu.tiles import padded, ragged
from onnxfuse.schedule.gpu.writer import ThreadWriter
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.nest import Level
from onnxfuse.target import Gpu

SIDE = 32  # of a tile
THREADS = 256
PITCH = SIDE + 1
MOST = 2  # values that are transposed


def transposing_phase(t: AlignedJobs, places: Mapping[str, Place], target: Gpu) -> Phase | None:
    """The phase of a value that turns what it reads; None where it turns nothing that is large enough for a tile."""
    nest = t.jobs[0].nest
    if len(t.jobs) != 1 or nest.name not in places:
        return None
    place = places[nest.name]
    offset, value = place.offset(nest.dims), flat(nest.value, places)
    across = next((a for a in nest.axes if coefficient(offset, a) == ONE and _long(a)), None)
    found = {x: along for x in loads(value) if x.index and (along := _along(x, across, nest.axes)) is not None}
    if across is None or not 0 < len(found) <= MOST or len({*found.values()}) > 1:
        return None
    along = next(iter(found.values()))
    tiles, size = _tiles(found)

    def element(outer: Axis, inner: Axis) -> tuple[dict[Axis, Index], list[Guard]]:
        """The place of a thread's element in the whole, and where that is inside."""
        here = {a: Index.of(_tile(a)) * SIDE + x for a, x in ((along, outer), (across, inner))}
        return here, [Guard(e, a.extent) for a, e in here.items() if ragged(a.extent, SIDE)]

    e, f = Axis("e", Index.of(SIDE * SIDE)), Axis("f", Index.of(SIDE * SIDE))
    i, j = (Axis(name, Index.of(SIDE)) for name in ("i", "j"))
    digits, inside = element(i, j)

    def at(x: Index, fast: Axis, slow: Axis) -> dict[Axis, Index]:
        return {fast: modulo(x, Index.of(SIDE)), slow: floor_div(x, Index.of(SIDE))}

    reading, storing = at(Index.of(e), i, j), at(Index.of(f), j, i)
    read = ThreadWriter([], at=[[]])

    def fill() -> None:
        for x, b in tiles.items():
            mine = substitute_axes(substitute_axes(x, digits), reading)
            read.store(Store(b.name, substitute(Index.of(j) * PITCH + i, reading), mine))

    read.loop([Level(e, "thread")], [_put(g, reading) for g in inside], fill)
    made = ThreadWriter([], at=[[]])

    def leaf(x: Scalar) -> Scalar | None:
        if isinstance(x, Load) and x in tiles:
            return Load(tiles[x].name, (Index.of(j) * PITCH + i,), x.dtype)
        return None

    def finish() -> None:
        whole = substitute_axes(substitute_axes(rebuild(value, leaf, lambda x: x), digits), storing)
        result = made.value(whole)
        made.store(Store(place.buffer, made.index(substitute(substitute(offset, digits), storing)), result))

    made.loop([Level(f, "thread")], [_put(g, storing) for g in inside], finish)
    over = (*(a for a in nest.axes if a not in (along, across)), _tile(along), _tile(across))
    extents = tuple(a.extent for a in over)
    block = Axis("block", product(extents))
    where = [Bind(a, x) for a, x in zip(over, unflatten(Index.of(block), extents), strict=True)]
    body = (*where, *read.at[0], Sync("block"), *made.at[0], Sync("block"))
    grid = greatest(ONE, least(block.extent, Index.of(target.blocks)))
    launch = Launch(grid, Index.of(THREADS), Index.of(size))
    return Phase((), ONE, tuple(tiles.values()), (Loop(block, ZERO, block.extent, "block", body),), launch=launch)


def _tiles(found: Iterable[Load]) -> tuple[dict[Load, Buffer], int]:
    """A buffer in shared memory for each value that is transposed, and the bytes of all."""
    tiles: dict[Load, Buffer] = {}
    size = 0
    for x in found:
        tiles[x] = Buffer(f"tile_{len(tiles)}", x.dtype, Index.of(SIDE * PITCH), "shared", size)
        size += padded(SIDE * PITCH * x.dtype.bytes)
    return tiles, size


def _long(a: Axis) -> bool:
    return a.extent.constant is None or a.extent.constant >= SIDE


def _along(x: Load, across: Axis | None, axes: tuple[Axis, ...]) -> Axis | None:
    """The axis that a load reads along, if the load is transposed: it is another one than is stored along."""
    if across is None or x.guards or coefficient(x.index[0], across) in (None, ZERO, ONE):
        return None
    return next((a for a in axes if a != across and coefficient(x.index[0], a) == ONE and _long(a)), None)


def _tile(a: Axis) -> Axis:
    """Which tile of an axis a block has."""
    return Axis(f"tile_of_{a.name}", floor_div(a.extent + (SIDE - 1), Index.of(SIDE)))


def _put(g: Guard, digits: Mapping[Axis, Index]) -> Guard:
    return Guard(substitute(g.index, digits), g.extent)
