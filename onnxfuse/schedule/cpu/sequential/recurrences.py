"""Recurrences: a loop over steps inside of each task, which has some of the sequences and one direction.

The first step is peeled, since it reads the initial states in place of those before it. What only the step itself
reads, such as the sums of gates, is in a buffer of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import loads, rebuild, substitute_axes
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, never_below_zero
from onnxfuse.ir.indexing import product, substitute, unflatten
from onnxfuse.ir.kernel import Loop, Phase, Split, When
from onnxfuse.ir.scalar import Apply, Const, Guard, Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.contract import Contracted, recognise, worth_tiles
from onnxfuse.schedule.analysis.memory import Place, dense, nest_of
from onnxfuse.schedule.cpu.rows import row_loops, stages
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame, serial_time
from onnxfuse.schedule.nests.jobs import Job, Recurrence
from onnxfuse.schedule.nests.tiled import Tiled
from onnxfuse.target import Cpu

Tiler = Callable[[Contracted], Tiled | None]  # prepares the operands of a contraction for tiles, if there are tiles


def recurrence_of(
    part: Sequence[Definition],
    later: Sequence[Definition],
    places: dict[str, Place],
    outputs: Collection[str],
    weights: Container[str],
    tiled: Tiler,
) -> Job:
    """The definitions of a recurrence as one job; values that are read at another step, or `later`, get places."""
    part = _on_common_axes(part)
    step, names = part[0].axes[0], {d.name for d in part}
    read = [load for d in part for load in loads(d.value) if load.source in names]
    stored = {n.source for n in read if n.index[0] != Index.of(step)}
    stored |= names & {n.source for d in later for n in loads(d.value)} | names & {*outputs}
    for d in part:
        if d.name in stored and d.name not in places:
            places[d.name] = dense(d.name, d.value.dtype, d.shape)
    n = Axis(f"{step.name}-", step.extent - 1)
    after = {n: Index.of(step) - 1}
    values = {d.name: substitute_axes(_at(d, step, Index.of(n) + 1), after) for d in part}
    jobs = tuple(_job(d, values[d.name], Index.of(step), places, outputs, weights, tiled) for d in part)
    begun = []
    numbers: dict[str, Const] = {}
    for d in part:
        value = _of_numbers(_at(d, step, ZERO), numbers)
        if isinstance(value, Const) and d.name not in stored:
            numbers[d.name] = value
        else:
            begun.append(_job(d, value, ZERO, places, outputs, weights, tiled))
    whole = replace(jobs[-1].nest, axes=(step, *jobs[-1].nest.axes))
    return Job(whole, recurrence=Recurrence(step, tuple(begun), jobs, frozenset(stored)))


def _on_common_axes(part: Sequence[Definition]) -> list[Definition]:
    """The definitions with the same axes, but for the last one of each."""
    common = part[0].axes[:-1]
    made = []
    for d in part:
        values = {a: Index.of(b) for a, b in zip(d.axes, common, strict=False) if a != b}
        made.append(replace(d, axes=(*common, d.axes[-1]), value=substitute_axes(d.value, values)))
    return made


def _at(d: Definition, step: Axis, n: Index) -> Scalar:
    """The value of a definition at a step, without guards that say whether there is a step before it."""
    return simplify(substitute_axes(d.value, {step: n}))


def _of_numbers(x: Scalar, numbers: Mapping[str, Const]) -> Scalar:
    """x with values that are numbers inlined; a sum of products with zeros is zero."""

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Load):
            return numbers.get(node.source)
        if isinstance(node, Reduce) and node.combine == "sum":
            (body,) = node.body
            zero = Const(0.0, node.dtype)
            return zero if isinstance(body, Apply) and body.fn == "mul" and zero in body.args else None
        return None

    return rebuild(x, leaf, lambda i: i)


def _job(
    d: Definition,
    value: Scalar,
    step: Index,
    places: Mapping[str, Place],
    outputs: Collection[str],
    weights: Container[str],
    tiled: Tiler,
) -> Job:
    """A definition at a step; its nest has no axis for the steps."""
    nest = nest_of(replace(d, value=value), places, uncut=d.axes[:-1])
    axes = tuple(a for a in nest.axes if a != d.axes[0])
    dims = tuple(substitute(e, {d.axes[0]: step}) for e in nest.dims)
    nest = replace(nest, axes=axes, dims=dims, output=d.name in outputs)
    found = recognise(Definition(d.name, axes, nest.value), weights)
    return Job(nest, tiled(found) if found is not None and worth_tiles(found, weights) else None)


def recurrence_phase(t: AlignedJobs, places: dict[str, Place], target: Cpu) -> Phase:
    """The phase of a recurrence: tiles of sequences, and directions, are divided among tasks; the steps are not."""
    r = t.jobs[0].recurrence
    assert r is not None
    shared = [a for a in r.jobs[-1].nest.axes if all(a in j.nest.axes for j in r.jobs)]
    batch = {a for j in r.jobs if j.tiled is not None for a in j.tiled.batch}
    batch_axes, rows = (tuple(a for a in shared if (a in batch) == among) for among in (True, False))
    begun, later = (AlignedJobs(jobs, batch_axes, rows) for jobs in (r.begun, r.jobs))
    count, groups = (product([a.extent for a in axes]) for axes in (rows, batch_axes))
    m, g, first = Axis("m", count), Axis("g", groups), Axis("m0", count)
    digits = dict(zip(batch_axes, unflatten(Index.of(g), tuple(a.extent for a in batch_axes)), strict=True))
    digits |= dict(zip(rows, unflatten(Index.of(m), tuple(a.extent for a in rows)), strict=True))
    height = min(target.rows, count.constant or target.rows)
    frame = Frame(digits, m if rows else None, Index.of(first) if rows else ZERO, height, places, lanes=target.lanes)
    body = stages(later, frame, {*r.stored}, target)[1]
    before = stages(begun, frame, {*r.stored, *(j.nest.name for j in r.jobs)}, target)[1]
    steps = r.step.extent
    if not never_below_zero(steps - 1):
        before = (When((Guard(ZERO, steps),), before),)
    inside = (*before, Loop(r.step, ONE, steps, "serial", body))
    loops, splits = row_loops(rows, frame, inside, m, first, tiled=True)
    if batch_axes:
        lo, hi = Axis("g0", groups), Axis("g1", groups + 1)
        loops = (Loop(g, Index.of(lo), Index.of(hi), "serial", loops),)
        splits = (Split(lo, hi, groups), *splits)
    time = serial_time(begun, target.serial) + serial_time(later, target.serial) * steps
    return Phase(splits, time, tuple(frame.locals), loops, rows=(m, height) if rows else None)
