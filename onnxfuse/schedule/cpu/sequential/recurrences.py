"""Recurrences: a loop over steps inside of each task, which has some of the sequences and one direction.

The first step is peeled, since it reads the initial states in place of those before it. What only the step itself
reads, such as the sums of gates, is in a buffer of the task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import loads, rebuild, substitute_axes, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import flatten, product, substitute, unflatten
from onnxfuse.ir.kernel import Bind, Loop, Phase, RowPointer, Split, Stmt
from onnxfuse.ir.scalar import Apply, Const, Load, Reduce, Scalar, variable
from onnxfuse.ir.tile import EVEN_ENTRIES, Panel, Pointers, Tile, TileCore
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.contract import ACC, Contracted, recognise, worth_tiles
from onnxfuse.schedule.analysis.memory import Nest, Place, dense, nest_of
from onnxfuse.schedule.cpu.chain import by_rows, pitch_of, place_in, segments_of, stage
from onnxfuse.schedule.cpu.rows import stages
from onnxfuse.schedule.cpu.tiles import TABLE, C, TileLoop, even_rows, left_load, right_offset
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.frame import Frame, serial_time
from onnxfuse.schedule.nests.jobs import Job, Recurrence
from onnxfuse.schedule.nests.tiled import Tiled, balanced
from onnxfuse.target import Cpu

MOST_TILES = 8  # of sequences, that go through a step together
Tiler = Callable[[Contracted], Tiled | None]  # prepares the operands of a contraction for tiles, if there are tiles


def recurrence_of(
    part: Sequence[Definition],
    later: Sequence[Definition],
    places: dict[str, Place],
    given: dict[str, Place],
    outputs: Collection[str],
    weights: Container[str],
    tiled: Tiler,
    width: int,
) -> Job:
    """The definitions of a recurrence as one job; values that are read at another step, or `later`, get places.

    `given` are the places of parameters before tiles pack weights: definitions of both the first step and the others
    read them so. Sums of the step alone stay in panels of `width` columns, if the units are whole panels.
    """
    part = _on_common_axes(part)
    step, names = part[0].axes[0], {d.name for d in part}
    read = [load for d in part for load in loads(d.value) if load.source in names]
    stored = {n.source for n in read if n.index[0] != Index.of(step)}
    stored |= names & {n.source for d in later for n in loads(d.value)} | names & {*outputs}
    for d in part:
        if d.name not in places:  # for its strides only, where it is of the step alone: phases give it a buffer
            places[d.name] = dense(d.name, d.value.dtype, d.shape)
    given = places | given
    n = Axis(f"{step.name}-", step.extent - 1)
    after = {n: Index.of(step) - 1}
    values = {d.name: substitute_axes(_at(d, step, Index.of(n) + 1), after) for d in part}
    in_panels = all((d.axes[-1].extent.constant or 1) % width == 0 for d in part)
    cut = width if in_panels else 0
    jobs = tuple(_job(d, values[d.name], Index.of(step), given, outputs, weights, tiled, cut) for d in part)
    begun = []
    numbers: dict[str, Const] = {}
    for d in part:
        value = _of_numbers(_at(d, step, ZERO), numbers)
        if isinstance(value, Const) and d.name not in stored:
            numbers[d.name] = value
        else:
            begun.append(_job(d, value, ZERO, given, outputs, weights, tiled, cut))
    whole = replace(jobs[-1].nest, axes=(step, *jobs[-1].nest.axes))
    return Job(whole, recurrence=Recurrence(step, tuple(begun), jobs, frozenset(stored), in_panels))


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
    cut: int,
) -> Job:
    """A definition at a step; its nest has no axis for the steps, and its units are `cut` into so many, unless 0."""
    sums = any(isinstance(n, Reduce) for n in walk(value))
    cuts = [floor_div(Index.of(d.axes[-1]), Index.of(cut))] if cut and not sums else []
    nest = nest_of(replace(d, value=value), places, uncut=d.axes[:-1], cuts=cuts)
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
    batched = {a for j in r.jobs if j.tiled is not None for a in j.tiled.batch}
    batch, rows = (tuple(a for a in shared if (a in batched) == inside) for inside in (True, False))
    begun, later = (AlignedJobs(jobs, batch, rows) for jobs in (r.begun, r.jobs))
    groups = product([a.extent for a in batch])
    g = Axis("g", groups)
    digits = dict(zip(batch, unflatten(Index.of(g), tuple(a.extent for a in batch)), strict=True))
    frame = Frame(digits, None, ZERO, 1, places, lanes=target.lanes)
    splits: tuple[Split, ...] = ()
    if rows:
        body, splits = _by_tiles(r, begun, later, frame, target)
    else:
        body = _Block(r, frame, target).steps(begun, later)
    if batch:
        lo, hi = Axis("g0", groups), Axis("g1", groups + 1)
        body = (Loop(g, Index.of(lo), Index.of(hi), "serial", body),)
        splits = (Split(lo, hi, groups), *splits)
    time = serial_time(begun, target.serial) + serial_time(later, target.serial) * r.step.extent
    return Phase(splits, time, tuple(frame.locals), body, few=bool(rows))


def _by_tiles(
    r: Recurrence, begun: AlignedJobs, later: AlignedJobs, frame: Frame, target: Cpu
) -> tuple[tuple[Stmt, ...], tuple[Split, ...]]:
    """Blocks of tiles of sequences, which go through a step together: each panel of weights is read once for them.

    Tasks have two sequences at least, and divide them into even tiles: so only a lone sequence is a tile of one row,
    whose sums have an order of their own, however many tasks there are.
    """
    rows = product([a.extent for a in later.rows])
    m, first, begin = Axis("m", rows), Axis("m0", rows), Axis("mb", rows)
    frame.shared |= zip(later.rows, unflatten(Index.of(m), tuple(a.extent for a in later.rows)), strict=True)
    height = balanced(rows.constant, target.rows)
    frame.row, frame.first, frame.tile_rows = m, Index.of(first), height
    width = sum(pitch_of(j, later) for j in r.jobs if j.nest.name not in r.stored)
    most = max(1, min(MOST_TILES, target.l2_bytes // 4 // (4 * height * max(width, 1))))
    tiles = floor_div(rows + (height - 1), Index.of(height))
    u0, u1, count, even = (
        Axis("u0", rows),
        Axis("u1", rows + 1),
        Axis("tn", tiles + 1),
        Axis("mh", Index.of(height + 1)),
    )
    at, t0, t1, rb = Axis("t", tiles), Axis("t0", tiles), Axis("t1", tiles + 1), Axis("rb", tiles)
    inside = Index.of(u1) - u0
    task = (
        Bind(count, floor_div(inside + (height - 1), Index.of(height))),
        Bind(even, floor_div(inside, greatest(Index.of(count), ONE))),
    )

    def row_of(tile: Index) -> Index:
        """The first row of a tile of the task; the first tiles have the rows that are left over."""
        return Index.of(u0) + tile * even + least(tile, inside - Index.of(count) * even)

    bounds = (
        Bind(t0, Index.of(rb) * most),
        Bind(t1, Index.of(rb) * most + most, Index.of(count)),
        Bind(begin, row_of(Index.of(t0))),
    )
    window = (Bind(first, row_of(Index.of(at))), Bind(Axis("m1", rows + 1), row_of(Index.of(at) + 1)))
    block = TileLoop(at, Index.of(t0), Index.of(t1), window)
    steps = _Block(r, frame, target, begin, first, most, block).steps(begun, later)
    blocks = floor_div(Index.of(count) + (most - 1), Index.of(most))
    return (*task, Loop(rb, ZERO, blocks, "serial", (*bounds, *steps))), (Split(u0, u1, rows, least=2),)


@dataclass(frozen=True, slots=True)
class _Block:
    """Sequences that go through the steps together: one, or at most so many `tiles` of them.

    The rows of a block begin at `begin`, those of a tile at `first`.
    """

    r: Recurrence
    frame: Frame
    target: Cpu
    begin: Axis | None = None
    first: Axis | None = None
    most: int = 1
    tiles: TileLoop | None = None

    @property
    def rows(self) -> int:
        """Rows of the block, at most."""
        return self.most * self.frame.tile_rows

    def steps(self, begun: AlignedJobs, later: AlignedJobs) -> tuple[Stmt, ...]:
        """The first step, which there is in every valid call, and the loop over the others."""
        self._give_places(later)
        first, step = self._stages(begun), self.r.step
        return (*first, Loop(step, ONE, step.extent, "serial", self._stages(later)))

    def _give_places(self, t: AlignedJobs) -> None:
        """Buffers for the values of the step alone, and for tiles."""
        for j in self.r.jobs:
            if j.nest.name in self.r.stored:
                continue
            buffer = self.frame.local(j.nest.name, Index.of(self.rows * pitch_of(j, t)), j.nest.dtype)
            if self._stays_in_panels(j):
                self.frame.places[j.nest.name] = Place(buffer, F32, partial(self._in_panels, j.nest, t))
            elif self.begin is not None:
                self.frame.places[j.nest.name] = place_in(j, t, buffer, self.begin)
            else:
                self.frame.places[j.nest.name] = Place(buffer, j.nest.dtype, lambda index: index[-1])
        entries = max((segments_of(j) for j in self.r.jobs if j.tiled is not None), default=1)
        self.frame.local(
            TABLE, Index.of(entries * max(self.frame.tile_rows, EVEN_ENTRIES) * self.most), F32, "pointers"
        )
        self.frame.local(C, Index.of(self.target.panel * self.frame.tile_rows))

    def _stays_in_panels(self, job: Job) -> bool:
        """Whether what tiles sum up stays where they store it, panel by panel."""
        bare = job.tiled is not None and job.tiled.finish == variable(ACC, F32)
        return self.r.in_panels and bare and job.nest.name not in self.r.stored

    def _in_panels(self, nest: Nest, t: AlignedJobs, index: tuple[Index, ...]) -> Index:
        """The offset of an element of sums that stay in panels."""
        found, width = nest.digits_at(index), Index.of(self.target.panel)
        row = flatten(tuple(found[a] for a in t.rows), tuple(a.extent for a in t.rows)) - (self.begin or ZERO)
        return (floor_div(index[-1], width) * self.rows + row) * width + modulo(index[-1], width)

    def _stages(self, t: AlignedJobs) -> tuple[Stmt, ...]:
        """The jobs of a step, one after the other."""
        return tuple(s for job in t.jobs for s in self._stage(job, t))

    def _stage(self, job: Job, t: AlignedJobs) -> tuple[Stmt, ...]:
        if self._stays_in_panels(job):
            return self._sums(job)
        if self.tiles is None or self.first is None:
            known = {*self.r.stored, *(j.nest.name for j in self.r.jobs)}
            return stages(replace(t, jobs=(job,)), self.frame, known, self.target)[1]
        if job.tiled is not None:
            return stage(job, None, self.frame, self.tiles, self.target)
        return (self.tiles.over(*by_rows(job, t, self.frame)),)

    def _sums(self, job: Job) -> tuple[Stmt, ...]:
        """A contraction whose sums stay in panels."""
        tiled, frame = job.tiled, self.frame
        assert tiled is not None
        m = frame.row if frame.row is not None else Axis("m", ONE)
        end = Index.of(Axis("m1", m.extent + 1)) if self.tiles is not None else ONE
        load = left_load(tiled.left, tiled.ranges, tiled.segments, frame)
        even = frame.row is not None and even_rows(tiled, tiled.rows, load, m, frame.tile_rows, frame.places)
        segments, panel = segments_of(job), tiled.panel
        number = self.tiles.number if self.tiles is not None else ZERO
        here = number * (segments * (EVEN_ENTRIES if even else frame.tile_rows))
        point = RowPointer(TABLE, m, frame.first, end, frame.tile_rows, tiled.segments, load, tiled.length, here, even)
        tile = Tile(
            frame.places[job.nest.name].buffer,
            (Index.of(panel) * self.rows + frame.first - (self.begin or ZERO)) * self.target.panel,
            end - frame.first,
            TileCore(frame.tile_rows, self.target.panel),
            Pointers(TABLE, here, segments, tiled.length, even),
            Panel(frame.places[tiled.right.source].buffer, right_offset(tiled, frame)),
        )
        return (*self._over_tiles(point), Loop(panel, ZERO, panel.extent, "serial", self._over_tiles(tile)))

    def _over_tiles(self, *body: Stmt) -> tuple[Stmt, ...]:
        """The loop over the tiles of the block."""
        return body if self.tiles is None else (self.tiles.over(*body),)
