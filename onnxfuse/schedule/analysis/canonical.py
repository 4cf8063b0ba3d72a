"""A lowered group under positional names, so that groups that compute the same become the same kernel."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import loads, rebuild, walk
from onnxfuse.ir.graph import TensorType
from onnxfuse.ir.index import ONE, Atom, Axis, Index, Loaded, Symbol, symbols_of
from onnxfuse.ir.indexing import transform
from onnxfuse.ir.kernel import Param
from onnxfuse.ir.layout import Layout, Reshape, Step
from onnxfuse.ir.scalar import Guard, Load, Reduce, Scalar
from onnxfuse.lower.extents import Sized, monomials, multiplied, polynomials
from onnxfuse.ops.spec import Definition


@dataclass(frozen=True, slots=True)
class Canonical:
    """Parameters in0.., out0.. and definitions v0.. (outputs under their parameter's name).

    `computed` symbols are expressions of other symbols; every condition is at least 0 in a valid call. `layouts` are
    those of intermediate values, where they are not row-major.
    """

    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    definitions: tuple[Definition, ...]
    symbols: tuple[Symbol, ...]
    computed: tuple[tuple[Symbol, Index], ...]
    conditions: tuple[Index, ...]
    layouts: tuple[tuple[str, Layout], ...] = ()
    apart: tuple[str, ...] = ()  # values that have phases of their own


def weights_of(definitions: Sequence[Definition], constants: Container[str]) -> frozenset[str]:
    """The constants that only sums read: these may be stored in another layout for register tiles."""
    inside: set[str] = set()
    outside: set[str] = set()
    for d in definitions:
        summed = {n for r in walk(d.value) if isinstance(r, Reduce) for b in r.body for n in loads(b)}
        inside |= {n.source for n in summed}
        outside |= {n.source for n in loads(d.value) if n not in summed}
    return frozenset(s for s in inside - outside if s in constants)


def canonical(group: Sized) -> Canonical:
    """Rename values, axes and symbols by position."""
    lowered, layouts = group.lowered, group.layouts
    symbols = _symbols(group)
    names = {v: f"in{i}" for i, v in enumerate(lowered.inputs)}
    names |= {v: f"out{i}" for i, v in enumerate(lowered.outputs)}
    for i, d in enumerate(lowered.definitions):
        names.setdefault(d.name, f"v{i}")
    rename = _Renamer(names, symbols)

    def param(value: str) -> Param:
        t: TensorType = lowered.types[value]
        layout = Layout(tuple(_step(s, rename) for s in layouts[value].steps)) if value in layouts else Layout()
        return Param(names[value], value, t.dtype, tuple(map(rename.index, t.shape)), layout)

    definitions = tuple(rename.definition(d, i) for i, d in enumerate(lowered.definitions))
    return Canonical(
        tuple(map(param, lowered.inputs)),
        tuple(map(param, lowered.outputs)),
        definitions,
        tuple(a for e in symbols.values() for m, _ in e.terms for a in m if isinstance(a, Symbol)),
        tuple((_symbol(symbols[s]), rename.index(e)) for s, e in group.computed.items()),
        tuple(e for d in lowered.demands for e in map(rename.index, d.conditions) if e.constant is None),
    )


def _symbol(e: Index) -> Symbol:
    """The symbol that an index consists of."""
    (((atom,), _),) = e.terms
    assert isinstance(atom, Symbol)
    return atom


def _step(step: Step, rename: _Renamer) -> Step:
    return Reshape(tuple(map(rename.index, step.shape))) if isinstance(step, Reshape) else step


def _symbols(group: Sized) -> dict[Symbol, Index]:
    """The canonical symbol of each symbol; symbols that only occur as a product share one for the product."""
    used = [*polynomials(group.lowered, group.layouts), *group.computed.values()]
    found = {s: None for e in used for s in sorted(symbols_of(e), key=lambda s: s.name)}
    products = {m for e in (*used, *map(Index.of, group.computed)) for m in monomials(e)}
    names: dict[Symbol, Index] = {}
    count = 0
    for s in found:
        if s not in names:
            others = [t for t in found if t != s and t not in names and multiplied(s, t, products)]
            names[s] = Index.of(Symbol(f"s{count}", min(t.least for t in (s, *others))))
            names |= dict.fromkeys(others, ONE)
            count += 1
    return names


class _Renamer:
    """Renames inside one lowered group."""

    def __init__(self, names: Mapping[str, str], symbols: Mapping[Symbol, Index]) -> None:
        self.names = names
        self.symbols = symbols
        self.axes: dict[Axis, Axis] = {}

    def index(self, e: Index) -> Index:
        return transform(e, self._atom)

    def _atom(self, atom: Atom) -> Index | None:
        if isinstance(atom, Symbol):
            return self.symbols.get(atom, Index.of(atom))
        if isinstance(atom, Axis):
            return Index.of(self.axes[atom])
        if isinstance(atom, Loaded):
            source = self.names.get(atom.source, atom.source)
            at, extent = tuple(map(self.index, atom.at)), self.index(atom.extent)
            return Index.of(replace(atom, source=source, at=at, extent=extent))
        return None

    def axis(self, a: Axis, name: str) -> Axis:
        self.axes[a] = Axis(name, self.index(a.extent))
        return self.axes[a]

    def definition(self, d: Definition, number: int) -> Definition:
        self.axes = {}
        axes = tuple(self.axis(a, f"v{number}_{k}") for k, a in enumerate(d.axes))
        ranges = dict.fromkeys(r for n in walk(d.value) if isinstance(n, Reduce) for r in n.ranges)
        for k, r in enumerate(ranges):
            self.axis(r, f"v{number}_r{k}")
        return Definition(self.names[d.name], axes, self.scalar(d.value), recurrent=d.recurrent)

    def scalar(self, x: Scalar) -> Scalar:
        def leaf(node: Scalar) -> Scalar | None:
            if isinstance(node, Reduce):
                ranges = tuple(self.axes[r] for r in node.ranges)
                return Reduce(node.combine, ranges, tuple(map(self.scalar, node.body)), node.dtype, node.slot)
            if isinstance(node, Load):
                guards = tuple(Guard(self.index(g.index), self.index(g.extent)) for g in node.guards)
                otherwise = self.scalar(node.otherwise) if node.otherwise is not None else None
                source = self.names.get(node.source, node.source)
                return Load(source, tuple(map(self.index, node.index)), node.dtype, guards, otherwise)
            return None

        return rebuild(x, leaf, self.index)
