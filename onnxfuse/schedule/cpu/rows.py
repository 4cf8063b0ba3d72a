"""Phases over shared rows: statistics, softmax, elementwise epilogues and attention, by one row or one tile of rows.

Within an iteration of the shared axes each job is a stage; values that only later stages of the phase read are in
buffers local to the task. Right sides of contractions are packed once per batch element, before its rows.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from onnxfuse.ir.compose import loads, replaced, substitute_axes, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Pack, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.scalar import Load, Reduce, number
from onnxfuse.ir.tile import EVEN_ENTRIES, Panel, Pointers, Tile, TileCore
from onnxfuse.lower import has_reduction
from onnxfuse.schedule.analysis.contract import as_stored
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.cpu import horizontal
from onnxfuse.schedule.cpu.causal_skip import skip_hidden_keys
from onnxfuse.schedule.cpu.flat import flat_phase
from onnxfuse.schedule.cpu.groups import shared_lines
from onnxfuse.schedule.cpu.tiles import (
    TABLE,
    C,
    epilogue,
    even_rows,
    left_load,
    right_offset,
    tile_window,
)
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame, flat_in, give_place, goal_of, inner_axes, serial_time
from onnxfuse.schedule.nests.jobs import Job
from onnxfuse.schedule.nests.nest import Goal, Level, free_loops, fused_axes, indices_to_fuse, order_of
from onnxfuse.schedule.nests.subranges import signs_of, split_goals, split_points
from onnxfuse.schedule.nests.writer import written
from onnxfuse.schedule.passes.prefetch import LONG
from onnxfuse.target import Cpu


def row_phase(
    t: AlignedJobs,
    places: dict[str, Place],
    kept: set[str],
    large: Container[str],
    target: Cpu,
) -> Phase:
    """The phase of jobs that share axes. `kept` are values that later phases read (outputs have a place already).

    `large` are outputs with non-temporal stores.
    """
    if all(j.tiled is None and not inner_axes(j.nest, t) for j in t.jobs):
        return flat_phase(t, places, kept, target)
    t = _rows_by_lines(t, places)
    tiled = any(j.tiled is not None for j in t.jobs) or short_rows(t, target)
    count, groups = product([a.extent for a in t.rows]), product([a.extent for a in t.batch])
    m, g = Axis("m", count), Axis("g", groups)
    first = Axis("m0", count)
    shared = dict(zip(t.batch, unflatten(Index.of(g), tuple(a.extent for a in t.batch)), strict=True))
    shared |= dict(zip(t.rows, unflatten(Index.of(m), tuple(a.extent for a in t.rows)), strict=True))
    frame = Frame(
        shared,
        m if t.rows else None,
        Index.of(first) if tiled and t.rows else Index.of(m) if t.rows else ZERO,
        _window_rows(t, target) if tiled else 1,
        places,
        lanes=target.lanes,
    )
    apart = {j.nest.name for j in t.jobs if j.nest.name in large and _long(inner_axes(j.nest, t))}
    frame.aliases = in_place(t.jobs, kept, apart)
    before, inside = stages(t, frame, kept, target)
    if any(j.tiled is not None for j in t.jobs):
        inside = skip_hidden_keys(t, frame, inside, kept, target.panel)
    body, splits = _row_loops(t, frame, inside, m, first, tiled)
    if t.batch:
        lo, hi = Axis("g0", groups), Axis("g1", groups + 1)
        body = (Loop(g, Index.of(lo), Index.of(hi), "serial", (*before, *body)),)
        by_batch = Split(lo, hi, groups)
        splits = (*splits, by_batch) if shared_lines([j.nest for j in t.jobs], t.batch, places) else (by_batch, *splits)
    else:
        body = (*before, *body)
    return Phase(splits, serial_time(t, target.serial), tuple(frame.locals), body, rows=(m, frame.tile_rows))


def _rows_by_lines(t: AlignedJobs, places: Mapping[str, Place]) -> AlignedJobs:
    """The jobs with their rows as they are stored, if rows would share lines with distant ones."""
    last = t.jobs[-1].nest
    tiled, nests = any(j.tiled is not None for j in t.jobs), [j.nest for j in t.jobs]
    if tiled or last.name not in places or not shared_lines(nests, t.rows[:-1], places):
        return t
    return replace(t, rows=tuple(order_of(t.rows, places[last.name].offset(last.dims))))


SHORT = 1024  # elements of a row, at most, for horizontal reductions of several rows


def short_rows(t: AlignedJobs, target: Cpu) -> bool:
    """Whether rows are so short and so many that horizontal reductions would cost more than the accumulation."""
    reduces = [n for j in t.jobs for n in walk(j.nest.value) if isinstance(n, Reduce)]
    lengths = [product([r.extent for r in n.ranges]).constant for n in reduces]
    count = product([a.extent for a in t.rows]).constant
    enough = count is None or count >= 2 * target.lanes
    return bool(lengths) and all(n is not None and n <= SHORT for n in lengths) and enough and bool(t.rows)


def _window_rows(t: AlignedJobs, target: Cpu) -> int:
    """Rows of a window: those of a register tile, or the lanes of a vector."""
    return target.rows if any(j.tiled is not None for j in t.jobs) else target.lanes


def _long(inner: Sequence[Axis]) -> bool:
    """Whether rows are long enough for a buffer of their own."""
    return (product([a.extent for a in inner]).constant or 0) >= LONG


def in_place(jobs: Sequence[Job], kept: set[str], apart: Container[str] = ()) -> dict[str, Job]:
    """Values that can be computed in the memory of the output that reads them last: same dtype, same element.

    `apart` are outputs whose memory is not used that way.
    """
    found: dict[str, Job] = {}
    for at, job in enumerate(jobs):
        name = job.nest.name
        readers = [j for j in jobs[at + 1 :] if any(read.source == name for read in j.reads)]
        if not readers or name in kept or job.nest.output or job.right_side or readers[-1].tiled is not None:
            continue
        last = readers[-1]
        reads = [read for read in last.reads if read.source == name]
        same = all(not read.guards and read.index == last.nest.dims for read in reads)
        alike = last.nest.dtype == job.nest.dtype and last.nest.shape == job.nest.shape
        taken = any(other is last for other in found.values())
        read_again = any(read.source == last.nest.name for j in jobs for read in j.reads)
        if last.nest.output and last.nest.name not in apart and same and alike and not taken and not read_again:
            found[name] = last
    return found


def _row_loops(
    t: AlignedJobs, frame: Frame, inside: tuple[Stmt, ...], m: Axis, first: Axis, tiled: bool
) -> tuple[tuple[Stmt, ...], tuple[Split, ...]]:
    """The loop over rows, or over tiles of rows, restricted to those of one task."""
    if not t.rows:
        return inside, ()
    if not tiled:
        lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
        return (Loop(m, Index.of(lo), Index.of(hi), "serial", inside),), (Split(lo, hi, m.extent),)
    tiles = floor_div(m.extent + (frame.tile_rows - 1), Index.of(frame.tile_rows))
    at, lo, hi = Axis("t", tiles), Axis("t0", tiles), Axis("t1", tiles + 1)
    window = tile_window(at, tiles, m.extent, first)
    return (Loop(at, Index.of(lo), Index.of(hi), "serial", (*window, *inside)),), (Split(lo, hi, tiles),)


def stages(t: AlignedJobs, frame: Frame, kept: set[str], target: Cpu) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Statements before the loop over rows (right sides) and inside of it, in order of the jobs."""
    before: list[Stmt] = []
    inside: list[Stmt] = []
    jobs = list(t.jobs)
    at = 0
    while at < len(jobs):
        job = jobs[at]
        give_place(job, t, frame, kept)
        follower = jobs[at + 1] if at + 1 < len(jobs) else None
        if job.tiled is not None:
            inside += _tile_stage(job, t.rows, frame, target)
        elif follower is not None and (goal := _merged(job, follower, t, frame, kept)) is not None:
            inside += in_rows(frame, [goal], ())
            at += 1
        else:
            stmts = _nest_stage(job, t, frame)
            (before if job.right_side and len(jobs) > 1 else inside).extend(stmts)
        at += 1
    return tuple(before), tuple(inside)


def in_rows(frame: Frame, goals: list[Goal], inner: tuple[Axis, ...], *, by_batch: bool = False) -> tuple[Stmt, ...]:
    """A stage: loops over the window's rows (if it is a tile) and the inner axes."""
    axes, values = fused_axes(inner, [e for g in goals for e in indices_to_fuse(g)])
    goals = [g.substituted(values) for g in goals]
    signs = signs_of(g.value for g in goals)
    loops = free_loops(goals[0], axes, {a for a in axes if split_points(a, signs) is not None})
    points = split_points(loops[-1].axis, signs) if loops and loops[-1].kind == "vector" else None
    pieces = [(loops, goals)]
    if points is not None and len(points) > 2:
        pieces = [([*loops[:-1], Level(a, "vector")], part) for a, part in split_goals(goals, loops[-1].axis, points)]
    stmts: tuple[Stmt, ...] = ()
    for levels, part in pieces:
        if frame.row is not None and frame.tile_rows > 1 and not by_batch:
            levels = [Level(frame.row, "serial", frame.first, Index.of(Axis("m1", frame.row.extent + 1))), *levels]
        frame.stages += 1
        stmts += written(part, levels, f"s{frame.stages}")
    if frame.row is None or frame.tile_rows == 1 or frame.tile_rows > frame.lanes:
        return stmts
    stmts, buffers = horizontal.share_lane_reductions(stmts, frame.row, frame.first, frame.tile_rows, frame.lanes)
    frame.locals.extend(b for b in buffers if b not in frame.locals)
    return stmts


def _nest_stage(job: Job, t: AlignedJobs, frame: Frame) -> tuple[Stmt, ...]:
    if job.right_side:
        packed = _transposed_right_side(job, t, frame) or _copied_right_side(job, t, frame)
        if packed is not None:
            return packed
    goal = goal_of(job, frame, flat_in(job.nest.value, frame))
    return in_rows(frame, [goal], inner_axes(job.nest, t), by_batch=job.right_side and len(t.jobs) > 1)


def _transposed_right_side(job: Job, t: AlignedJobs, frame: Frame) -> tuple[Stmt, ...] | None:
    """A right side whose source is contiguous along k: panels are packed by transposition, as rows of tiles are."""
    inner = inner_axes(job.nest, t)
    load = as_stored(flat_in(job.nest.value, frame))
    if (
        len(inner) != 3
        or not isinstance(load, Load)
        or coefficient(load.index[0], inner[1]) != ONE
        or load.dtype.accumulator != F32
    ):
        return None
    panel, k, lane = inner
    width = lane.extent.constant or 0
    dims = tuple(substitute(e, frame.shared | {k: ZERO, lane: ZERO}) for e in job.nest.dims)
    at = frame.places[job.nest.name].offset(dims)
    stop: Index = lane.extent
    bind: tuple[Stmt, ...] = ()
    if load.guards:
        if len(load.guards) != 1 or coefficient(load.guards[0].index, lane) != ONE:
            return None
        guard = load.guards[0]
        last = Axis("jn", lane.extent + 1)
        bind = (Bind(last, guard.extent - substitute(guard.index, {lane: ZERO}), lane.extent),)
        stop = Index.of(last)
    pack = Pack(
        frame.places[job.nest.name].buffer,
        at,
        lane,
        ZERO,
        stop,
        k,
        Load(load.source, load.index, load.dtype),
        Index.of(width),
    )
    return (Loop(panel, ZERO, panel.extent, "serial", (*bind, pack)),)


def _copied_right_side(job: Job, t: AlignedJobs, frame: Frame) -> tuple[Stmt, ...] | None:
    """A right side whose source is contiguous along the columns, of which there may be fewer than a panel has.

    Lines of a panel are copied whole: without a count of the columns that there are, each would be tested.
    """
    inner, load = inner_axes(job.nest, t), flat_in(job.nest.value, frame)
    if len(inner) != 3 or not isinstance(load, Load) or len(load.guards) != 1:
        return None
    panel, k, lane = inner
    (guard,) = load.guards
    straight = coefficient(load.index[0], lane) == coefficient(guard.index, lane) == ONE
    if not straight or k in axes_of(guard.index) or load.lanes is not None:
        return None
    goal = goal_of(job, frame, Load(load.source, load.index, load.dtype))
    if coefficient(goal.offset, lane) != ONE:
        return None
    last = Axis("jn", lane.extent + 1)
    there = Bind(last, guard.extent - substitute(guard.index, {lane: ZERO}), lane.extent)
    body: tuple[Stmt, ...] = (there,)
    none = load.otherwise if load.otherwise is not None else number(0, load.dtype)
    for value, begin, end in ((goal.value, ZERO, Index.of(last)), (none, Index.of(last), lane.extent)):
        frame.stages += 1
        levels = [Level(k), Level(lane, "vector", begin, end)]
        body += written([replace(goal, value=value)], levels, f"s{frame.stages}")
    return (Loop(panel, ZERO, panel.extent, "serial", body),)


def _merged(job: Job, follower: Job, t: AlignedJobs, frame: Frame, kept: set[str]) -> Goal | None:
    """A value and the row reduction that reads each of its elements once, as one loop that stores the value too."""
    inner = inner_axes(job.nest, t)
    if (
        follower.tiled is not None
        or job.right_side
        or has_reduction(job.nest.value)
        or inner_axes(follower.nest, t)
        or not inner
    ):
        return None
    found = [n for n in walk(follower.nest.value) if isinstance(n, Reduce)]
    reads = [read for read in loads(follower.nest.value) if read.source == job.nest.name]
    if len(found) != 1 or len(reads) != 1 or reads[0].guards:
        return None
    digits = job.nest.digits_at(reads[0].index)
    ranges = {Index.of(r) for r in found[0].ranges}
    if len(found[0].ranges) != len(inner) or any(digits[a] not in ranges for a in inner):
        return None
    give_place(follower, t, frame, kept)
    made = flat_in(substitute_axes(job.nest.value, {a: digits[a] for a in inner}), frame)
    here = flat(substitute_axes(reads[0], frame.shared), frame.places)
    value = replaced(flat_in(follower.nest.value, frame), here, made)
    assert isinstance(here, Load)
    goal = goal_of(follower, frame, value)
    return Goal(goal.buffer, goal.offset, goal.value, {made: (here.source, here.index[0])})


def _tile_stage(job: Job, rows: Sequence[Axis], frame: Frame, target: Cpu) -> tuple[Stmt, ...]:
    """A contraction of the window's rows with all panels, and its epilogue."""
    tiled = job.tiled
    assert tiled is not None
    row = frame.row if frame.row is not None else Axis("m", ONE)
    end = Index.of(Axis("m1", row.extent + 1)) if frame.row is not None else ONE
    width = target.panel
    segments = product([s.extent for s in tiled.segments]).constant or 1
    load = left_load(tiled.left, tiled.ranges, tiled.segments, frame)
    even = frame.row is not None and even_rows(tiled, rows, load, row, frame.tile_rows, frame.places)
    point = RowPointer(
        TABLE,
        row,
        frame.first,
        end,
        frame.tile_rows,
        tiled.segments,
        load,
        tiled.length,
        even=even,
    )
    assert tiled.zeros is None, "schedule: a product of codes has a phase of its own"
    if not any(b.name == TABLE for b in frame.locals):
        frame.local(TABLE, Index.of(segments * max(frame.tile_rows, EVEN_ENTRIES)), F32, "pointers")
        frame.local(C, Index.of(width * frame.tile_rows))
    panel = tiled.panel
    at = right_offset(tiled, frame)
    tile = Tile(
        C,
        ZERO,
        end - frame.first,
        TileCore(frame.tile_rows, width),
        Pointers(TABLE, ZERO, segments, tiled.length, even),
        Panel(frame.places[tiled.right.source].buffer, at),
    )
    body = (tile, *epilogue(job, frame, panel, width, row, end))
    return (point, Loop(panel, ZERO, panel.extent, "serial", body))
