"""Phases of jobs that all run over the same axes: elementwise work, copies, reductions that keep a contiguous axis."""

from __future__ import annotations

from onnxfuse.config import Target
from onnxfuse.ir.compose import inside, rebuild
from onnxfuse.ir.index import ZERO, Axis, Index
from onnxfuse.ir.indexing import product, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, Split, Stmt
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.schedule.align import Together
from onnxfuse.schedule.frame import Frame, flat_in, goal_of, work_of
from onnxfuse.schedule.jobs import is_output
from onnxfuse.schedule.memory import Place
from onnxfuse.schedule.nest import Goal, Level, free_loops, fused_axes, indices_to_fuse, offsets_of, order_of, strided
from onnxfuse.schedule.pieces import cut, cut_at, signs_of
from onnxfuse.schedule.windows import jammed
from onnxfuse.schedule.writer import written

LANE = 700  # picoseconds of an element that is loaded or stored by itself


def flat_phase(t: Together, places: dict[str, Place], kept: set[str], target: Target) -> Phase:
    """Jobs that run over the same axes: those that every access walks as one are made one, the best is a vector."""
    frame = Frame({}, None, ZERO, 1, places)
    goals = _goals(t, frame, kept)
    axes, values = fused_axes(
        tuple(order_of(t.shared, goals[-1].offset)), [e for g in goals for e in indices_to_fuse(g)]
    )
    goals = [g.substituted(values) for g in goals]
    signs = signs_of(goals)
    loops = free_loops(goals[-1], axes, {a for a in axes if cut_at(a, signs) is not None})
    vector = loops[-1] if loops and loops[-1].kind == "vector" else None
    window = (
        jammed(goals[0], [level for level in loops if level is not vector], vector, target.rows + 2)
        if vector is not None and len(goals) == 1
        else None
    )
    rows = [level.axis for level in loops if level is not vector and (window is None or level.axis != window[0])]
    m = Axis("m", product([a.extent for a in rows]))
    digits = dict(zip(rows, unflatten(Index.of(m), tuple(a.extent for a in rows)), strict=True))
    if window is not None:
        return _window_phase(t, frame, window[1], m, digits)
    goals = [g.substituted(digits) for g in goals]
    points = cut_at(vector.axis, signs) if vector is not None and rows else None
    work = work_of(t)
    if vector is not None:
        lanes = sum(strided(vector.axis, [g.offset, *offsets_of(g.value)]) for g in goals)
        work = work + product([a.extent for a in axes]) * LANE * lanes
    if vector is not None and points is not None and len(points) > 2:
        return _cut_phase(work, frame, cut(goals, vector.axis, points), m)
    opened: list[Level] = []
    splits: list[Split] = []
    for axis, kind, letter in ((m, "serial", "r"), (vector.axis if vector else None, "vector", "c")):
        if axis is None or (axis is m and not rows):
            continue
        lo, hi = Axis(f"{letter}0", axis.extent), Axis(f"{letter}1", axis.extent + 1)
        splits.append(Split(lo, hi, axis.extent))
        opened.append(Level(axis, kind, Index.of(lo), Index.of(hi)))
    return Phase(tuple(splits), work, tuple(frame.locals), written(goals, opened))


def _goals(t: Together, frame: Frame, kept: set[str]) -> list[Goal]:
    """What is stored: outputs and what later phases read. The rest are variables: every job has one element here."""
    made: dict[str, Scalar] = {}
    goals: list[Goal] = []

    def known(x: Scalar) -> Scalar | None:
        if not isinstance(x, Load) or x.source not in made:
            return None
        return inside(x.guards, made[x.source], x.otherwise) if x.otherwise is not None else made[x.source]

    for job in t.jobs:
        name = job.nest.name
        made[name] = rebuild(job.nest.value, known, lambda i: i)
        if name in kept or is_output(name):
            goals.append(goal_of(job, frame, flat_in(made[name], frame)))
    return goals


def _cut_phase(work: Index, frame: Frame, parts: list[tuple[Axis, list[Goal]]], m: Axis) -> Phase:
    """Rows whose vector loop is cut into parts: with and without padding."""
    body: list[Stmt] = []
    for number, (axis, goals) in enumerate(parts):
        body += written(goals, [Level(axis, "vector")], f"p{number}")
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    loop = Loop(m, Index.of(lo), Index.of(hi), "serial", tuple(body))
    return Phase((Split(lo, hi, m.extent),), work, tuple(frame.locals), (loop,))


def _window_phase(t: Together, frame: Frame, body: tuple[Stmt, ...], m: Axis, digits: dict[Axis, Index]) -> Phase:
    """Jammed window loops, once for each of the flat remaining rows."""
    binds = tuple(Bind(a, e) for a, e in digits.items())
    lo, hi = Axis("r0", m.extent), Axis("r1", m.extent + 1)
    loop = Loop(m, Index.of(lo), Index.of(hi), "serial", (*binds, *body))
    return Phase((Split(lo, hi, m.extent),), work_of(t), tuple(frame.locals), (loop,))
