"""Copies whose source runs along one axis and whose result along another: blocks of rows, turned in registers.

Lanes of a vector would be loaded or stored one by one, each in a line of memory of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.config import Target
from onnxfuse.ir.compose import indices_of, loads
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, atoms, axes_of
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Pack, Phase, Split, Stmt, When
from onnxfuse.ir.scalar import Const, Load, const
from onnxfuse.schedule.nest import Goal, Level
from onnxfuse.schedule.pieces import cut, cut_at, signs_of
from onnxfuse.schedule.writer import written

SHORTEST = 8  # elements of an axis that is worth it
LONGEST = 256  # elements of a source's row that are copied in one go
DEARER = 4  # times the work of a copy that turns nothing
FARTHEST = 2**24  # elements from one step of the result to the next


def turned(goal: Goal, axes: Sequence[Axis], work: Index, target: Target) -> Phase | None:
    """The phase of a copy that turns its source, or None where it is something else."""
    lane = next((a for a in axes if coefficient(goal.offset, a) == ONE), None)
    found = list(loads(goal.value))
    looked_up = any(isinstance(a, Loaded) for x in found for e in indices_of(x) for a in atoms(e))
    if lane is None or not found or looked_up or goal.also or any(x.dtype != F32 or not x.index for x in found):
        return None
    step = next((a for a in axes if all(coefficient(x.index[0], a) == ONE for x in found)), None)
    pitch = coefficient(goal.offset, step) if step is not None else None
    if step is None or pitch is None or not _long(lane) or not _long(step) or pitch.constant not in range(2, FARTHEST):
        return None
    signs = signs_of([goal.value])
    if any(axes_of(e) - {lane} for e in signs):
        inside = _inside(goal, step, signs) if all(lane not in axes_of(e) for e in signs) else None
        rest = [a for a in axes if a not in (lane, step)]
        return _turned_inside(goal, inside, rest, (lane, step), work, target) if inside is not None else None
    points = cut_at(lane, signs)
    if points is None:
        return None
    part = _part(step.extent.constant or 1, target.lanes)
    rest = [a for a in axes if a not in (lane, step)]
    block, k = Axis(f"{step.name}b", Index.of((step.extent.constant or 1) // part)), Axis("k", Index.of(part))
    m = Axis("m", product([a.extent for a in (*rest, block)]))
    digits = dict(zip((*rest, block), unflatten(Index.of(m), tuple(a.extent for a in (*rest, block))), strict=True))
    here = goal.substituted({a: e for a, e in digits.items() if a != block} | {step: digits[block] * part + k})
    body: list[Loop] = []
    for axis, goals in cut([here], lane, points):
        load = goals[0].value
        if not isinstance(load, Load) or load.guards:
            return None
        body.append(_blocks(axis, goals[0], load, k, pitch.constant or 0, target.panel))
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    splits: tuple[Split, ...] = (Split(lo, hi, m.extent),)
    if len(body) == 1:  # blocks are divided among tasks too
        c0, c1 = Axis("c0", body[0].end), Axis("c1", body[0].end + 1)
        splits = (*splits, Split(c0, c1, body[0].end))
        body = [replace(body[0], begin=Index.of(c0), end=Index.of(c1))]
    loop = Loop(m, Index.of(lo), Index.of(hi), "serial", tuple(body))
    return Phase(splits, work * DEARER, (), (loop,))


Piece = tuple[Axis, Goal, Load]  # of the axis that the source runs along: what is stored, and where it is read


def _inside(goal: Goal, step: Axis, signs: Sequence[Index]) -> Piece | None:
    """The one piece of an axis in which there is something to turn; None where there are several, or no padding."""
    points = cut_at(step, signs)
    found = [(axis, g) for axis, (g,) in cut([goal], step, points or ()) if not isinstance(g.value, Const)]
    if len(found) != 1 or not isinstance(found[0][1].value, Load):
        return None
    ((axis, here),) = found
    load = here.value
    fits = isinstance(load, Load) and isinstance(load.otherwise, Const | None) and axis.extent.constant is not None
    return (axis, here, load) if fits and isinstance(load, Load) else None


def _turned_inside(
    goal: Goal, piece: Piece, rest: Sequence[Axis], turns: tuple[Axis, Axis], work: Index, target: Target
) -> Phase:
    """Lines of padding, and over them what is turned where there is some: by lines and blocks of lanes."""
    (lane, step), (axis, here, load) = turns, piece
    m = Axis("m", product([a.extent for a in rest]))
    digits = dict(zip(rest, unflatten(Index.of(m), tuple(a.extent for a in rest)), strict=True))
    blocks = Axis(f"{lane.name}b", Index.of(-(-(lane.extent.constant or 0) // target.panel)))
    begin, end = Index.of(blocks) * target.panel, Axis("jn", lane.extent + 1)
    nothing = load.otherwise if load.otherwise is not None else const(0, load.dtype)
    padding = goal.substituted(digits)
    levels = [Level(step), Level(lane, "vector", begin, Index.of(end))]
    cleared = written([Goal(goal.buffer, padding.offset, nothing)], levels)
    part = _part(axis.extent.constant or 1, target.lanes)
    block, k = Axis(f"{axis.name}b", Index.of((axis.extent.constant or 1) // part)), Axis("k", Index.of(part))
    moved = here.substituted({**digits, axis: Index.of(block) * part + k})
    read = moved.value
    assert isinstance(read, Load)
    pitch = coefficient(goal.offset, step)
    at = substitute(moved.offset, {k: ZERO, lane: begin})
    bare = Load(read.source, read.index, read.dtype)
    pack = Pack(goal.buffer, at, lane, begin, Index.of(end), k, bare, (pitch.constant or 0) if pitch else 0, apart=True)
    turning: Stmt = Loop(block, ZERO, block.extent, "serial", (pack,))
    if read.guards:
        turning = When(read.guards, (turning,))
    r0, r1, c0, c1 = (Axis(n, a.extent + 1) for n, a in (("r0", m), ("r1", m), ("c0", blocks), ("c1", blocks)))
    bind = Bind(end, begin + target.panel, lane.extent)
    inner = Loop(blocks, Index.of(c0), Index.of(c1), "serial", (bind, *cleared, turning))
    loop = Loop(m, Index.of(r0), Index.of(r1), "serial", (inner,))
    return Phase((Split(r0, r1, m.extent), Split(c0, c1, blocks.extent)), work * DEARER, (), (loop,))


def _long(axis: Axis) -> bool:
    return (axis.extent.constant or 0) >= SHORTEST


def _part(extent: int, lanes: int) -> int:
    """The largest whole part of an axis that is not too long, in whole vectors where that is possible."""
    best = max((n for n in range(1, LONGEST + 1) if extent % n == 0), key=lambda n: (n % lanes == 0, n))
    return best if best >= lanes else extent


def _blocks(axis: Axis, goal: Goal, load: Load, k: Axis, pitch: int, most: int) -> Loop:
    """A loop over blocks of `most` places along an axis of the result, which are so many rows of the source."""
    block = Axis(f"{axis.name}b", Index.of(-(-(axis.extent.constant or 0) // most)))
    end = Axis("jn", axis.extent + 1)
    begin = Index.of(block) * most
    at = substitute(goal.offset, {k: ZERO, axis: begin})
    pack = Pack(goal.buffer, at, axis, begin, Index.of(end), k, load, pitch, apart=True)
    bind = Bind(end, begin + most, axis.extent)
    return Loop(block, ZERO, block.extent, "serial", (bind, pack))
