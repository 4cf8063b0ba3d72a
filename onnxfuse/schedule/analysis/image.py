"""Materialises the image that windows read: each element is computed once, however many windows overlap it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, replaced, substitute_axes, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Div, Index, Least, Mod, atoms, axes_of, lower, operands_of, upper
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.layout import PLAIN, Layout, channels_last
from onnxfuse.ir.scalar import Guard, Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.canonical import Canonical

IMAGES = (3, 4, 5)  # dimensions of an image
Place = tuple[Axis, Axis, Index]  # row axis, reduction axis, position: stride * row + dilation * range


def images_inside(c: Canonical) -> dict[str, Layout]:
    """Layouts of intermediate images: channels last if they have as many channels as a channels-last parameter.

    Or if no image has so many: then they are between two convolutions, whose images are channels last. Beside a
    recurrence there are no images: its values have as many axes.
    """
    if any(d.recurrent for d in c.definitions):
        return {}
    params = (*c.inputs, *c.outputs)
    between = any(p.layout == channels_last(len(p.shape)) for p in params if len(p.shape) in IMAGES)
    found: dict[str, Layout] = {}
    for d in c.definitions:
        last = channels_last(len(d.axes)) if len(d.axes) in IMAGES else PLAIN
        alike = [p for p in params if len(p.shape) == len(d.axes) and p.shape[:2] == d.shape[:2]]
        plain = any(p.layout == PLAIN and p.shape == d.shape for p in params)
        if last != PLAIN and (any(p.layout == last for p in alike) or (between and not alike)) and not plain:
            found[d.name] = last
    return {name: layout for name, layout in found.items() if all(p.name != name for p in params)}


def image_of(
    name: str, x: Scalar, batch: Sequence[Axis], rows: Sequence[Axis], ranges: Sequence[Axis]
) -> tuple[Definition, tuple[Index, ...]] | None:
    """The definition of image `name` that `x` reads, and the load of it; None if x reads no windows.

    There is an image for each batch, channels last, so that windows of a line are contiguous. x reads windows where a
    row axis and a reduction axis occur only in one sum, which is the position in the image.
    """
    places = _places(x, rows, ranges)
    if not places:
        return None
    moved = {a for row, step, _ in places for a in (row, step)}
    outer, inner = ([a for a in axes if a not in moved] for axes in ((*batch, *rows), ranges))
    read = (*map(Index.of, outer), *(at for _, _, at in places), *map(Index.of, inner))
    limits = [(low, most) for low, most in ((lower(at), upper(at)) for at in read) if low is not None is not most]
    if len(limits) != len(read):
        return None
    axes = tuple(Axis(f"{name}_{i}", most - low + 1) for i, (low, most) in enumerate(limits))
    here = {at: Index.of(axis) + low for at, axis, (low, _) in zip(read, axes, limits, strict=True)}
    values = {a: here[Index.of(a)] for a in (*outer, *inner)}
    for row, step, at in places:
        values |= {row: here[at], step: ZERO} if coefficient(at, row) == 1 else {row: ZERO, step: here[at]}
    made = substitute_axes(x, values)
    there = tuple(at - low for at, (low, _) in zip(read, limits, strict=True))  # descending taps begin below zero
    if substitute_axes(made, dict(zip(axes, there, strict=True))) != x:
        return None
    return Definition(name, axes, made), there


def padded_image(
    name: str, read: Load, shape: Sequence[Index], *, zeros: bool = True
) -> tuple[Definition, Load] | None:
    """The image `name` that contains the padding of a load, if any, and the load of it.

    Padding of unknown extent is not materialised, and none without `zeros`; the load keeps its guards then. None if the
    padding is not one constant, such as the next part of a Concat.
    """
    if read.otherwise is not None and any(axes_of(e) for e in indices_of(read.otherwise)):
        return None
    guards = {g.index: g for g in read.guards} if zeros else {}
    found = {e: (lower(e), upper(e)) for e in read.index if e in guards}
    ends = {e: (first, last) for e, (first, last) in found.items() if first is not None and last is not None}
    low = [ends[e][0] if e in ends else ZERO for e in read.index]
    extents = [
        ends[e][1] - ends[e][0] + 1 if e in ends else extent for e, extent in zip(read.index, shape, strict=True)
    ]
    axes = tuple(Axis(f"{name}_{i}", e) for i, e in enumerate(extents))
    index = tuple(Index.of(a) + first for a, first in zip(axes, low, strict=True))
    inside = tuple(Guard(index[i], guards[e].extent) for i, e in enumerate(read.index) if e in ends)
    value = simplify(Load(read.source, index, read.dtype, inside, read.otherwise))
    open_ends = tuple(g for g in read.guards if g.index not in ends)
    there = tuple(e - x for e, x in zip(read.index, low, strict=True))
    return Definition(name, axes, value), Load(
        name, there, read.dtype, open_ends, read.otherwise if open_ends else None
    )


def with_bent_images(c: Canonical) -> Canonical:
    """The group with a copy of each image that windows read through a border of it, reflected or repeated.

    Where an index is no linear function of a position, elements would be looked up one by one for each tap of a window.
    """
    made: list[Definition] = []
    for d in c.definitions:
        value, copies = d.value, list[Definition]()
        for read, ranges in dict.fromkeys(_windows(d.value)):
            image = _bent_image(f"{d.name}%bent{len(copies)}", read, frozenset(ranges))
            if image is not None:
                value = replaced(value, read, image[1])
                copies.append(image[0])
        made += [*copies, replace(d, value=value)]
    return replace(c, definitions=tuple(made))


def _windows(x: Scalar) -> Iterator[tuple[Load, tuple[Axis, ...]]]:
    """The unguarded loads of images in sums and other reductions, with their axes."""
    for found in (n for n in walk(x) if isinstance(n, Reduce)):
        for read in (n for b in found.body for n in loads(b)):
            if len(read.index) in IMAGES and not read.guards:
                yield read, found.ranges


def _bent_image(name: str, read: Load, ranges: frozenset[Axis]) -> tuple[Definition, Load] | None:
    """The image `name` that a load reads through its border, and the load of it; None if it reads no such image."""
    found = [(_bent(e, f"{name}_{i}") if axes_of(e) & ranges else None) for i, e in enumerate(read.index)]
    if not any(found):
        return None
    axes: list[Axis] = []
    there, index = list[Index](), list[Index]()
    for i, (e, bent) in enumerate(zip(read.index, found, strict=True)):
        axis, at, value = bent or _straight(e, f"{name}_{i}") or (None, e, e)
        if axis is None:
            return None
        axes.append(axis)
        there.append(at)
        index.append(value)
    image = Definition(name, tuple(axes), Load(read.source, tuple(index), read.dtype))
    return image, replace(read, source=name, index=tuple(there))


def _straight(e: Index, name: str) -> tuple[Axis, Index, Index] | None:
    """An axis for the values of an index, its value for this index, and the index at it; None if there is no limit."""
    low, most = lower(e), upper(e)
    if low is None or most is None:
        return None
    axis = Axis(name, most - low + 1)
    return axis, e - low, Index.of(axis) + low


def _bent(e: Index, name: str) -> tuple[Axis, Index, Index] | None:
    """The same for the one position that an index is a function of; None if it is linear, or no such function."""
    mine = sorted(axes_of(e), key=lambda a: a.name)
    for part in (part for a in atoms(e) if isinstance(a, Least) for part in operands_of(a)):
        steps = {a: coefficient(part, a) for a in mine}
        one = next((a for a in mine if steps[a] == ONE), None)
        if one is None or len(mine) < 2 or not all(s is not None and (s.constant or 0) > 0 for s in steps.values()):
            continue
        made = _straight(part - substitute(part, dict.fromkeys(mine, ZERO)), name)
        if made is not None:
            axis, at, here = made
            value = substitute(e, {a: here if a == one else ZERO for a in mine})
            if substitute(value, {axis: at}) == e:
                return axis, at, value
    return None


def _places(x: Scalar, rows: Sequence[Axis], ranges: Sequence[Axis]) -> tuple[Place, ...]:
    """Each position that is the sum of a row and a reduction axis; empty if an axis occurs in several positions."""
    found: dict[Place, None] = {}
    for e in (part for whole in indices_of(x) for part in _parts(whole)):
        for row in axes_of(e) & set(rows):
            for step in axes_of(e) & set(ranges):
                stride, dilation = coefficient(e, row), coefficient(e, step)
                if stride is not None and dilation is not None and 1 in (stride.constant, dilation.constant):
                    found[row, step, Index.of(row) * stride + Index.of(step) * dilation] = None
    used = [a for row, step, _ in found for a in (row, step)]
    ordered = sorted(found, key=lambda place: rows.index(place[0]))
    return tuple(ordered) if len(set(used)) == len(used) else ()


def _parts(e: Index) -> Iterator[Index]:
    """An index and the dividends in it."""
    yield e
    yield from (atom.num for atom in atoms(e) if isinstance(atom, (Div, Mod)))
