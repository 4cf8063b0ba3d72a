"""Algorithm variants of convolutions and pools: over the image, a padded copy, or one transposed to channels last.

The image is read as it comes, with the taps of a line spelled out, from a copy that has its padding written out, or
turned channels last inside of the kernel: there windows run along lanes whatever their stride and dilation, for two
copies. Which form takes least is for predictions to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import replace
from functools import reduce

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, rebuild, substitute_axes, walk
from onnxfuse.ir.index import ONE, Axis, Index, axes_of
from onnxfuse.ir.indexing import product
from onnxfuse.ir.kernel import Param
from onnxfuse.ir.layout import PLAIN, Layout, channels_last
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.canonical import Canonical
from onnxfuse.schedule.analysis.image import IMAGES, padded_image

LAST = "%last"  # behind the name of a value: the same with channels last
ROWS = "%rows"  # behind the name of a value: the same in rows
MOST_TAPS = 8  # side by side in a line that are spelled out
FEWEST_TURNED = 8  # elements of a row from which on blocks of rows are turned in registers


def forms_of(c: Canonical, weights: Container[str]) -> tuple[Canonical, ...]:
    """The group as it is, and where windows go over images of which lines lie side by side, in three other forms.

    Where one of image and result lies channels last and the other does not, it is that or the turned form. Where rows
    are read across the lines that they lie in, they are copied first in another form.
    """
    reads = [(d, read) for d, read, lie in _reads(c, weights) if lie == {PLAIN}]
    mixed = [(d, read) for d, read, lie in _reads(c, weights) if len(lie) > 1]
    plain = (_spelled(c, reads), _with_padding(c, reads)) if reads else ()
    turned = (_turned(c, weights, reads or mixed),) if reads or mixed else ()
    return tuple(dict.fromkeys((c, *plain, *turned, *_in_rows(c, weights))))


def _in_rows(c: Canonical, weights: Container[str]) -> Iterator[Canonical]:
    """The group with a copy of an input in rows, if its rows lie across lines and are reduced and read again.

    The copy is made row by row where it is read, or before, in blocks that are turned.
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
        if (p.shape[dim].constant or 0) >= FEWEST_TURNED:
            yield replace(beside, apart=(name,))


def _row_of(c: Canonical, p: Param) -> int | None:
    """The dimension of an input, not its last, along which everything goes that reduces or reads it; None where not."""
    reduced: set[int | None] = set()
    read: set[int | None] = set()
    for d in c.definitions:
        reduces = [x for x in walk(d.value) if isinstance(x, Reduce)]
        inner = [n for x in reduces for b in x.body for n in loads(b) if n.source == p.name]
        ranges = {r for x in reduces for r in x.ranges}
        reduced |= {_along(n, ranges) for n in inner}
        read |= {_along(n, {*d.axes[-1:]}) for n in loads(d.value) if n.source == p.name and n not in inner}
    (dim,) = reduced if reduced == read and len(read) == 1 else (None,)
    return dim if dim is not None and product(p.shape[dim + 1 :]) != ONE else None


def _along(load: Load, axes: Collection[Axis]) -> int | None:
    """The one dimension of what a load reads that one of these axes walks alone; None where there is none."""
    found = [i for i, e in enumerate(load.index) if axes_of(e) & {*axes}]
    plain = all(e.constant is not None or any(e == Index.of(a) for a in axes_of(e)) for e in load.index)
    return found[0] if len(found) == 1 and plain and not load.guards else None


def _in_order(x: Scalar, name: str, order: Sequence[int]) -> Scalar:
    """x with what it loads of a value from the copy of which the dimensions are in another order."""

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.source != name:
            return None
        return replace(node, source=name + ROWS, index=tuple(node.index[i] for i in order))

    return rebuild(x, leaf, lambda i: i)


def _spelled(c: Canonical, reads: Sequence[tuple[Definition, Load]]) -> Canonical:
    """The group with the taps that lie side by side in a line spelled out, so that padding can be told apart."""
    lines = {d.name: d.axes[-1] for d, _ in reads}
    made = [replace(d, value=_side_by_side(d.value, lines[d.name])) if d.name in lines else d for d in c.definitions]
    return replace(c, definitions=tuple(made))


def _side_by_side(value: Scalar, line: Axis) -> Scalar:
    """A value with the ranges of its reductions that run with a line, where they are short, spelled out."""

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
    """The group with copies of images in which their padding is written out."""
    shapes = {p.name: p.shape for p in c.inputs}
    made: list[Definition] = []
    for d in c.definitions:
        value, copies = d.value, list[Definition]()
        for load in dict.fromkeys(load for other, load in reads if other is d and load.guards):
            padded = padded_image(f"{d.name}%pad{len(copies)}", load, shapes[load.source])
            if padded is not None:
                value = _replaced(value, load, padded[1])
                copies.append(padded[0])
        made += [*copies, replace(d, value=value)]
    return replace(c, definitions=tuple(made))


def _turned(c: Canonical, weights: Container[str], reads: Sequence[tuple[Definition, Load]]) -> Canonical:
    """The group with its images turned channels last."""
    rank = len(reads[0][0].axes)
    ins = {p.name for p in c.inputs if p.name not in weights and _lies_by_channels(p, rank)}
    outs = {p.name for p in c.outputs if _lies_by_channels(p, rank)}
    inside = {d.name for d in c.definitions if len(d.axes) == rank} - {p.name for p in c.outputs}
    names = {name: name + LAST for name in ins | outs}
    before = tuple(_copy(p, p.name + LAST, p.name) for p in c.inputs if p.name in ins)
    behind = tuple(_copy(p, p.name, p.name + LAST) for p in c.outputs if p.name in outs)
    made = tuple(replace(d, name=names.get(d.name, d.name), value=_renamed(d.value, names.get)) for d in c.definitions)
    layouts = tuple((name, channels_last(rank)) for name in sorted({*names.values(), *inside}))
    return replace(c, definitions=(*before, *made, *behind), layouts=layouts)


def _lies_by_channels(p: Param, rank: int) -> bool:
    """Whether the lines of an image's channel lie side by side, and there are channels and lines to turn."""
    return _is_image(p, rank) and p.layout == PLAIN


def _is_image(p: Param, rank: int) -> bool:
    """Whether there are channels and lines to turn."""
    return len(p.shape) == rank > 1 and p.shape[1] != ONE and any(e != ONE for e in p.shape[2:])


def _reads(c: Canonical, weights: Container[str]) -> Iterator[tuple[Definition, Load, set[Layout]]]:
    """What windows that have the channels of the result read of images, and how these and the result lie."""
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


def _replaced(x: Scalar, old: Load, new: Load) -> Scalar:
    """x with a load replaced."""
    return rebuild(x, lambda n: new if n == old else None, lambda i: i)


def _renamed(x: Scalar, name: Callable[[str], str | None]) -> Scalar:
    """x with what it loads under other names."""

    def leaf(node: Scalar) -> Scalar | None:
        to = name(node.source) if isinstance(node, Load) else None
        if to is None or not isinstance(node, Load):
            return None
        otherwise = _renamed(node.otherwise, name) if node.otherwise is not None else None
        return replace(node, source=to, otherwise=otherwise)

    return rebuild(x, leaf, lambda i: i)
