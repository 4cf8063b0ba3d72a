"""Phases of jobs that all run over the same axes: elementwise work, copies, reductions that keep a contiguous axis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnxfuse.ir.compose import inside, rebuild, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, greatest, least
from onnxfuse.ir.indexing import WIDEST, coefficient, grouped, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt
from onnxfuse.ir.lanes import INTERLEAVED, cutting, masked, piecewise
from onnxfuse.ir.scalar import Guard, Load, Reduce, Scalar
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.transpose import transposing_phase
from onnxfuse.schedule.cpu.windows import unroll_and_jam
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.edges import unmasked_points
from onnxfuse.schedule.nests.frame import Frame, flat_in, goal_of, serial_time
from onnxfuse.schedule.nests.nest import (
    RECORDS,
    Goal,
    Level,
    free_loops,
    fused_axes,
    indices_to_fuse,
    offsets_of,
    order_of,
    steps_of,
    strided,
    walks_as_one,
)
from onnxfuse.schedule.nests.subranges import signs_of, split_goals, split_points
from onnxfuse.schedule.nests.writer import written
from onnxfuse.target import Cpu

NARROW = 4  # vectors of a strip, at least
STRIP = 16 << 10  # bytes of a strip's lines at most: half of a small L1; 24 KB in one of 48 KB take 1.4 times as long
SCARCE = 64  # rows that are too few for all cores of a large machine
MASKED = 6  # vectors of a line below which masks are faster than loops of their own for padding


def flat_phase(t: AlignedJobs, places: dict[str, Place], kept: set[str], target: Cpu) -> Phase:
    """The phase of jobs over the same axes: axes are fused where all accesses allow it, the best one is vectorised."""
    frame = Frame({}, None, ZERO, 1, places)
    goals = _goals(t, frame, kept)
    order = tuple(order_of(t.shared, goals[-1].offset))
    goals = _over_pixels(goals, order, target.lanes)
    axes, values = fused_axes(order, [e for g in goals for e in indices_to_fuse(g)])
    goals = [g.substituted(values) for g in goals]
    copy = transposing_phase(goals[0], axes, serial_time(t, target.serial), target) if len(goals) == 1 else None
    if copy is not None:
        return copy
    signs = signs_of(g.value for g in goals)
    harmless = {a for a in axes if split_points(a, signs) is not None or all(_in_masks(g, a) for g in goals)}
    loops = free_loops(goals[-1], axes, harmless)
    loops.sort(key=lambda level: level.kind == "vector" or not _by_blocks(goals[-1], level.axis))
    loops = _behind_records(goals, _as_read(goals, loops))
    vector = loops[-1] if loops and loops[-1].kind == "vector" else None
    record = _record(goals, loops)
    if record is not None:
        goals = [goals[0].substituted({record: Index.of(k)}) for k in range(record.extent.constant or 0)]
        loops = [level for level in loops if level.axis != record]
    points = split_points(vector.axis, signs) if vector is not None and len(loops) > 1 else None
    window, strip = _window(goals, loops, points, target) if vector is not None else (None, None)
    rows = [level.axis for level in loops if level is not vector and (window is None or level.axis != window[0])]
    m = Axis("m", product([a.extent for a in rows]))
    digits = dict(zip(rows, unflatten(Index.of(m), tuple(a.extent for a in rows)), strict=True))
    if window is not None:
        return _window_phase(serial_time(t, target.serial), frame, window[1], m, digits, strip)
    goals = [g.substituted(digits) for g in goals]
    work = serial_time(t, target.serial)
    if vector is not None and record is None:
        lanes = sum(strided(vector.axis, offsets_of(g.value), [g.offset]) for g in goals)
        work = work + product([a.extent for a in axes]) * target.serial.scalar_element * lanes
    if vector is not None and points is not None and len(points) > 2 and not _under_masks(goals, vector.axis, target):
        return _phase_in_subranges(
            work, frame, split_goals(goals, vector.axis, points), m, interleaved=record is not None
        )
    around = _around_masks(goals, loops, target) if record is None and points is None else None
    if vector is not None and around is not None:
        return _phase_around_masks(work, frame, split_goals(goals, vector.axis, around), m, vector.axis, target.lanes)
    over = [*([Level(m)] if rows else []), *([vector] if vector is not None else [])]
    return _phase_in_tasks(work, frame, goals, over, target.lanes, interleaved=record is not None)


def _over_pixels(goals: list[Goal], order: tuple[Axis, ...], lanes: int) -> list[Goal]:
    """Goals whose guards on a pixel of a line count elements, where a pixel has fewer channels than a vector has lanes.

    A pixel is inside an image with all its channels or with none: a line is copied without a look at its pixels. Goals
    stay as they are where pixels and channels cannot be fused into one axis all the same.
    """
    if len(order) < 2:
        return goals
    pixel, channel = order[-2:]
    count = channel.extent.constant
    if count is None or not 1 < count < lanes:
        return goals

    def elements(g: Guard) -> Guard:
        used = axes_of(g.index)
        counted = pixel in used and channel not in used | axes_of(g.extent) and pixel not in axes_of(g.extent)
        return Guard(g.index * count + channel, g.extent * count) if counted else g

    def counted(n: Scalar) -> Scalar | None:
        return replace(n, guards=tuple(map(elements, n.guards))) if isinstance(n, Load) and n.guards else None

    made = [replace(g, value=rebuild(g.value, counted, lambda i: i)) for g in goals]
    one = all(walks_as_one(e, pixel, channel) for g in made for e in indices_to_fuse(g))
    return made if one else goals


def _behind_records(goals: list[Goal], loops: list[Level]) -> list[Level]:
    """The loops vectorised over records instead of along one, if stores would have to be interleaved."""
    if not loops or loops[-1].kind != "vector" or loops[-1].axis.extent.constant not in RECORDS:
        return loops
    *rest, along = loops
    lane = next((x for x in rest if coefficient(goals[0].offset, x.axis) == along.axis.extent), None)
    if lane is None:
        return loops
    others = [x for x in rest if x is not lane]
    interleaved = [*others, Level(along.axis), Level(lane.axis, "vector", lane.begin, lane.end)]
    return interleaved if _record(goals, interleaved) == along.axis else loops


def _record(goals: list[Goal], loops: list[Level]) -> Axis | None:
    """An axis of a few contiguous elements of the result (a record), if the records of adjacent lanes are adjacent."""
    if len(goals) != 1 or not loops or loops[-1].kind != "vector" or goals[0].also:
        return None
    (goal,), pitch = goals, coefficient(goals[0].offset, loops[-1].axis)
    if goal.value.dtype not in INTERLEAVED or any(isinstance(n, Reduce) for n in walk(goal.value)):
        return None
    few = (level.axis for level in loops[:-1] if coefficient(goal.offset, level.axis) == ONE)
    return next((a for a in few if pitch == a.extent and a.extent.constant in RECORDS), None)


def _as_read(goals: list[Goal], loops: list[Level]) -> list[Level]:
    """Loops around reductions that are vectors themselves, in the order of what is read: more than what is stored."""
    steps = steps_of(goals[0].value)
    if len(goals) != 1 or any(level.kind == "vector" for level in loops) or not steps:
        return loops
    read = max(steps, key=lambda e: steps[e])
    at = {axis: k for k, axis in enumerate(order_of([level.axis for level in loops], read))}
    return sorted(loops, key=lambda level: at[level.axis])


def _by_blocks(goal: Goal, axis: Axis) -> bool:
    """Whether a reduction reads different elements at each step of an axis, so that blocks of it should stay in L1."""
    sums = [n for n in walk(goal.value) if isinstance(n, Reduce)]
    return bool(sums) and all(axis in axes_of(e) for n in sums for b in n.body for e in offsets_of(b))


def _in_groups(goal: Goal, axis: Axis) -> bool:
    """Whether something is read in groups of lanes, which must be aligned with the vector."""
    return any(grouped(e, axis) is not None for e in offsets_of(goal.value))


def _goals(t: AlignedJobs, frame: Frame, kept: set[str]) -> list[Goal]:
    """The stores: outputs and values that later phases read. Other values become variables, one element each."""
    made: dict[str, Scalar] = {}
    goals: list[Goal] = []

    def known(x: Scalar) -> Scalar | None:
        if not isinstance(x, Load) or x.source not in made:
            return None
        if x.otherwise is None:
            return made[x.source]
        return inside(x.guards, made[x.source], rebuild(x.otherwise, known, lambda i: i))

    for job in t.jobs:
        name = job.nest.name
        made[name] = rebuild(job.nest.value, known, lambda i: i)
        if name in kept or job.nest.output:
            goals.append(goal_of(job, frame, flat_in(made[name], frame)))
    return goals


def _phase_in_tasks(
    work: Index, frame: Frame, goals: list[Goal], loops: list[Level], lanes: int, *, interleaved: bool
) -> Phase:
    """The phase of rows, of a vector loop, or of both, each divided among tasks.

    Lanes of one vector are not: that there is one, and how many lanes it has, is known when the kernel is compiled.
    """
    opened: list[Level] = []
    splits: list[Split] = []
    for level in loops:
        if level.kind == "vector" and len(loops) > 1 and (level.axis.extent.constant or lanes + 1) <= lanes:
            opened.append(level)
            continue
        letter, step = ("c", lanes) if level.kind == "vector" else ("r", 1)
        lo, hi = Axis(f"{letter}0", level.axis.extent), Axis(f"{letter}1", level.axis.extent + 1)
        splits.append(Split(lo, hi, level.axis.extent, step))
        opened.append(Level(level.axis, level.kind, Index.of(lo), Index.of(hi)))
    return Phase(tuple(splits), work, tuple(frame.locals), written(goals, opened, interleaved=interleaved))


def _phase_in_subranges(
    work: Index, frame: Frame, parts: list[tuple[Axis, list[Goal]]], m: Axis, *, interleaved: bool = False
) -> Phase:
    """The phase of rows whose vector loop is split into subranges with and without padding."""
    body: list[Stmt] = []
    for number, (axis, goals) in enumerate(parts):
        body += written(goals, [Level(axis, "vector")], f"p{number}", interleaved=interleaved)
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    loop = Loop(m, Index.of(lo), Index.of(hi), "serial", tuple(body))
    return Phase((Split(lo, hi, m.extent),), work, tuple(frame.locals), (loop,))


def _phase_around_masks(
    work: Index, frame: Frame, parts: list[tuple[Axis, list[Goal]]], m: Axis, vector: Axis, lanes: int
) -> Phase:
    """The same, where a task has a range of the whole vector loop: of each subrange it does what lies in that."""
    first, last = Axis("c0", vector.extent), Axis("c1", vector.extent + 1)
    body: list[Stmt] = []
    before = 0
    for number, (axis, goals) in enumerate(parts):
        begin, end = greatest(Index.of(first) - before, ZERO), least(Index.of(last) - before, axis.extent)
        body += written(goals, [Level(axis, "vector", begin, end)], f"p{number}")
        before += axis.extent.constant or 0
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    loop = Loop(m, Index.of(lo), Index.of(hi), "serial", tuple(body))
    splits = (Split(lo, hi, m.extent), Split(first, last, vector.extent, lanes))
    return Phase(splits, work, tuple(frame.locals), (loop,))


def _window(
    goals: list[Goal], loops: list[Level], points: tuple[int, ...] | None, target: Cpu
) -> tuple[tuple[Axis, tuple[Stmt, ...]] | None, Strip | None]:
    """Unroll-and-jam loops over the last row and vector axis, split at `points` or in strips, where they fit."""
    *rows, vector = loops
    if len(goals) != 1:
        return None, None
    strip: Strip | None = None
    if points is not None and len(points) > 2 and not _in_masks(goals[0], vector.axis):
        parts = [(part, Level(axis, "vector")) for axis, (part,) in split_goals(goals, vector.axis, points)]
    else:
        strip = _strip(goals[0], loops, target)
        parts = [(goals[0], Level(vector.axis, "vector", *map(Index.of, strip.ends)) if strip else vector)]
    size = (product([level.axis.extent for level in loops]).constant or 0) * goals[0].value.dtype.bytes
    ahead = target.lanes if target.prefetches(size) else 0
    found = [unroll_and_jam(goal, rows, level, target.rows + 2, ahead) for goal, level in parts]
    made = [each for each in found if each is not None]
    whole = len(made) == len(found)
    return ((made[0][0], tuple(s for _, body in made for s in body)) if whole else None), strip


def _around_masks(goals: list[Goal], loops: list[Level], target: Cpu) -> tuple[int, ...] | None:
    """Points between which the vectors of the last loop need no masks, where masks are slow."""
    if target.masks or len(loops) < 2 or loops[-1].kind != "vector":
        return None
    return unmasked_points([g.value for g in goals], loops[-1].axis, target.lanes)


def _under_masks(goals: list[Goal], axis: Axis, target: Cpu) -> bool:
    """Whether an axis is so short that masked loads are faster than a loop for each of its subranges."""
    short = (axis.extent.constant or WIDEST * MASKED) < target.lanes * MASKED
    cut_loads = [sum(1 for n in walk(g.value) if isinstance(n, Load) and cutting(n, axis)) for g in goals]
    return short and max(cut_loads) <= 1 and all(_in_masks(g, axis) for g in goals)


def _in_masks(goal: Goal, axis: Axis) -> bool:
    """Whether all guards that differ among lanes can be masks, or are tested at the ends of a vector only."""
    cut_loads = [n for n in walk(goal.value) if isinstance(n, Load) and cutting(n, axis)]
    return all(masked(n, axis) is not None or piecewise(n, axis) for n in cut_loads)


def _window_phase(
    work: Index, frame: Frame, body: tuple[Stmt, ...], m: Axis, digits: dict[Axis, Index], strip: Strip | None
) -> Phase:
    """The phase of unroll-and-jam window loops, for each of the flattened remaining rows, strip by strip.

    Rows are divided among tasks before strips: the convolutions before and after it are divided by rows too, so that a
    core reads what it has made itself.
    """
    binds = tuple(Bind(a, e) for a, e in digits.items())
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    splits: tuple[Split, ...] = (Split(lo, hi, m.extent),)
    if strip is None and sum(c for _, c in m.extent.terms) < SCARCE:  # where each open extent is 1
        body, more = _divided(body)
        splits = (*splits, *more)
    loop: Stmt = Loop(m, Index.of(lo), Index.of(hi), "serial", (*binds, *body))
    if strip is not None:
        at, first, last = Axis("c", strip.count), Axis("c0", strip.count), Axis("c1", strip.count + 1)
        begin, end = strip.ends
        ends = (
            Bind(begin, Index.of(at) * strip.width),
            Bind(end, Index.of(at) * strip.width + strip.width, strip.extent),
        )
        loop = Loop(at, Index.of(first), Index.of(last), "serial", (*ends, loop))
        splits = (*splits, Split(first, last, strip.count))
    return Phase(splits, work, tuple(frame.locals), (loop,))


def _divided(body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[Split, ...]]:
    """Consecutive loops over blocks of lines, restricted to the blocks of one task.

    How many blocks there are may hang on what is bound before: lines of an image of open size.
    """
    loops = [s for s in body if isinstance(s, Loop)]
    bound: dict[Axis, Index] = {}
    for s in body:
        if isinstance(s, Bind):
            bound[s.axis] = substitute(s.value if s.most is None else least(s.value, s.most), bound)
    if any(not isinstance(s, (Loop, Bind)) for s in body):
        return body, ()
    lengths = [substitute(s.end - s.begin, bound) for s in loops]
    count = sum(lengths, ZERO)
    if axes_of(count) or (count.constant is not None and count.constant < 2):
        return body, ()
    first, last = Axis("c0", count), Axis("c1", count + 1)
    made: list[Stmt] = []
    before = ZERO
    for s in body:
        if isinstance(s, Loop):
            length = s.end - s.begin
            begin, end = greatest(Index.of(first) - before, ZERO), least(Index.of(last) - before, length)
            s = replace(s, begin=s.begin + begin, end=s.begin + end)
            before = before + length
        made.append(s)
    return tuple(made), (Split(first, last, count),)


@dataclass(frozen=True, slots=True)
class Strip:
    """A strip of the vector axis for which all lines of a window stay in L1, so that each is read from L2 once."""

    extent: Index
    width: int
    count: Index

    @property
    def ends(self) -> tuple[Axis, Axis]:
        """Begin and end of the current strip."""
        return Axis("strip0", self.extent), Axis("strip1", self.extent + 1)


def _strip(goal: Goal, loops: list[Level], target: Cpu) -> Strip | None:
    """Strips for a window over lines; None if whole lines fit in L1 or strips would be too narrow."""
    found = [n for n in walk(goal.value) if isinstance(n, Reduce)]
    channels, line = loops[-1].axis.extent.constant, loops[-2].axis.extent.constant if len(loops) > 1 else None
    lines = found[0].ranges[0].extent.constant if len(found) == 1 else None
    if not channels or not line or lines is None or lines < 2:
        return None
    widest = STRIP // (4 * lines * line) // target.lanes * target.lanes
    if widest >= channels or widest < NARROW * target.lanes or _in_groups(goal, loops[-1].axis):
        return None
    count = -(-channels // widest)
    width = -(-channels // count // target.lanes) * target.lanes
    return Strip(loops[-1].axis.extent, width, Index.of(-(-channels // width)))
