"""Causal attention on CPUs: a tile of rows skips the keys that the mask hides from all of its rows.

Masked scores are -inf and their exponentials 0, so that no row of a tile needs a key beyond the last one that its last
row attends to. Hidden values are not read: a NaN in them does not propagate, as it would when multiplied by 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxfuse.ir.compose import sources
from onnxfuse.ir.index import ZERO, Axis, Div, Index, Mod, Symbol, atoms, axes_of, floor_div, nonnegative
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.kernel import Bind, Loop, ReduceLoop, Stmt
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce, Scalar
from onnxfuse.ir.tile import Tile
from onnxfuse.schedule.analysis.causal_masks import hidden_below
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame
from onnxfuse.schedule.nests.jobs import Job

MASKED_SCORE, MASKED_WEIGHT = float("-inf"), 0.0  # masked scores, and their exponentials
END = "seen"


@dataclass(slots=True)
class _Keys:
    """Values with a dimension of keys: that dimension, and the value at hidden keys. `axes` run over keys.

    `sums` are panel axes of contractions over keys.
    """

    values: dict[str, tuple[int, float]]
    axes: set[Axis] = field(default_factory=set)
    sums: set[str] = field(default_factory=set)


def skip_hidden_keys(
    t: AlignedJobs, frame: Frame, inside: tuple[Stmt, ...], kept: set[str], width: int
) -> tuple[Stmt, ...]:
    """The statements of one window of rows with loops over keys that end at the last key any of its rows attends to.

    `width` is that of a panel of keys.
    """
    first = next((j for j in t.jobs if j.tiled is not None), None)
    if first is None or first.tiled is None or frame.row is None or len(first.tiled.columns) != 1:
        return inside
    column = first.tiled.columns[0]
    sign = hidden_below(first.tiled.finish)
    if sign is None or coefficient(sign, column) != Index.of(-1):
        return inside
    count = _visible_keys(substitute(substitute(sign, {column: ZERO}), frame.shared), frame)
    keys = _keys(t.jobs, first, column, kept)
    if keys is None or count is None:
        return inside
    end = Axis(END, column.extent + 1)
    seen = floor_div(count + (width - 1), Index.of(width)) * width
    panels = {first.tiled.panel.name: floor_div(Index.of(end) + (width - 1), Index.of(width))}
    return (Bind(end, seen, column.extent), *_with_loops_shortened(inside, keys, panels, Index.of(end)))


def _visible_keys(place: Index, frame: Frame) -> Index | None:
    """An upper bound of the keys that a window of rows attends to, if a row attends to those up to `place`, or None.

    Rows may be those of several heads, consecutive or interleaved: a window across two heads attends to all keys.
    """
    assert frame.row is not None
    row, last = Index.of(frame.row), Index.of(Axis("m1", frame.row.extent + 1))
    parts = (mono[0] for mono, c in place.terms if c == 1 == len(mono))
    part = next((a for a in parts if isinstance(a, (Div, Mod)) and a.num == row), None)
    ahead = place - (row if part is None else Index.of(part))
    if any(not isinstance(a, Symbol) for a in atoms(ahead)) or not nonnegative(ahead):
        return None
    if isinstance(part, Div):
        return floor_div(last - 1, part.den) + 1 + ahead
    return last + ahead - (floor_div(frame.first, part.den) * part.den if part is not None else ZERO)


def _keys(jobs: Sequence[Job], first: Job, column: Axis, kept: set[str]) -> _Keys | None:
    """The values and axes over keys in the jobs after the scores; None if a hidden key could change a result."""
    at = next((i for i, e in enumerate(first.nest.dims) if e == Index.of(column)), None)
    if at is None or first.nest.name in kept or first.nest.output:
        return None
    keys = _Keys({first.nest.name: (at, MASKED_SCORE)})
    for job in jobs[jobs.index(first) + 1 :]:
        read = [r for r in job.reads if r.source in keys.values]
        if not read:
            continue
        axes = {r.index[keys.values[r.source][0]] for r in read}
        axis = next((a for e in axes for a in axes_of(e)), None)
        if axis is None or axes != {Index.of(axis)} or axis.extent != column.extent or any(r.guards for r in read):
            return None
        if job.tiled is not None:
            weights = keys.values.get(job.tiled.left.source)
            others = {job.tiled.right.source, *sources(job.tiled.finish)}
            if weights is None or weights[1] != MASKED_WEIGHT or keys.values.keys() & others:
                return None
            if job.tiled.ranges != (axis,) or job.tiled.segments or job.tiled.length != axis.extent:
                return None
            keys.sums.add(job.tiled.panel.name)
        elif isinstance(job.nest.value, Reduce):
            value = job.nest.value
            neutral = {"sum": MASKED_WEIGHT, "max": MASKED_SCORE, "maxnum": MASKED_SCORE}.get(value.combine)
            if value.ranges != (axis,) or neutral is None or _where_hidden(value.body[0], keys.values) != neutral:
                return None
        else:
            place = next((i for i, e in enumerate(job.nest.dims) if e == Index.of(axis)), None)
            hidden = _where_hidden(job.nest.value, keys.values)
            if place is None or hidden is None or job.nest.name in kept or job.nest.output:
                return None
            keys.values[job.nest.name] = (place, hidden)
        keys.axes.add(axis)
    return keys


def _where_hidden(x: Scalar, values: Mapping[str, tuple[int, float]]) -> float | None:
    """The value of x at hidden keys, if that is known to be -inf or 0; else None."""
    if isinstance(x, Load):
        return values[x.source][1] if x.source in values else None
    if not isinstance(x, Apply):
        return None
    if x.fn == "select":
        nothing = all(
            a == Const(MASKED_WEIGHT, a.dtype) or _where_hidden(a, values) == MASKED_WEIGHT for a in x.args[1:]
        )
        return MASKED_WEIGHT if nothing else None
    first = _where_hidden(x.args[0], values)
    if x.fn in ("exp", "exp_or_zero"):
        return MASKED_WEIGHT if first == MASKED_SCORE else None
    others = any(values.keys() & sources(a) for a in x.args[1:])
    if others or not ((first == MASKED_SCORE and x.fn == "sub") or (first == MASKED_WEIGHT and x.fn == "div")):
        return None
    return first


def _shortened(tile: Tile, end: Index) -> Tile:
    """A tile whose reduction ends at `end`."""
    return replace(tile, left=replace(tile.left, length=end))


def _with_loops_shortened(
    stmts: tuple[Stmt, ...], keys: _Keys, panels: Mapping[str, Index], end: Index
) -> tuple[Stmt, ...]:
    """Statements whose loops over keys, over panels of keys, and tile reductions over keys end early."""
    made: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Loop):
            s = replace(s, body=_with_loops_shortened(s.body, keys, panels, end))
            if s.axis in keys.axes and s.begin == ZERO and s.end == s.axis.extent:
                s = replace(s, end=end)
            elif s.axis.name in panels:
                s = replace(s, end=panels[s.axis.name])
            elif s.axis.name in keys.sums:
                s = replace(s, body=tuple(_shortened(x, end) if isinstance(x, Tile) else x for x in s.body))
        elif isinstance(s, ReduceLoop):
            s = replace(s, body=_with_loops_shortened(s.body, keys, panels, end))
        made.append(s)
    return tuple(made)
