"""Two-stage reductions: a partial result for each of many rows, in parallel, then a reduction of the partial results.

A reduction to one value has no axis to run in parallel; its partial results have one. Two reductions over the same rows
(minimum and maximum, for a quantization) share a phase, with the computation of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from onnxfuse.ir.compose import free_axes, guarded, in_guards, loads, replaced, sources, substitute_axes, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Guard, Load, Reduce
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.canonical import Canonical
from onnxfuse.schedule.analysis.memory import dense

Offsets = Mapping[str, Callable[[tuple[Index, ...]], Index]]  # of an element of an input in memory
FEWEST_ROWS = 16  # for which threads share the work evenly; results, too, of which more need no parts
LONGEST = 1 << 15  # elements for one of an unknown number of results, above which it may have parts
SHORTEST_ROW = 64  # elements


def in_parts(c: Canonical) -> Canonical:
    """The group with reductions to few values divided into those of rows and one of their results.

    Rows are along the dimensions of the largest strides. A sum is rounded in another order, whatever the threads.
    """
    offsets = {p.name: dense(p.name, p.dtype, p.shape, p.layout).offset for p in c.inputs}
    made: list[Definition] = []
    for d in c.definitions:
        parts: list[Definition] = []
        for x in _reductions(d) if _few(d) else ():
            if rows := _rows(x, offsets):
                *more, d = divided(d, x, {r: (r.extent, ONE) for r in rows}, len(parts))
                parts += more
        at = max((i + 1 for i, m in enumerate(made) if any(m.name in sources(p.value) for p in parts)), default=0)
        made = [*made[:at], *parts, *made[at:], d]
    return replace(c, definitions=tuple(made))


def _reductions(d: Definition) -> list[Reduce]:
    """The reductions of a definition, but those of the elements that another one combines."""
    found = dict.fromkeys(n for n in walk(d.value) if isinstance(n, Reduce))
    return [n for n in found if free_axes(n) <= {*d.axes}]


def _few(d: Definition) -> bool:
    """Whether a definition has few values, or maybe few, each of much."""
    count = product(d.shape).constant
    if count is not None:
        return 0 < count < FEWEST_ROWS
    sizes = [product([r.extent for r in x.ranges]).constant for x in _reductions(d)]
    return all(n is None or n > LONGEST for n in sizes)


def divided(
    d: Definition, x: Reduce, cut: Mapping[Axis, tuple[Index, Index]], at: int, *, columns: bool = False
) -> tuple[Definition, ...]:
    """A reduction of a definition in parts, and the definition, which reads them: number `at` of such divisions.

    `cut` has the ranges that are divided: how many parts they have, and elements of each. Parts of `columns` come
    before the columns, which stay side by side.
    """
    outer = tuple(Axis(f"{d.name}_part{at}_{i}", parts) for i, (parts, _) in enumerate(cut.values()))
    within = tuple(Axis(f"{d.name}_of_part{at}_{i}", extent) for i, (_, extent) in enumerate(cut.values()))
    inner = (*within, *(r for r in x.ranges if r not in cut))
    rows = tuple(Axis(f"{a.name}_in_part{at}", a.extent) for a in d.axes)
    spots = {r: Index.of(p) * i.extent + i for r, p, i in zip(cut, outer, within, strict=True)}
    uneven = [r for r, (parts, extent) in cut.items() if parts * extent != r.extent]
    guards = tuple(Guard(spots[r], r.extent) for r in uneven)
    body = tuple(substitute_axes(b, spots | dict(zip(d.axes, map(Index.of, rows), strict=True))) for b in x.body)
    if guards:
        idle = MONOIDS[x.combine].init(body[0].dtype)
        body = tuple(
            Apply("select", (in_guards(guards), guarded(b, guards), zero), b.dtype)
            for b, zero in zip(body, idle, strict=True)
        )
    axes = (*outer, *rows) if columns else (*rows, *outer)
    ranges = tuple(r for r in inner if r.extent != ONE) or inner[:1]
    body = tuple(substitute_axes(b, {r: ZERO for r in inner if r not in ranges}) for b in body)
    parts = tuple(
        Definition(f"{d.name} part {at}.{slot}", axes, Reduce(x.combine, ranges, body, b.dtype, slot))
        for slot, b in enumerate(body)
    )
    again = tuple(Axis(f"{a.name}_again", a.extent) for a in outer)
    index = tuple(map(Index.of, (*again, *d.axes) if columns else (*d.axes, *again)))
    whole = Reduce(x.combine, again, tuple(Load(p.name, index, p.value.dtype) for p in parts), x.dtype, x.slot)
    value = replaced(d.value, x, whole)
    return (*parts, replace(d, value=value))


def _rows(x: Reduce, offsets: Offsets) -> tuple[Axis, ...]:
    """The outer ranges of a reduction that are enough rows of enough elements; none if there are no such."""
    if len(MONOIDS[x.combine].init(x.dtype)) != 1 or any(isinstance(n, Reduce) for b in x.body for n in walk(b)):
        return ()
    read = next((n for b in x.body for n in loads(b) if n.index), None)
    if read is None:
        return ()
    at = offsets[read.source](read.index) if read.source in offsets else None

    def stride(r: Axis) -> float:
        found = coefficient(at, r) if at is not None else None
        return -(found.constant or 0) if found is not None and found.constant is not None else -float("inf")

    ranges = sorted(x.ranges, key=stride) if at is not None else list(x.ranges)
    for n in range(1, len(ranges)):
        count, row = product([r.extent for r in ranges[:n]]), product([r.extent for r in ranges[n:]])
        if row.constant is not None and row.constant < SHORTEST_ROW:
            break
        if count.constant is None or count.constant >= FEWEST_ROWS:
            return tuple(ranges[:n])
    return ()
