"""Reductions of much to few values, reduced along each of many rows first.

One value has no axis that threads could divide among them. Partial results of rows have one, and two reductions of the
same rows (the least and the greatest element, for a quantization) become one phase, with whatever makes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from onnxfuse.ir.compose import loads, rebuild, sources, substitute_axes, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.canonical import Canonical
from onnxfuse.schedule.analysis.memory import dense

Offsets = Mapping[str, Callable[[tuple[Index, ...]], Index]]  # of an element of an input in memory
PART = "%part"  # suffix of a value's name: what is reduced of it row by row
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
        value = rebuild(d.value, partial(_in_parts, d, parts, offsets), lambda i: i) if _few(d) else d.value
        at = max((i + 1 for i, m in enumerate(made) if any(m.name in sources(p.value) for p in parts)), default=0)
        made = [*made[:at], *parts, *made[at:], replace(d, value=value)]
    return replace(c, definitions=tuple(made))


def _few(d: Definition) -> bool:
    """Whether a definition has few values, or maybe few, each of much."""
    count = product(d.shape).constant
    if count is not None:
        return 0 < count < FEWEST_ROWS
    sizes = [product([r.extent for r in x.ranges]).constant for x in walk(d.value) if isinstance(x, Reduce)]
    return all(n is None or n > LONGEST for n in sizes)


def _in_parts(d: Definition, parts: list[Definition], offsets: Offsets, x: Scalar) -> Scalar | None:
    """A reduction of the results of its rows, whose definition joins `parts`; None for other expressions."""
    rows = _rows(x, offsets) if isinstance(x, Reduce) else ()
    if not rows or not isinstance(x, Reduce):
        return None
    name = f"{d.name}{PART}{len(parts)}"
    outer = [a for a in d.axes if a.extent != ONE]
    axes = tuple(Axis(f"{name}_{i}", a.extent) for i, a in enumerate((*outer, *rows)))
    there = dict.fromkeys(d.axes, ZERO) | dict(zip((*outer, *rows), map(Index.of, axes), strict=True))
    inner = tuple(r for r in x.ranges if r not in rows)
    (body,) = x.body
    parts.append(Definition(name, axes, replace(x, ranges=inner, body=(substitute_axes(body, there),))))
    return replace(x, ranges=rows, body=(Load(name, tuple(map(Index.of, (*outer, *rows))), x.dtype),))


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
