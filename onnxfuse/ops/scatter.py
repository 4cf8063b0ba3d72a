"""Rows of scatters, in gather form: each result element is the input's, combined with all updates that hit it.

Constant destinations are inverted into a table from elements to updates. Other destinations are compared with the
element for every update; `lower/scatters.py` recognises this form, so that a kernel makes one sequential pass over the
updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from onnxfuse.ir.compose import inside
from onnxfuse.ir.dtype import BOOL, I64
from onnxfuse.ir.index import Axis, Index, IndexTable, Loaded, entry
from onnxfuse.ir.indexing import flatten, product, substitute, unflatten
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import FromIndex, Guard, Reduce, Scalar, apply, const
from onnxfuse.ir.unsupported import FLOATS
from onnxfuse.ops.lookup import loaded
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import At, here

MOST = 1 << 18  # entries of a table, at most
COMBINES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
Array = np.ndarray[Any, Any]


def _replaces(view: View) -> bool:
    """Whether updates overwrite elements (reduction="none")."""
    return bool(view.attr("reduction", "none") == "none")


def _tabled(view: View, extents: Sequence[Index], size: Index) -> Array | None:
    """The destinations as an array, where they are constants and a table of `size` entries is not too large."""
    static = all(e.constant is not None for e in extents) and 0 < (size.constant or 0) <= MOST
    return view.array(1) if static and _replaces(view) else None


def _wrapped(view: View, places: Array, extents: Any) -> Array:
    """Destinations, with negative ones counted from the end."""
    made = np.where(places < 0, places + extents, places)
    if (made < 0).any() or (made >= extents).any():
        raise view.refuse("E-INVALID", "an index is outside the tensor")
    return made


def _lands(table: Array, at: At) -> Index:
    """The number of the update that hits an element; -1 where none does."""
    return entry(IndexTable(tuple(table.reshape(-1).tolist())), flatten(at, tuple(map(Index.of, table.shape))))


def scatter_elements(view: View) -> tuple[Definition, ...]:
    """ScatterElements; without a reduction the last of several updates of an element wins."""
    have, shape = view.shape(0), view.shape(1)
    view.lengths("the shape of the places", shape, len(have))
    along = view.axis(view.attr("axis", 0), len(have))
    places = _tabled(view, have[along : along + 1], product((*shape[:along], have[along], *shape[along + 1 :])))
    if places is not None:
        return _elements_by_table(view, along, places)
    axes = view.axes(have)
    ranges = {i: Axis(f"{view.out()}:r{i}", shape[i]) for i in range(len(have)) if i == along or shape[i] != have[i]}
    at = tuple(Index.of(ranges.get(i, a)) for i, a in enumerate(axes))
    there = loaded(view, 1, at, have[along])
    spots = tuple((axes[i], there if i == along else Index.of(r)) for i, r in ranges.items())
    return _combined(view, axes, _Updates(tuple(ranges.values()), spots, at, axes))


def _elements_by_table(view: View, along: int, places: Array) -> tuple[Definition, ...]:
    have = view.shape(0)
    extent = have[along].constant or 0
    at = _wrapped(view, places, extent)
    table = np.full((*at.shape[:along], extent, *at.shape[along + 1 :]), -1, np.int64)
    order = np.arange(at.shape[along]).reshape([-1 if i == along else 1 for i in range(at.ndim)])
    np.put_along_axis(table, at, np.broadcast_to(order, at.shape), along)
    axes = view.axes(have)
    box = tuple(
        Guard(Index.of(a), Index.of(n)) for i, (a, n) in enumerate(zip(axes, at.shape, strict=True)) if i != along
    )
    update = _lands(table, here(axes))
    index = tuple(update if i == along else Index.of(a) for i, a in enumerate(axes))
    guards = (*(g for g in box if g.index.terms), Guard(update, Index.of(at.shape[along])))
    value = inside(guards, view.load(2, index), view.load(0, here(axes)))
    return (Definition(view.out(), axes, value),)


def scatter_nd(view: View) -> tuple[Definition, ...]:
    """ScatterND; without a reduction the last of several updates of a slice wins."""
    have, shape = view.shape(0), view.ranked(1, 1)
    width = shape[-1].constant
    if not width:
        raise view.unsized(f"places of {shape[-1]!r} numbers", shape[-1:])
    if width > len(have):
        raise view.refuse("E-INVALID", f"tuples of {width} do not fit a tensor of rank {len(have)}")
    axes = view.axes(have)
    places = _tabled(view, have[:width], product(have[:width]))
    if places is not None:
        return _slices_by_table(view, axes, width, places)
    ranges = tuple(Axis(f"{view.out()}:r{i}", n) for i, n in enumerate(shape[:-1]))
    outer, name = here(ranges), view.node.inputs[1]
    spots = tuple((a, Index.of(Loaded(name, (*outer, Index.of(k)), a.extent))) for k, a in enumerate(axes[:width]))
    return _combined(view, axes, _Updates(ranges, spots, (*outer, *here(axes[width:])), axes[:width]))


def _slices_by_table(view: View, axes: tuple[Axis, ...], width: int, places: Array) -> tuple[Definition, ...]:
    outer, extents = places.shape[:-1], tuple(a.extent.constant or 0 for a in axes[:width])
    at = _wrapped(view, places, np.array(extents, np.int64)).reshape(-1, width)
    table = np.full(extents, -1, np.int64)
    table[tuple(at.T)] = np.arange(len(at))
    update = _lands(table, here(axes[:width]))
    index = (*unflatten(update, tuple(map(Index.of, outer))), *here(axes[width:]))
    guards = (Guard(update, Index.of(prod(outer))),)
    return (Definition(view.out(), axes, inside(guards, view.load(2, index), view.load(0, here(axes)))),)


@dataclass(frozen=True, slots=True)
class _Updates:
    """Updates over `ranges`: destinations along some axes of the result, the index of the update, and its own axes.

    Along result axes without a destination, an update hits the element with its own index. `apart` are the axes whose
    order decides which of several updates is the last.
    """

    ranges: tuple[Axis, ...]
    places: tuple[tuple[Axis, Index], ...]
    index: At
    apart: tuple[Axis, ...]

    @property
    def lands(self) -> Scalar:
        """Whether an update hits the element."""
        tests = (apply("equal", FromIndex(at, I64), FromIndex(Index.of(a), I64)) for a, at in self.places)
        return reduce(lambda one, two: apply("and", one, two), tests)

    def all(self, combine: str, value: Scalar) -> Scalar:
        """The combination of a value over all updates that hit the element."""
        (idle,) = MONOIDS[combine].init(value.dtype)
        body = apply("select", self.lands, value, idle)
        return Reduce(combine, self.ranges, (body,), value.dtype) if self.ranges else body


def _combined(view: View, axes: tuple[Axis, ...], updates: _Updates) -> tuple[Definition, ...]:
    """Each element combined with all updates that hit it."""
    if _replaces(view):
        return _replaced(view, axes, updates)
    combine, dtype = COMBINES[view.attr("reduction", "none")], view.dtype(0)
    if dtype == BOOL or (combine in ("sum", "prod") and dtype != dtype.accumulator):
        raise view.refuse("E-DTYPE", f"reduction of {dtype} elements is not supported", FLOATS)
    landed = updates.all(combine, view.load(2, updates.index))
    return (Definition(view.out(), axes, MONOIDS[combine].merge((view.load(0, here(axes)),), (landed,))[0]),)


def _replaced(view: View, axes: tuple[Axis, ...], updates: _Updates) -> tuple[Definition, ...]:
    """Each element, or the last update that hits it: the maximum of update numbers from 1 on, 0 where none does."""
    counts = tuple(r.extent for r in updates.ranges)
    name, count = f"{view.out()}%last", product(counts)
    number = updates.all("max", FromIndex(flatten(here(updates.ranges), counts) + 1, I64))
    found = Definition(name, updates.apart, apply("max", const(0, I64), number))
    last = Index.of(Loaded(name, here(updates.apart), count + 1)) - 1
    digits = dict(zip(updates.ranges, unflatten(last, counts), strict=True))
    update = view.load(2, tuple(substitute(e, digits) for e in updates.index))
    value = inside((Guard(last, count),), update, view.load(0, here(axes)))
    return found, Definition(view.out(), axes, value)


ROWS: tuple[Row, ...] = (
    Row("ScatterElements", scatter_elements),
    Row("ScatterND", scatter_nd),
)
