"""Binds the symbols of a group at launch: to dimensions of its inputs, or to formulas over those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import indices_of, walk
from onnxfuse.ir.extents import expanded, follows, linear, over, solved
from onnxfuse.ir.graph import TensorType
from onnxfuse.ir.index import ONE, Atom, Index, Loaded, Symbol, atoms, operands_of, symbols_of
from onnxfuse.ir.layout import Layout, Reshape, Step
from onnxfuse.ir.scalar import Reduce
from onnxfuse.lower.lowered import Lowered


@dataclass(frozen=True, slots=True)
class Sized:
    """A lowered group all of whose symbols can be bound at launch; `computed` are formulas over bound symbols."""

    lowered: Lowered
    layouts: Mapping[str, Layout]
    computed: Mapping[Symbol, Index]


def sized(lowered: Lowered, layouts: Mapping[str, Layout]) -> Sized | tuple[Symbol, ...]:
    """The group over symbols that the dimensions of its inputs determine; the undetermined symbols if there are any.

    Where a dimension is a sum of symbols that no input determines one by one (past + new), a new symbol stands for the
    sum, and one of its terms is substituted by the difference; often that term then cancels everywhere.
    """
    first: tuple[Symbol, ...] = ()
    while True:
        storage = list(_storage(lowered, layouts))
        known = solved(storage)
        wanted = _wanted(lowered, layouts)
        computed = {s: e for s in wanted if s not in known and (e := follows(s, known.keys())) is not None}
        missing = [s for s in wanted if s not in known and s not in computed]
        if not missing:
            return Sized(lowered, layouts, computed)
        first = first or tuple(missing)
        used = list(polynomials(lowered, layouts))
        rarest = sorted(missing, key=lambda s: sum(s in symbols_of(e) for e in used))
        change = _substitution(storage, rarest, [*used, *computed.values(), *map(Index.of, computed)])
        if change is None:
            return first
        lowered = replaced(lowered, change)
        layouts = {v: _layout(layout, change) for v, layout in layouts.items()}


def with_shapes(lowered: Lowered, layouts: Mapping[str, Layout], others: Mapping[str, TensorType | None]) -> Lowered:
    """The group with additional inputs, of which only the shapes are read, that determine its remaining symbols."""
    missing = sized(lowered, layouts)
    if isinstance(missing, Sized):
        return lowered
    wanted = {s for m in missing for s in symbols_of(expanded(Index.of(m)))}
    more: dict[str, TensorType] = {}
    for value, t in others.items():
        here = {s for e in t.shape for s in symbols_of(expanded(e))} if t is not None else set()
        if t is not None and value not in lowered.inputs and wanted & here:
            more[value] = t
            wanted -= here
    return replace(lowered, inputs=(*lowered.inputs, *more), types={**lowered.types, **more})


def _storage(lowered: Lowered, layouts: Mapping[str, Layout]) -> Iterator[Index]:
    """The dimensions of the inputs in storage."""
    for value in lowered.inputs:
        yield from layouts.get(value, Layout()).shape(lowered.types[value].shape)


def polynomials(lowered: Lowered, layouts: Mapping[str, Layout]) -> Iterator[Index]:
    """Every extent and index of a group: those of inputs, outputs and their layouts first."""
    for value in (*lowered.inputs, *lowered.outputs):
        yield from lowered.types[value].shape
        if value in layouts:
            yield from (e for step in layouts[value].steps if isinstance(step, Reshape) for e in step.shape)
    for d in lowered.definitions:
        yield from d.shape
        for e in indices_of(d.value):
            yield e
            yield from (a.extent for a in atoms(e) if isinstance(a, Loaded))
        yield from (r.extent for n in walk(d.value) if isinstance(n, Reduce) for r in n.ranges)
    yield from (e for d in lowered.demands for e in (d.extent, d.other))


def _wanted(lowered: Lowered, layouts: Mapping[str, Layout]) -> list[Symbol]:
    found = {s: None for e in polynomials(lowered, layouts) for s in sorted(symbols_of(e), key=lambda s: s.name)}
    return list(found)


def _substitution(
    storage: Sequence[Index], missing: Sequence[Symbol], used: Sequence[Index]
) -> dict[Symbol, Index] | None:
    """A substitution of undetermined symbols by a new one, which stands for a dimension or for a product in it."""
    for e in storage:
        for s in missing:
            parts = linear(e, s) if s in symbols_of(e) else None
            if parts is not None and parts[1] in (1, -1) and len(e.terms) > 1:
                rest, factor = parts
                return {s: (Index.of(Symbol(repr(e))) - rest) * factor}
    products = list(dict.fromkeys(m for e in used for m in monomials(e)))
    for s in missing:
        others = [t for t in missing if t != s and multiplied(s, t, products)]
        if others and any(s in mono for e in storage for mono, _ in e.terms):
            whole = Symbol("*".join(sorted(repr(t) for t in (s, *others))))
            return {s: Index.of(whole), **dict.fromkeys(others, ONE)}
    return None


def multiplied(s: Symbol, t: Symbol, products: Iterable[tuple[Atom, ...]]) -> bool:
    """Whether two symbols appear only as factors of the same product."""
    return all(m.count(s) == m.count(t) <= 1 for m in products)


def monomials(e: Index) -> Iterator[tuple[Atom, ...]]:
    """The monomials of e, including those inside its atoms."""
    for mono, _ in e.terms:
        yield mono
        for atom in mono:
            for inner in (*operands_of(atom), *((atom.extent,) if isinstance(atom, Loaded) else ())):
                yield from monomials(inner)


def _layout(layout: Layout, values: Mapping[Symbol, Index]) -> Layout:
    def step(s: Step) -> Step:
        return Reshape(tuple(over(e, values) for e in s.shape)) if isinstance(s, Reshape) else s

    return Layout(tuple(map(step, layout.steps)))


def replaced(lowered: Lowered, values: Mapping[Symbol, Index]) -> Lowered:
    """A group with symbols substituted everywhere."""

    def extent(e: Index) -> Index:
        return over(e, values)

    types = {v: TensorType(t.dtype, tuple(map(extent, t.shape))) for v, t in lowered.types.items()}
    demands = tuple(d.over(extent) for d in lowered.demands)
    made = tuple(d.over(extent, extent) for d in lowered.definitions)
    return replace(lowered, types=types, definitions=made, demands=demands)
