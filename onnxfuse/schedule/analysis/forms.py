"""Algorithm variants of convolutions and pools: over the image, a padded copy, or one transposed to channels last.

The variants are: read the image in place with the taps of a line unrolled; read a copy with explicit padding; or
transpose to channels last inside the kernel, at the cost of two copies, so that vector lanes are channels whatever the
stride and dilation. The cost model chooses among them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, rebuild, replaced, substitute_axes, walk
from onnxfuse.ir.index import ONE, Axis, Index, axes_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Param
from onnxfuse.ir.layout import PLAIN, Layout, channels_last
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.canonical import Canonical
from onnxfuse.schedule.analysis.image import IMAGES, padded_image
from onnxfuse.schedule.analysis.two_stage import in_parts

LAST = "%last"  # suffix of a value's name: its copy with channels last
ROWS = "%rows"  # suffix of a value's name: its copy in contiguous rows
MOST_TAPS = 8  # along a line, up to which they are unrolled
FEWEST_TRANSPOSED = 8  # elements of a row, at least, for blocks of rows to be transposed in registers


def forms_of(c: Canonical, weights: Container[str]) -> tuple[Canonical, ...]:
    """The group itself, and for windows over channels-first images three variants of it.

    Where only one of image and result is channels last, the variants are the group itself and the transposed one. Where
    rows are read along a strided dimension, one variant copies them to contiguous rows first. One reduces whole tensors
    row by row.
    """
    reads = [(d, read) for d, read, lie in _reads(c, weights) if lie == {PLAIN}]
    mixed = [(d, read) for d, read, lie in _reads(c, weights) if len(lie) > 1]
    plain = (_with_taps_unrolled(c, reads), _with_padding(c, reads)) if reads else ()
    channels_last = (_channels_last(c, weights, reads or mixed),) if reads or mixed else ()
    return tuple(dict.fromkeys((c, *plain, *channels_last, *_in_rows(c, weights), in_parts(c))))


def _in_rows(c: Canonical, weights: Container[str]) -> Iterator[Canonical]:
    """The group with an input copied to contiguous rows, if its rows are strided and are reduced and then read again.

    The copy is made row by row at its use, or ahead of it in transposed blocks.
    """
    for p in c.inputs:
        dim = _row_of(c, p) if p.name not in weights and p.layout == PLAIN else None
        if dim is None:
            continue
        order = (*(i for i in range(len(p.shape)) if i != dim), dim)
        name = p.name + ROWS
        axes = tuple(Axis(f"{name}_{i}", p.shape[i]) for i in order)
        there = {i: Index.of(a) for i, a in zip(order, axes, strict=True)}
        copy = Definition(name, axes, Load(p.name, tuple(there[i] for i in range(len(order))), p.dtype))
        made = (replace(d, value=_in_order(d.value, p.name, order)) for d in c.definitions)
        beside = replace(c, definitions=(copy, *made))
        yield beside
        if (p.shape[dim].constant or 0) >= FEWEST_TRANSPOSED:
            yield replace(beside, apart=(name,))


def _row_of(c: Canonical, p: Param) -> int | None:
    """The dimension of an input, other than its last, along which all reductions and reads run; None if they differ."""
    reduced: set[int | None] = set()
    read: set[int | None] = set()
    for d in c.definitions:
        reduces = [x for x in walk(d.value) if isinstance(x, Reduce)]
        inner = [n for x in reduces for b in x.body for n in loads(b) if n.source == p.name]
        ranges = {r for x in reduces for r in x.ranges}
        reduced |= {_walked_dimension(n, ranges) for n in inner}
        read |= {_walked_dimension(n, {*d.axes[-1:]}) for n in loads(d.value) if n.source == p.name and n not in inner}
    (dim,) = reduced if reduced == read and len(read) == 1 else (None,)
    return dim if dim is not None and product(p.shape[dim + 1 :]) != ONE else None


def _walked_dimension(load: Load, axes: Collection[Axis]) -> int | None:
    """The dimension of a load whose index is exactly one of these axes; None unless there is exactly one."""
    found = [i for i, e in enumerate(load.index) if axes_of(e) & {*axes}]
    plain = all(e.constant is not None or any(e == Index.of(a) for a in axes_of(e)) for e in load.index)
    return found[0] if len(found) == 1 and plain and not load.guards else None


def _in_order(x: Scalar, name: str, order: Sequence[int]) -> Scalar:
    """x with loads of a value replaced by loads of its copy with permuted dimensions."""

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.source != name:
            return None
        return replace(node, source=name + ROWS, index=tuple(node.index[i] for i in order))

    return rebuild(x, leaf, lambda i: i)


def _with_taps_unrolled(c: Canonical, reads: Sequence[tuple[Definition, Load]]) -> Canonical:
    """The group with the taps along a line unrolled, so that padded and unpadded parts become separate loops."""
    lines = {d.name: d.axes[-1] for d, _ in reads}
    made = [replace(d, value=_side_by_side(d.value, lines[d.name])) if d.name in lines else d for d in c.definitions]
    return replace(c, definitions=tuple(made))


def _side_by_side(value: Scalar, line: Axis) -> Scalar:
    """A value whose short reduction axes along a line are unrolled."""

    def go(x: Scalar) -> Scalar | None:
        if not isinstance(x, Reduce) or len(x.body) != 1:
            return None
        (body,) = x.body
        found = tuple(r for r in x.ranges if any({line, r} <= axes_of(e) for e in indices_of(body)))
        if not found or (product([r.extent for r in found]).constant or MOST_TAPS + 1) > MOST_TAPS:
            return None
        taps = itertools.product(*(range(r.extent.constant or 0) for r in found))
        places = (dict(zip(found, map(Index.of, tap), strict=True)) for tap in taps)
        terms = [simplify(substitute_axes(body, at)) for at in places]
        merged = reduce(lambda a, b: MONOIDS[x.combine].merge((a,), (b,))[0], terms)
        rest = tuple(r for r in x.ranges if r not in found)
        return replace(x, ranges=rest, body=(merged,)) if rest else merged

    return rebuild(value, go, lambda i: i)


def _with_padding(c: Canonical, reads: Sequence[tuple[Definition, Load]]) -> Canonical:
    """The group with copies of its images that contain the padding."""
    shapes = {p.name: p.shape for p in (*c.inputs, *c.outputs)}
    made: list[Definition] = []
    for d in c.definitions:
        value, copies = d.value, list[Definition]()
        for load in dict.fromkeys(load for other, load in reads if other is d and load.guards):
            padded = padded_image(f"{d.name}%pad{len(copies)}", load, shapes[load.source])
            if padded is not None:
                value = replaced(value, load, padded[1])
                copies.append(padded[0])
        made += [*copies, replace(d, value=value)]
    return replace(c, definitions=tuple(made))


def _channels_last(c: Canonical, weights: Container[str], reads: Sequence[tuple[Definition, Load]]) -> Canonical:
    """The group with its images transposed to channels last."""
    rank = len(reads[0][0].axes)
    used = {n.source for d in c.definitions for n in loads(d.value)}  # others only say sizes
    ins = {p.name for p in c.inputs if p.name in used and p.name not in weights and _is_channels_first(p, rank)}
    outs = {p.name for p in c.outputs if _is_channels_first(p, rank)}
    inside = {d.name for d in c.definitions if len(d.axes) == rank} - {p.name for p in c.outputs}
    names = {name: name + LAST for name in ins | outs}
    before = tuple(_copy(p, p.name + LAST, p.name) for p in c.inputs if p.name in ins)
    behind = tuple(_copy(p, p.name, p.name + LAST) for p in c.outputs if p.name in outs)
    made = tuple(replace(d, name=names.get(d.name, d.name), value=_renamed(d.value, names.get)) for d in c.definitions)
    layouts = tuple((name, channels_last(rank)) for name in sorted({*names.values(), *inside}))
    return replace(c, definitions=(*before, *made, *behind), layouts=layouts)


def _is_channels_first(p: Param, rank: int) -> bool:
    """Whether an image is stored channels first, and has several channels and lines."""
    return _is_image(p, rank) and p.layout == PLAIN


def _is_image(p: Param, rank: int) -> bool:
    """Whether a parameter is an image with several channels and lines."""
    return len(p.shape) == rank > 1 and p.shape[1] != ONE and any(e != ONE for e in p.shape[2:])


def _reads(c: Canonical, weights: Container[str]) -> Iterator[tuple[Definition, Load, set[Layout]]]:
    """The loads of images by windows that keep the result's channels, and the layouts of images and result."""
    params = {p.name: p for p in (*c.inputs, *c.outputs)}
    for d in c.definitions:
        rank = len(d.axes)
        results = [params[d.name]] if d.name in params else [p for p in c.outputs if _is_image(p, rank)]
        if rank not in IMAGES or not all(_is_image(p, rank) for p in results):
            continue
        for x in (x for x in walk(d.value) if isinstance(x, Reduce)):
            for read in (n for b in x.body for n in loads(b) if n.source in params and n.source not in weights):
                windows = any(axes_of(e) & set(x.ranges) and axes_of(e) & set(d.axes[2:]) for e in read.index[2:])
                if windows and _is_image(params[read.source], rank) and d.axes[1] in axes_of(read.index[1]):
                    yield d, read, {params[read.source].layout, *(p.layout for p in results)}


def _copy(p: Param, name: str, source: str) -> Definition:
    axes = tuple(Axis(f"{name}_{i}", e) for i, e in enumerate(p.shape))
    return Definition(name, axes, Load(source, tuple(map(Index.of, axes)), p.dtype))


def _renamed(x: Scalar, name: Callable[[str], str | None]) -> Scalar:
    """x with its loads renamed."""

    def leaf(node: Scalar) -> Scalar | None:
        to = name(node.source) if isinstance(node, Load) else None
        if to is None or not isinstance(node, Load):
            return None
        otherwise = _renamed(node.otherwise, name) if node.otherwise is not None else None
        return replace(node, source=to, otherwise=otherwise)

    return rebuild(x, leaf, lambda i: i)
