"""Elementwise work that transposes: read along one axis, stored along another, in blocks transposed in registers.

Without them the lanes of a vector would be loaded or stored one by one, each in a cache line of its own. A plain copy
is transposed from source to result; other work reads blocks that were transposed into a buffer of the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from onnxfuse.cost.straight import SET
from onnxfuse.cost.traffic import LINE
from onnxfuse.ir.compose import indices_of, loads, rebuild, walk
from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    Loaded,
    Symbol,
    atoms,
    axes_of,
    floor_div,
    least,
    never_below_zero,
)
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Buffer, Loop, Pack, Phase, Split, Stmt, When
from onnxfuse.ir.scalar import Const, Guard, Load, Reduce, Scalar, cast
from onnxfuse.schedule.analysis.contract import as_stored
from onnxfuse.schedule.cpu.tiles import TRANSPOSED_TYPES
from onnxfuse.schedule.nests.nest import Goal, Level
from onnxfuse.schedule.nests.subranges import signs_of, split_goals, split_points
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

SHORTEST = 8  # elements of a transposed axis, at least
OPEN = 256  # those of an axis of open extent, so that blocks are as long as others
LONGEST = 256  # elements of a source's row that are copied in one go
BLOCK = 64  # of rows that are kept in a buffer
TOGETHER = 4  # panels whose blocks are kept together, at most: what is stored side by side is as long
NEAR = 0.5  # fraction of L1 for them
SHARED = 16  # blocks that are left for tasks all the same
FARTHEST = 2**24  # elements from one step of the result to the next
TURNED = "turned"  # buffers of blocks, with a number
FAR = Index.of(2**40)  # above any index


def transposing_phase(goal: Goal, axes: Sequence[Axis], work: Index, target: Cpu) -> Phase | None:
    """The phase of elementwise work that transposes a source; None if it does not."""
    turn = _transposed_axes(goal, axes)
    if turn is None:
        return None
    lane, step = turn
    signs = signs_of([goal.value])
    points, stops = _points(lane, signs), _points(step, signs)
    if points is None or stops is None:
        return None
    steps = _pieces(goal, step, stops)
    inside = max(range(len(steps)), key=lambda i: _usual(steps[i][0]))
    (along, (here,)), others = steps[inside], [s for i, s in enumerate(steps) if i != inside]
    if any(_across(x, lane) for _, (g,) in others for x in loads(g.value)):
        return None
    copies = all(_copied(g, x, k) for x, (g,) in _pieces(here, lane, points) for k in [along])
    part = _part(_usual(along), target.lanes, LONGEST if copies else BLOCK)
    rest = [a for a in axes if a not in (lane, step)]
    some = bool(others) and along.extent.constant is None  # there may be nothing but padding: a block has it then
    count = floor_div(along.extent, Index.of(part)) + 1 if some else _count(along, part)
    block = Axis(f"{step.name}b", count)
    m = Axis("m", product([a.extent for a in (*rest, block)]))
    digits = dict(zip((*rest, block), unflatten(Index.of(m), tuple(a.extent for a in (*rest, block))), strict=True))
    outer = {a: e for a, e in digits.items() if a != block}
    k, ends = _steps(digits[block] * part, part, along)
    here = here.substituted(outer | {along: digits[block] * part + k})
    together = _together(here, lane, k, part, m.extent, target)
    blocks = _Blocks(k, part, target.panel, together, not target.masks, [])
    loops = [blocks.over(axis, g) for axis, (g,) in _pieces(here, lane, points)]
    body: list[Stmt] = [When((Guard(digits[block] * part, along.extent),), tuple(loops))] if some else [*loops]
    edges = tuple(
        s
        for number, (axis, (g,)) in enumerate(others)
        for s in _edge(g.substituted(outer), axis, lane, points, f"e{number}")
    )
    if edges and block.extent != ONE:
        edges = (When((Guard(digits[block], ONE),), edges),)
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    splits: tuple[Split, ...] = (Split(lo, hi, m.extent),)
    if len(loops) == 1 and not edges:  # blocks are divided among tasks too
        c0, c1 = Axis("c0", loops[0].end), Axis("c1", loops[0].end + 1)
        splits = (*splits, Split(c0, c1, loops[0].end))
        body = [replace(loops[0], begin=Index.of(c0), end=Index.of(c1))]
    loop = Loop(m, Index.of(lo), Index.of(hi), "serial", (*edges, *ends, *body))
    return Phase(splits, work * target.serial.transposition, tuple(blocks.buffers), (loop,))


def _transposed_axes(goal: Goal, axes: Sequence[Axis]) -> tuple[Axis, Axis] | None:
    """The contiguous axes of the result and of the transposed sources; None if there is no transposition to do."""
    lane = next((a for a in axes if coefficient(goal.offset, a) == ONE), None)
    found = list(loads(goal.value))
    looked_up = any(isinstance(a, Loaded) for x in found for e in indices_of(x) for a in atoms(e))
    reduces = any(isinstance(n, Reduce) for n in walk(goal.value))
    if lane is None or looked_up or reduces or goal.also or any(not x.index for x in found):
        return None
    across = tuple(dict.fromkeys(x for x in found if _across(x, lane)))
    step = next((a for a in axes if across and all(coefficient(x.index[0], a) == ONE for x in across)), None)
    affine = all(coefficient(x.index[0], lane) is not None and x.dtype in TRANSPOSED_TYPES for x in across)
    if step is None or not affine or not _long(lane) or not _long(step):
        return None
    return lane, step


def _across(x: Load, lane: Axis) -> bool:
    """Whether a load is strided along the result's contiguous axis."""
    return bool(x.index) and coefficient(x.index[0], lane) not in (ZERO, ONE)


def _long(axis: Axis) -> bool:
    return _usual(axis) >= SHORTEST


def _usual(axis: Axis) -> int:
    """The extent of an axis, or one that suits most where it is open."""
    return OPEN if axis.extent.constant is None else axis.extent.constant


def _count(axis: Axis, size: int) -> Index:
    """How many pieces of so many elements an axis has, the last of which may be shorter."""
    return floor_div(axis.extent + (size - 1), Index.of(size))


def _points(axis: Axis, signs: Sequence[Index]) -> tuple[Index, ...] | None:
    """As `split_points`; of an axis of open extent points at a known distance from either end, or none."""
    if axis.extent.constant is not None:
        found = split_points(axis, signs)
        return None if found is None else tuple(map(Index.of, found))
    before, behind = {0}, {0}  # elements from the begin to a point, and from a point to the end
    for e in (e for e in signs if axis in axes_of(e)):
        first = -substitute(e, {axis: ZERO})  # where e becomes nonnegative
        from_end = (axis.extent - first).constant
        if coefficient(e, axis) != ONE or (first.constant is None and from_end is None):
            return None
        if first.constant is not None:
            before.add(max(first.constant, 0))
        else:
            behind.add(max(from_end or 0, 0))
    between = axis.extent - max(before) - max(behind)
    if not all(c >= 0 and all(isinstance(a, Symbol) for a in mono) for mono, c in between.terms):  # of an empty image
        return None
    points = (*map(Index.of, sorted(before)), *(axis.extent - n for n in sorted(behind, reverse=True)))
    return points if len(points) > len((ZERO, axis.extent)) else ()


def _pieces(goal: Goal, axis: Axis, points: Sequence[Index]) -> list[tuple[Axis, list[Goal]]]:
    """The goal over each subrange of an axis, or over all of it where there are no points."""
    return split_goals([goal], axis, points) if points else [(axis, [goal])]


def _part(extent: int, lanes: int, most: int) -> int:
    """The steps of a block: the largest divisor of an extent up to `most`, in whole vectors if possible.

    An extent with small divisors only has blocks of whole vectors, the last of which is shorter.

    >>> [_part(n, 16, LONGEST) for n in (97, 224, 250, 499, 527)]
    [97, 224, 250, 256, 176]
    """
    best = max((n for n in range(1, most + 1) if extent % n == 0), key=lambda n: (n % lanes == 0, n))
    if best < lanes and extent <= LONGEST:
        return extent
    if best % lanes == 0 or 2 * best >= min(extent, most):
        return best
    return -(-extent // -(-extent // most) // lanes) * lanes


def _steps(begin: Index, part: int, along: Axis) -> tuple[Axis, tuple[Stmt, ...]]:
    """The axis of the steps of a block from `begin` on, and what finds its end where the last block is shorter."""
    if along.extent.constant is not None and along.extent.constant % part == 0:
        return Axis("k", Index.of(part)), ()
    end = Axis("kn", along.extent + 1)
    return Axis("k", Index.of(end) - begin), (Bind(end, begin + part, along.extent),)


def _together(goal: Goal, lane: Axis, step: Axis, steps: int, rows: Index, target: Cpu) -> int:
    """How many panels of blocks are kept together, for each of so many `rows`.

    Several, where lines of a block of the result push each other out of L1: more of each is stored while it is there.
    All of a line, if they fit, where the last vector of a line takes longer than others.
    """
    panel = sum(x.dtype.bytes for x in dict.fromkeys(loads(goal.value)) if _across(x, lane)) * steps * target.panel
    of_line = -(-(lane.extent.constant or 1) // target.panel)
    panels, fit = of_line * (rows.constant or SHARED * TOGETHER), int(NEAR * target.l1_bytes) // panel
    if not target.masks and of_line <= min(fit, panels // SHARED):
        return of_line
    pitch = (coefficient(goal.offset, step) or ZERO).constant
    if pitch is None or _in_one_set(pitch * goal.value.dtype.bytes, steps) <= target.l1_bytes // SET:
        return 1
    return max(1, min(TOGETHER, fit, panels // SHARED))


def _in_one_set(pitch: int, steps: int) -> int:
    """How many of so many lines that are so many bytes apart compete for the same set of L1, at most.

    >>> _in_one_set(4096, 64), _in_one_set(512, 64), _in_one_set(4100, 33), _in_one_set(12000, 64)
    (64, 8, 16, 2)
    """
    return max(Counter(at * pitch % SET // LINE for at in range(steps)).values())


def _copied(goal: Goal, lane: Axis, step: Axis) -> bool:
    """Whether a value is a plain element of a source, perhaps widened, or a constant under guards of outer axes.

    Then blocks are stored to the result directly, if its stride is not too large.
    """
    x, pitch = as_stored(goal.value), coefficient(goal.offset, step)
    if not isinstance(x, Load) or not _across(x, lane) or pitch is None:
        return False
    near = pitch.constant is None or 1 < pitch.constant < FARTHEST
    return near and (not x.guards or isinstance(x.otherwise, Const))


def _edge(goal: Goal, step: Axis, lane: Axis, points: Sequence[Index], prefix: str) -> tuple[Stmt, ...]:
    """Steps without transposition: padding."""
    return tuple(
        s
        for number, (axis, (g,)) in enumerate(_pieces(goal, lane, points))
        for s in written([g], [Level(step), Level(axis, "vector")], f"{prefix}_{number}")
    )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of `most` elements along the result, which are rows of a source, by up to `steps` steps `k` along those.

    What is computed of blocks is stored for `together` of them at a time, step by step: longer pieces of each line.
    With `lines` their elements of one step are side by side.
    """

    k: Axis
    steps: int
    most: int
    together: int
    lines: bool
    buffers: list[Buffer]

    def over(self, axis: Axis, goal: Goal) -> Loop:
        """A loop over the blocks along an axis of the result."""
        copies = _copied(goal, axis, self.k)
        width = self.most if copies else self.most * self.together
        block = Axis(f"{axis.name}b", _count(axis, width))
        end = Axis("jn", axis.extent + 1)
        begin = Index.of(block) * width
        body = self._copy(axis, goal, begin, end) if copies else self._work(axis, goal, begin, end)
        bind = Bind(end, begin + width, axis.extent)
        return Loop(block, ZERO, block.extent, "serial", (bind, *body))

    def _copy(self, axis: Axis, goal: Goal, begin: Index, end: Axis) -> tuple[Stmt, ...]:
        """A block that is transposed to the result; a constant where a guard fails."""
        load = as_stored(goal.value)
        assert isinstance(load, Load)
        at = substitute(goal.offset, {self.k: ZERO, axis: begin})
        pitch = coefficient(goal.offset, self.k)
        assert pitch is not None
        bare = Load(load.source, load.index, load.dtype)
        pack = Pack(goal.buffer, at, axis, begin, Index.of(end), self.k, bare, pitch, apart=True)
        if not load.guards:
            return (pack,)
        assert load.otherwise is not None
        levels = [Level(self.k), Level(axis, "vector", begin, Index.of(end))]
        fill = written([Goal(goal.buffer, goal.offset, cast(load.otherwise, goal.value.dtype))], levels)
        return (When(load.guards, (pack,)), *(When((g,), fill) for each in load.guards for g in _fails(each)))

    def _work(self, axis: Axis, goal: Goal, begin: Index, end: Axis) -> tuple[Stmt, ...]:
        """Blocks of the result: transposed blocks of its sources, then vectors along the result."""
        packs: list[Stmt] = []
        there: dict[Scalar, Scalar] = {}
        number, first, last = Axis("u", Index.of(self.together)), begin, Index.of(end)
        if self.together > 1:
            first = begin + Index.of(number) * self.most
            last = least(first + self.most, last)
        size = self.steps * self.most
        pitch = self.most * (self.together if self.lines else 1)
        block = first - begin if self.lines else (first - begin) * self.steps
        for load in dict.fromkeys(x for x in loads(goal.value) if _across(x, axis)):
            name = f"{TURNED}{len(there)}"
            bare = Load(load.source, load.index, load.dtype)
            pack = Pack(name, block, axis, first, last, self.k, bare, Index.of(pitch), apart=self.lines)
            packs.append(When(load.guards, (pack,)) if load.guards else pack)
            at = block + Index.of(self.k) * pitch + axis - first
            there[load] = Load(name, (at,), load.dtype, load.guards, load.otherwise)
            if name not in {b.name for b in self.buffers}:
                self.buffers.append(Buffer(name, load.dtype, Index.of(size * self.together), "local"))
        value = rebuild(goal.value, there.get, lambda i: i)
        levels = [
            Level(self.k),
            Level(axis, "vector", begin if self.lines else first, Index.of(end) if self.lines else last),
        ]
        if self.together > 1:
            count = floor_div(Index.of(end) - begin + (self.most - 1), Index.of(self.most))
            packs = [Loop(number, ZERO, count, "serial", tuple(packs))]
            if not self.lines:
                levels.insert(1, Level(number, end=count))
        return (*packs, *written([Goal(goal.buffer, goal.offset, value)], levels))


def _fails(guard: Guard) -> tuple[Guard, ...]:
    """Guards, one of which holds where this one fails."""
    below = () if never_below_zero(guard.index) else (Guard(-guard.index - 1, FAR),)
    return (*below, Guard(guard.index - guard.extent, FAR))
