"""Rows of scatters, inverted to gathers: for each element of the result a table says which update lands there."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from onnxfuse.ir.compose import inside
from onnxfuse.ir.index import Index, Table, entry
from onnxfuse.ir.indexing import flatten, unflatten
from onnxfuse.ir.scalar import Guard
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import here

MOST = 1 << 18  # places that a table may have
Array = np.ndarray[Any, Any]


def _places(view: View) -> Array:
    """The places, which must be constants; an update that is combined with what is there has no row."""
    found = view.array(1)
    if view.attr("reduction", "none") != "none":
        raise view.refuse("E-NO-KERNEL", f"reduction {view.attr('reduction', '')}")
    if found is None:
        raise view.computed(1)
    return found


def _static(view: View, extents: tuple[Index, ...]) -> tuple[int, ...]:
    """Extents as numbers."""
    sizes = [e.constant for e in extents]
    if any(n is None for n in sizes):
        raise view.unsized(f"extents {extents!r}, into which a table of places points, are symbols", extents)
    return tuple(n or 0 for n in sizes)


def _wrapped(view: View, places: Array, extents: Any) -> Array:
    """Places with negative ones counted from the end."""
    made = np.where(places < 0, places + extents, places)
    if (made < 0).any() or (made >= extents).any():
        raise view.refuse("E-INVALID", "a place lies outside of the tensor")
    return made


def _lands(view: View, table: Array, at: tuple[Index, ...]) -> Index:
    """The number of the update that lands at a place; -1 where none does."""
    if not 0 < table.size <= MOST:
        raise view.refuse("E-RESOURCE", f"a table of {table.size} places; 1 to {MOST} are looked up")
    return entry(Table(tuple(table.reshape(-1).tolist())), flatten(at, tuple(map(Index.of, table.shape))))


def scatter_elements(view: View) -> tuple[Definition, ...]:
    """ScatterElements with constant places: the last of several updates of an element stays."""
    have, places = view.shape(0), _places(view)
    along = view.axis(view.attr("axis", 0), len(have))
    (extent,) = _static(view, (have[along],))
    at = _wrapped(view, places, extent)
    table = np.full((*at.shape[:along], extent, *at.shape[along + 1 :]), -1, np.int64)
    order = np.arange(at.shape[along]).reshape([-1 if i == along else 1 for i in range(at.ndim)])
    np.put_along_axis(table, at, np.broadcast_to(order, at.shape), along)
    axes = view.axes(have)
    box = tuple(
        Guard(Index.of(a), Index.of(n)) for i, (a, n) in enumerate(zip(axes, at.shape, strict=True)) if i != along
    )
    update = _lands(view, table, here(axes))
    index = tuple(update if i == along else Index.of(a) for i, a in enumerate(axes))
    guards = (*(g for g in box if g.index.terms), Guard(update, Index.of(at.shape[along])))
    value = inside(guards, view.load(2, index), view.load(0, here(axes)))
    return (Definition(view.out(), axes, value),)


def scatter_nd(view: View) -> tuple[Definition, ...]:
    """ScatterND with constant places: the last of several updates of a slice stays."""
    have, places = view.shape(0), _places(view)
    width, outer = places.shape[-1], places.shape[:-1]
    extents = _static(view, have[:width])
    at = _wrapped(view, places, np.array(extents, np.int64)).reshape(-1, width)
    table = np.full(extents, -1, np.int64)
    table[tuple(at.T)] = np.arange(len(at))
    axes = view.axes(have)
    update = _lands(view, table, here(axes[:width]))
    index = (*unflatten(update, tuple(map(Index.of, outer))), *here(axes[width:]))
    guards = (Guard(update, Index.of(prod(outer))),)
    return (Definition(view.out(), axes, inside(guards, view.load(2, index), view.load(0, here(axes)))),)


ROWS: tuple[Row, ...] = (
    Row("ScatterElements", scatter_elements, shape_inputs=(1,)),
    Row("ScatterND", scatter_nd, shape_inputs=(1,)),
)
