"""Where a kernel's symbols come from: read off the dimensions of its inputs, or computed from what was read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import indices_of, walk
from onnxfuse.ir.extents import follows, linear, named, solved
from onnxfuse.ir.graph import Decision, TensorType
from onnxfuse.ir.index import Atom, Index, Symbol, symbols_of
from onnxfuse.ir.indexing import transform
from onnxfuse.ir.kernel import Computed, ExtentBind, Param
from onnxfuse.ir.layout import Layout, Reshape, Step
from onnxfuse.ir.scalar import Reduce
from onnxfuse.lower import Lowered
from onnxfuse.ops.spec import Demand, with_extents


@dataclass(frozen=True, slots=True)
class Sized:
    """A lowered group all of whose symbols can be told at launch; `computed` are those that follow from others."""

    lowered: Lowered
    layouts: Mapping[str, Layout]
    computed: Mapping[Symbol, Index]


def sized(lowered: Lowered, layouts: Mapping[str, Layout]) -> Sized | Decision:
    """The group over symbols that the dimensions of its inputs determine.

    Where a dimension is a sum of symbols that no input gives apart (past + new), the sum becomes the symbol: one of
    the others is written as what is left of it, and where that is all that was read, it is gone.
    """
    while True:
        storage = list(_storage(lowered, layouts))
        known = solved(storage)
        wanted = _wanted(lowered, layouts)
        computed = {s: e for s in wanted if s not in known and (e := follows(s, known.keys())) is not None}
        missing = [s for s in wanted if s not in known and s not in computed]
        if not missing:
            return Sized(lowered, layouts, computed)
        used = list(polynomials(lowered, layouts))
        rarest = sorted(missing, key=lambda s: sum(s in symbols_of(e) for e in used))
        change = _change(storage, rarest)
        if change is None:
            reason = f"the extent {missing[0]!r} cannot be read from any input of the group"
            return Decision("E-SHAPE-UNKNOWN", (), reason, "give --dim or --input-shape")
        lowered, layouts = _changed(lowered, layouts, *change)


def binds_of(
    symbols: Sequence[Symbol], computed: Mapping[Symbol, Index], inputs: Sequence[Param]
) -> tuple[ExtentBind | Computed, ...]:
    """For each symbol the input and dimension that it is read off, else what it is computed from."""
    spots: dict[Index, tuple[int, int]] = {}
    for i, p in enumerate(inputs):
        for axis, e in enumerate(p.storage):
            spots.setdefault(e, (i, axis))
    known = solved(spots)
    read = [ExtentBind(s, *spots[e], rest, factor) for s, (e, rest, factor) in known.items() if s in symbols]
    made = [Computed(s, e) for s, e in computed.items()]
    assert len(read) + len(made) == len(symbols), "schedule: a symbol has no bind"
    return (*read, *made)


def _storage(lowered: Lowered, layouts: Mapping[str, Layout]) -> Iterator[Index]:
    """The dimensions of the inputs as they are stored."""
    for value in lowered.inputs:
        yield from layouts.get(value, Layout()).shape(lowered.types[value].shape)


def polynomials(lowered: Lowered, layouts: Mapping[str, Layout]) -> Iterator[Index]:
    """Every extent and index of a group: those of its ends and their layouts first."""
    for value in (*lowered.inputs, *lowered.outputs):
        yield from lowered.types[value].shape
        if value in layouts:
            yield from (e for step in layouts[value].steps if isinstance(step, Reshape) for e in step.shape)
    for d in lowered.definitions:
        yield from d.shape
        yield from indices_of(d.value)
        yield from (r.extent for n in walk(d.value) if isinstance(n, Reduce) for r in n.ranges)
    yield from (e for d in lowered.demands for e in (d.extent, d.equals))


def _wanted(lowered: Lowered, layouts: Mapping[str, Layout]) -> list[Symbol]:
    found = {s: None for e in polynomials(lowered, layouts) for s in sorted(symbols_of(e), key=lambda s: s.name)}
    return list(found)


def _change(storage: Sequence[Index], missing: Sequence[Symbol]) -> tuple[Symbol, Index] | None:
    """A missing symbol and what it is over a new one that stands for a dimension."""
    for e in storage:
        for s in missing:
            parts = linear(e, s) if s in symbols_of(e) else None
            if parts is not None and parts[1] in (1, -1) and len(e.terms) > 1:
                rest, factor = parts
                return s, (Index.of(Symbol(repr(e))) - rest) * factor
    return None


def _changed(
    lowered: Lowered, layouts: Mapping[str, Layout], symbol: Symbol, value: Index
) -> tuple[Lowered, Mapping[str, Layout]]:
    """The group and its layouts with a symbol replaced everywhere."""
    return replaced(lowered, {symbol: value}), {v: _layout(layout, symbol, value) for v, layout in layouts.items()}


def _layout(layout: Layout, symbol: Symbol, value: Index) -> Layout:
    def step(s: Step) -> Step:
        return Reshape(tuple(over(e, {symbol: value}) for e in s.shape)) if isinstance(s, Reshape) else s

    return Layout(tuple(map(step, layout.steps)))


def over(e: Index, values: Mapping[Symbol, Index]) -> Index:
    """e with symbols replaced, those inside of formulas too."""

    def go(atom: Atom) -> Index | None:
        if isinstance(atom, Symbol) and atom in values:
            return values[atom]
        if isinstance(atom, Symbol) and atom.formula is not None and symbols_of(atom.formula) & values.keys():
            return transform(atom.formula, go)
        return None

    return named(transform(e, go))


def replaced(lowered: Lowered, values: Mapping[Symbol, Index]) -> Lowered:
    """A group with symbols replaced everywhere."""

    def extent(e: Index) -> Index:
        return over(e, values)

    types = {v: TensorType(t.dtype, tuple(map(extent, t.shape))) for v, t in lowered.types.items()}
    demands = tuple(Demand(extent(d.extent), extent(d.equals), d.or_one) for d in lowered.demands)
    made = tuple(with_extents(d, extent) for d in lowered.definitions)
    return replace(lowered, types=types, definitions=made, demands=demands)
