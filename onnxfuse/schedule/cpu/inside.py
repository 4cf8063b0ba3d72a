"""Layouts of values inside a kernel, as those read them that come later, and of constants, as loops read them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.layout import Layout, Permute, contiguous_along
from onnxfuse.ir.scalar import Load, Reduce
from onnxfuse.lower import has_reduction
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.contract import recognise, worth_tiles
from onnxfuse.schedule.analysis.memory import Nest, Place
from onnxfuse.schedule.nests.nest import fills_half
from onnxfuse.schedule.nests.tiled import Tiled


def layout_inside(
    d: Definition, nest: Nest, tiled: Tiled | None, later: Sequence[Definition], constants: Container[str]
) -> dict[str, Layout]:
    """The layout of an intermediate value, if it is not row-major: of what `later` definitions need, or tiles make."""
    free = not tiled.batch if tiled is not None else not has_reduction(nest.value)
    found = _summed_last(d, later, constants) if free else {}
    return found or (_columns_last(d, nest, tiled.columns, later) if tiled is not None else {})


def _summed_last(d: Definition, later: Sequence[Definition], constants: Container[str]) -> dict[str, Layout]:
    """The layout of an intermediate value that later contractions reduce along one dimension: that one contiguous.

    Not for sums of squares, nor for those too short for tiles, which have vector lanes over free axes.
    """
    reads = [
        (r, n) for other, r, n in _reduced(d.name, later) if _is_product(other, r) and _has_tiles(other, constants)
    ]
    dims = {i for r, n in reads for i, e in enumerate(n.index) if axes_of(e) & set(r.ranges)}
    if len(dims) != 1 or dims == {len(d.axes) - 1}:
        return {}
    (dim,) = dims
    return {d.name: Layout((Permute((*(i for i in range(len(d.axes)) if i != dim), dim)),))}


def _columns_last(d: Definition, nest: Nest, columns: Sequence[Axis], later: Sequence[Definition]) -> dict[str, Layout]:
    """The layout of a value of register tiles whose rows are all reduced: columns contiguous, as tiles have them.

    So is the maximum over the positions of an image: its channels are lanes. Not where something else reads the value.
    """
    last = tuple(i for i, e in enumerate(nest.dims) if axes_of(e) & set(columns))
    rows = tuple(i for i, e in enumerate(nest.dims) if i not in last)
    reads = _reduced(d.name, later)
    everywhere = sum(n.source == d.name for other in later for n in loads(other.value))
    if not reads or len(reads) != everywhere or not rows or not last or rows[-1] < last[0]:
        return {}
    reduced = [{i for i, e in enumerate(n.index) if axes_of(e) & set(r.ranges)} for _, r, n in reads]
    inner = next((i for i in reversed(rows) if d.shape[i] != ONE), None)
    if any(_is_product(other, r) for other, r, _ in reads) or any(inner not in at or at & set(last) for at in reduced):
        return {}
    return {d.name: Layout((Permute((*rows, *last)),))}


def _reduced(name: str, later: Sequence[Definition]) -> list[tuple[Definition, Reduce, Load]]:
    """The loads of a value in reductions, with these and the definitions that they are in."""
    found = [(other, r) for other in later for r in walk(other.value) if isinstance(r, Reduce)]
    return [(other, r, n) for other, r in found for b in r.body for n in loads(b) if n.source == name]


def _is_product(d: Definition, x: Reduce) -> bool:
    """Whether a sum in a definition is a contraction, one factor of which is invariant along some axis."""
    c = contraction_of(tuple(a for a in d.axes if a.extent != ONE), x)
    return c is not None and bool(c.rows or c.columns)


def _has_tiles(d: Definition, constants: Container[str]) -> bool:
    """Whether the contraction in a definition is computed by register tiles, as far as is known."""
    found = recognise(d, constants)
    return found is None or worth_tiles(found, constants)


def along_result(
    nest: Nest,
    places: Mapping[str, Place],
    layouts: Container[str],
    shapes: Mapping[str, tuple[Index, ...]],
    constants: Container[str],
) -> dict[str, Layout]:
    """The layouts of constants that are read along the result's contiguous axis: with that axis last.

    Not if they have a layout, or another value is read along the axis that is last, as in the mean of a row of sums,
    unless that axis is too short for vectors along it.
    """
    last = _contiguous(nest, places)
    found: dict[str, Layout] = {}
    for load in loads(nest.value):
        known = load.source in layouts or load.source in found
        if load.source not in constants or known or len(load.index) < 2 or last is None:
            continue
        others = [x for x in loads(nest.value) if x.source != load.source and x.source in places]
        layout = contiguous_along(last, load.index, shapes[load.source])
        if layout is not None and not any(_runs_with(places[x.source].offset(x.index), load.index[-1]) for x in others):
            found[load.source] = layout
    return found


def along_sum(
    nest: Nest,
    places: Mapping[str, Place],
    layouts: Container[str],
    shapes: Mapping[str, tuple[Index, ...]],
    constants: Container[str],
) -> dict[str, Layout]:
    """The layouts of constants that weigh what a sum reads along one of its axes: with that axis last.

    That axis has the vectors where it is worth them, and nothing is read along the result's contiguous axis: one filter
    over an image with channels last. Not if they have a layout.
    """
    last = _contiguous(nest, places)
    found: dict[str, Layout] = {}
    for x in (x for x in walk(nest.value) if isinstance(x, Reduce)):
        stored = [n for b in x.body for n in loads(b) if n.source in places]
        read = [n for n in stored if n.source not in constants or n.source not in layouts]
        offsets = {n: places[n.source].offset(n.index) for n in read}
        images = [e for n, e in offsets.items() if n.source not in constants]
        lanes = [a for a in x.ranges if fills_half(a) and images and all(coefficient(e, a) == ONE for e in images)]
        if len(lanes) != 1 or (last is not None and any(coefficient(e, last) == ONE for e in offsets.values())):
            continue
        for load in read:
            known = load.source in found or coefficient(offsets[load], lanes[0]) == ONE
            if load.source in constants and not known and len(load.index) > 1:
                layout = contiguous_along(lanes[0], load.index, shapes[load.source])
                found |= {load.source: layout} if layout is not None else {}
    return found


def _contiguous(nest: Nest, places: Mapping[str, Place]) -> Axis | None:
    """The axis along which the result is contiguous."""
    place = places.get(nest.name)
    offset = place.offset(nest.dims) if place is not None else ZERO
    return next((a for a in nest.axes if coefficient(offset, a) == ONE), None)


def _runs_with(offset: Index, last: Index) -> bool:
    """Whether an offset has stride 1 in the axis that `last` consists of, and that axis is worth vectors along it."""
    return any(Index.of(a) == last and coefficient(offset, a) == ONE and fills_half(a) for a in axes_of(last))
