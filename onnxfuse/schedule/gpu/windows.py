"""Windows that overlap (depthwise convolutions, pools): each thread has a column of results, one below the other.

A thread loads a column of elements once, for one place across the window, and combines each with all results whose
windows have it there; both stay in registers. Threads side by side are at columns side by side, so that what they load
and store is coalesced, however rows are aligned. What lies between two columns is read again, from the first cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from onnxfuse.cost.gpu_windows import BLOCK, WindowSizes, best_height
from onnxfuse.ir.compose import indices_of, loads, rebuild, replaced, substitute_axes, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Buffer, Let, Phase, Stmt, Store
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, Reduce, Scalar, children, variable
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.gpu.builders import at, axis, loop
from onnxfuse.schedule.gpu.elements.flat import offset_of
from onnxfuse.schedule.gpu.thread_mapping import ThreadMapping, around, over_rows
from onnxfuse.schedule.gpu.writer import ThreadWriter, resolved
from onnxfuse.schedule.nests.align import AlignedJobs
from onnxfuse.schedule.nests.nest import Level, order_of
from onnxfuse.target import Gpu

MOST_TERMS = 256  # of a window
MANY = 1 << 20  # results, where their number is open
SUMS = "sums"


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A reduction over windows along an axis `down`: an element is at `step` * down + `apart` * along.

    `along` is one of its ranges, `across` are the others. `columns` are the parts of its body that depend on both axes
    in this way alone, `fixed` those that do not depend on `down`.
    """

    reduce: Reduce
    down: Axis
    along: Axis
    across: tuple[Axis, ...]
    step: int
    apart: int
    columns: tuple[Scalar, ...]
    fixed: tuple[Scalar, ...]


def window_phase(t: AlignedJobs, places: Mapping[str, Place], target: Gpu) -> Phase | None:
    """Jobs over the same axes, one of which reduces overlapping windows; None where none does."""
    if any(set(job.nest.axes) != set(t.shared) for job in t.jobs) or not t.shared:
        return None
    order = tuple(order_of(t.shared, offset_of(t.jobs[-1], places)))
    w = window_of([job.nest.value for job in t.jobs], order)
    if w is None:
        return None
    sizes = sizes_of(w, order)
    tall = best_height(sizes, target)
    extents = tuple(Index.of((a.extent.constant or 0) // tall) if a == w.down else a.extent for a in order)
    threads = ThreadMapping("thread", 1, BLOCK, 1)
    row, launch = over_rows(threads, product(extents), target.blocks)
    here = dict(zip(order, unflatten(Index.of(row), extents), strict=True))
    here[w.down] = here[w.down] * tall
    body = (*_combined(w, sizes, tall, here, places), *_stored(t, w, tall, here, places))
    held = {SUMS: (w.reduce.dtype, tall)}
    held |= {_column(n): (x.dtype, sizes.loaded(tall)) for n, x in enumerate(w.columns)}
    registers = tuple(Buffer(name, dtype, Index.of(size), "register") for name, (dtype, size) in held.items())
    return Phase((), ONE, registers, around(threads, row, body), launch=launch)


def window_of(values: Sequence[Scalar], order: Sequence[Axis]) -> SlidingWindow | None:
    """The one reduction in values over the axes `order`, if it is over windows that slide along one of them.

    Threads are side by side along the last axis, where each has one result.
    """
    reduces = list(dict.fromkeys(n for x in values for n in walk(x) if isinstance(n, Reduce)))
    if len(reduces) != 1 or len(reduces[0].body) != 1:
        return None
    (reduce,) = reduces
    terms = product([r.extent for r in reduce.ranges]).constant
    if MONOIDS[reduce.combine].numpy is None or terms is None or not 1 < terms <= MOST_TERMS:
        return None
    found = [w for down in order for along in reduce.ranges if (w := _window(reduce, down, along)) is not None]
    return max(
        found, key=lambda w: (w.down != order[-1], (w.along.extent.constant or 0) * w.apart / w.step), default=None
    )


def _window(reduce: Reduce, down: Axis, along: Axis) -> SlidingWindow | None:
    """A reduction with windows that overlap along these axes."""
    steps = set(_steps(reduce.body[0], down, along))
    if len(steps) != 1 or None in steps or down.extent.constant is None:
        return None
    ((step, apart),) = (each for each in steps if each is not None)
    columns = tuple(_largest(reduce.body[0], lambda x: _slides(x, down, along)))
    fixed = [x for x in _largest(reduce.body[0], lambda x: not _touches(x, down)) if any(loads(x))]
    across = tuple(r for r in reduce.ranges if r != along)
    left = replaced_all(reduce.body[0], {x: variable("%", x.dtype) for x in (*columns, *fixed)})
    return (
        None if _touches(left, down) else SlidingWindow(reduce, down, along, across, step, apart, columns, tuple(fixed))
    )


def _steps(x: Scalar, down: Axis, along: Axis) -> Iterator[tuple[int, int] | None]:
    """By how much indices in a value advance along both axes, where they depend on the first; None for others."""
    for e in indices_of(x):
        if down not in axes_of(e):
            continue
        pair = coefficient(e, down), coefficient(e, along)
        step, apart = (c.constant if c is not None else None for c in pair)
        if not step or not apart or step < 0 or apart < 0:
            yield None
            continue
        common = gcd(step, apart)
        yield step // common, apart // common


def _touches(x: Scalar, a: Axis) -> bool:
    return any(a in axes_of(e) for e in indices_of(x))


def _slides(x: Scalar, down: Axis, along: Axis) -> bool:
    """Whether all that depends on one of both axes depends on the other, and anything does."""
    found = [{down, along} & axes_of(e) for e in indices_of(x)]
    return any(found) and all(len(each) != 1 for each in found)


def _largest(x: Scalar, fits: Callable[[Scalar], bool]) -> Iterator[Scalar]:
    """The largest parts of a value that fit, each once."""
    if fits(x):
        yield x
        return
    for each in dict.fromkeys(children(x)):
        yield from _largest(each, fits)


def replaced_all(x: Scalar, values: Mapping[Scalar, Scalar]) -> Scalar:
    """A value with other values in the place of its parts."""
    return rebuild(x, values.get, lambda e: e)


def sizes_of(w: SlidingWindow, order: Sequence[Axis]) -> WindowSizes:
    """What the time of a window depends on; results along the last axis have a thread each."""
    along, across = w.along.extent.constant or 1, product([r.extent for r in w.across]).constant or 1
    extent = (w.down.extent.constant or 1) if w.down != order[-1] else 1
    results = product([a.extent for a in order]).constant or MANY
    before = sum(isinstance(n, Apply) for x in w.columns for n in walk(x)) - len(w.columns)
    return WindowSizes(results, extent, along, across, w.step, w.apart, len(w.columns), len(w.fixed), max(before, 0))


def _column(number: int) -> str:
    return f"column{number}"


def _combined(
    w: SlidingWindow, sizes: WindowSizes, tall: int, here: Mapping[Axis, Index], places: Mapping[str, Place]
) -> Iterator[Stmt]:
    """The reductions of a thread's results: for each place across the window a column, and what it is combined with."""
    v, first = axis("v", tall), MONOIDS[w.reduce.combine].init(w.reduce.dtype)[0]
    yield loop(v, "unroll", Store(SUMS, Index.of(v), first))
    p, k = axis("p", sizes.loaded(tall)), w.along

    def read(x: Scalar) -> Scalar:
        return substitute_axes(resolved(x, lambda _: None, places), here)

    columns = [Store(_column(n), Index.of(p), read(_at(x, w, Index.of(p)))) for n, x in enumerate(w.columns)]
    lets = [Let(f"%fixed{n}", read(x)) for n, x in enumerate(w.fixed)]
    names: dict[Scalar, Scalar] = {x: variable(f"%fixed{n}", x.dtype) for n, x in enumerate(w.fixed)}
    place = Index.of(v) * w.step + Index.of(k) * w.apart
    names |= {x: at(_column(n), place, x.dtype) for n, x in enumerate(w.columns)}
    value = replaced_all(w.reduce.body[0], names)
    sums = at(SUMS, Index.of(v), w.reduce.dtype)
    (merged,) = MONOIDS[w.reduce.combine].merge((sums,), (value,))
    made: tuple[Stmt, ...] = (
        loop(p, "unroll", *columns),
        loop(k, "unroll", *lets, loop(v, "unroll", Store(SUMS, Index.of(v), merged))),
    )
    for r in reversed(w.across):
        made = (loop(r, "unroll" if sizes.unrolled(tall) else "serial", *made),)
    yield from made


def _at(x: Scalar, w: SlidingWindow, place: Index) -> Scalar:
    """A part of a body that slides, at a place in the column below the first result of a thread."""

    def moved(e: Index) -> Index:
        if w.down not in axes_of(e):
            return e
        along = coefficient(e, w.along)
        assert along is not None
        return substitute(e, {w.along: ZERO}) + place * ((along.constant or 0) // w.apart)

    return rebuild(x, lambda _: None, moved)


def _stored(
    t: AlignedJobs, w: SlidingWindow, tall: int, here: Mapping[Axis, Index], places: Mapping[str, Place]
) -> tuple[Stmt, ...]:
    """What jobs make of each reduction, stored."""
    v = axis("v", tall)
    digits = {**here, w.down: here[w.down] + v}
    writer, made = ThreadWriter([], at=[[]]), dict[str, Scalar]()
    combined = at(SUMS, Index.of(v), w.reduce.dtype)

    def fill() -> None:
        for job in t.jobs:
            value = resolved(replaced(job.nest.value, w.reduce, combined), lambda load: made.get(load.source), places)
            mine = substitute_axes(value, digits)
            made[job.nest.name] = writer.value(mine)
            if job.nest.name in places:
                place = places[job.nest.name]
                dims = tuple(substitute(e, digits) for e in job.nest.dims)
                writer.store(Store(place.buffer, writer.index(place.offset(dims)), made[job.nest.name]))

    writer.loop([Level(v, "unroll")], (), fill)
    return tuple(writer.at[0])
