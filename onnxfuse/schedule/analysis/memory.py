"""Which buffer each value of a kernel is stored in, and definitions with their axes made affine."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace

from onnxfuse.ir.affine import split_axes
from onnxfuse.ir.compose import indices_of, rebuild, substitute_axes, walk
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, floor_div, modulo
from onnxfuse.ir.indexing import coefficient, flatten, substitute, transform
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.ir.scalar import Load, Reduce, Scalar
from onnxfuse.ops.spec import Definition

Shape = tuple[Index, ...]
Offset = Callable[[tuple[Index, ...]], Index]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is stored: a buffer, its dtype, and the flat offset (in elements) of a logical index."""

    buffer: str
    dtype: DType
    offset: Offset


def dense(buffer: str, dtype: DType, shape: Shape, layout: Layout = PLAIN) -> Place:
    """The place of a whole tensor in a buffer, in a layout (row-major by default)."""
    storage = layout.shape(shape)
    return Place(buffer, dtype, lambda index: flatten(layout.storage_index(index, shape), storage))


@dataclass(frozen=True, slots=True)
class Nest:
    """A definition with axes split until its indices are affine. `dims` is the logical index of an element.

    `output`: it is an output of the kernel, whose place is given.
    """

    name: str
    dtype: DType
    shape: Shape
    axes: tuple[Axis, ...]
    dims: tuple[Index, ...]
    value: Scalar
    output: bool = False

    def digits_at(self, index: tuple[Index, ...]) -> dict[Axis, Index]:
        """The values of the axes for a logical index."""
        found: dict[Axis, Index] = {}
        for dim, at, extent in zip(self.dims, index, self.shape, strict=True):
            for a in self.axes:
                stride = coefficient(dim, a)
                if stride is None or stride == ZERO:
                    continue
                digit = floor_div(at, stride)
                found[a] = digit if stride * a.extent == extent else modulo(digit, a.extent)
        return found


def nest_of(
    d: Definition, places: Mapping[str, Place], like: Mapping[str, Nest] = {}, blocks: Mapping[Axis, int] = {},
    uncut: Container[Axis] = (), cuts: Iterable[Index] = (),
) -> Nest:  # fmt: skip
    """A definition without unit axes, its other axes split where indices or storage offsets divide them.

    They are also split like the axes of the values it reads, if those have a nest in `like`, and where `cuts` divide
    them. Axes in `blocks` are only split into blocks of that many elements (the last axis of a block stays whole),
    those in `uncut` not at all.
    """
    unit = {a: ZERO for a in d.axes if a.extent == ONE}
    inside = {a: (Axis(f"{a.name}.b", floor_div(a.extent, Index.of(n))), Axis(f"{a.name}.j", Index.of(n)))
              for a, n in blocks.items() if a.extent != n}  # fmt: skip
    first = unit | {a: Index.of(b) * j.extent + j for a, (b, j) in inside.items()}
    axes = tuple(x for a in d.axes if a not in unit for x in inside.get(a, (a,)))
    whole = {inside[a][1] if a in inside else a for a in blocks} | {a for a in d.axes if a in uncut}
    value = substitute_axes(d.value, first)
    dims = tuple(first.get(a, Index.of(a)) for a in d.axes)
    for _ in range(4):
        ranges = tuple(dict.fromkeys(r for n in walk(value) if isinstance(n, Reduce) for r in n.ranges))
        indices = [*indices_of(value), *offsets_in(value, places), *_digits_in(value, like), *cuts]
        if d.name in places:
            indices.append(places[d.name].offset(dims))
        new_axes, values = split_axes(axes, indices, whole)
        _, range_values = split_axes(ranges, indices)
        if not values and not range_values:
            break
        axes = new_axes
        value = _split_ranges(substitute_axes(value, values), range_values)
        dims = tuple(substitute(e, values) for e in dims)
    return Nest(d.name, d.value.dtype, d.shape, axes, dims, value)


def _digits_in(x: Scalar, like: Mapping[str, Nest]) -> list[Index]:
    """The values of the axes of nests in `like` at the elements that x reads."""
    found = ((like[n.source], n.index) for n in walk(x) if isinstance(n, Load) and n.source in like)
    return [e for nest, index in found for e in nest.digits_at(index).values()]


def _split_ranges(x: Scalar, values: Mapping[Axis, Index]) -> Scalar:
    """x with reduction ranges split into their digits."""
    if not values:
        return x

    def go(node: Scalar) -> Scalar | None:
        if not isinstance(node, Reduce):
            return None
        ranges: list[Axis] = []
        for r in node.ranges:
            ranges.extend(_axes_in_order(values[r]) if r in values else (r,))
        body = tuple(_split_ranges(b, values) for b in node.body)
        return Reduce(node.combine, tuple(ranges), body, node.dtype, node.slot)

    return rebuild(x, go, lambda i: substitute(i, values))


def _axes_in_order(value: Index) -> list[Axis]:
    """Digits of a mixed-radix value, slowest first."""
    found = [(m, c) for m, c in value.terms]
    found.sort(key=lambda t: (-len(t[0]), -t[1]))
    return [a for m, _ in found for a in m if isinstance(a, Axis)]


def offsets_in(x: Scalar, places: Mapping[str, Place]) -> list[Index]:
    """Flat offsets of all loads in x from places that are known."""
    out: list[Index] = []
    for node in walk(x):
        if isinstance(node, Load) and node.source in places:
            out.append(places[node.source].offset(node.index))
    return out


def flat(x: Scalar, places: Mapping[str, Place]) -> Scalar:
    """x with every load replaced by a load at one flat offset, loads in indices included."""

    def on_index(e: Index) -> Index:
        def go(atom: object) -> Index | None:
            if not isinstance(atom, Loaded) or atom.source not in places:
                return None
            place = places[atom.source]
            at = tuple(on_index(i) for i in atom.at)
            return Index.of(replace(atom, source=place.buffer, at=(place.offset(at),)))

        return transform(e, go)

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.source not in places:
            return None
        place = places[node.source]
        offset = place.offset(tuple(on_index(i) for i in node.index))
        guards = tuple(type(g)(on_index(g.index), on_index(g.extent)) for g in node.guards)
        otherwise = flat(node.otherwise, places) if node.otherwise is not None else None
        return Load(place.buffer, (offset,), node.dtype, guards, otherwise)

    return rebuild(x, leaf, on_index)


def renamed(nest: Nest, names: Mapping[Axis, Axis]) -> Nest:
    """The nest with axes renamed to equal ones of other nests."""
    values = {a: Index.of(b) for a, b in names.items() if a != b}
    return replace(
        nest,
        axes=tuple(names.get(a, a) for a in nest.axes),
        dims=tuple(substitute(e, values) for e in nest.dims),
        value=substitute_axes(nest.value, values),
    )
