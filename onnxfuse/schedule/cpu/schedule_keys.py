"""What the choice among schedules of a contraction depends on, without names: contractions that are alike share it.

A plan is searched by pricing many groups, most of which have a contraction in common with groups priced before. The
choice considers only the buffers that the contraction itself reads and writes, not those of the rest of the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxfuse.ir.compose import indices_of, rebuild
from onnxfuse.ir.index import Atom, Axis, Entry, Index, Loaded, Symbol, atoms, symbols_of
from onnxfuse.ir.indexing import product, transform
from onnxfuse.ir.kernel import Buffer, Kernel
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.cpu.candidates import CostRanking
from onnxfuse.schedule.nests.jobs import Job


def buffers_of(job: Job) -> frozenset[str]:
    """The names of the values that a job reads and writes."""
    return frozenset((*(x.source for x in job.reads), *job.looks_up, job.nest.name))


def restricted(ranking: CostRanking, values: Sequence[Buffer], names: frozenset[str]) -> CostRanking:
    """The ranking for a kernel with the parameters and intermediate `values` of these names only."""
    kernel = ranking.kernel
    inputs, outputs = (tuple(p for p in part if p.name in names) for part in (kernel.inputs, kernel.outputs))
    scratch = tuple(b for b in values if b.name in names)
    own = Kernel(inputs, outputs, scratch, (), ())
    return replace(ranking, kernel=own)


def form_of(job: Job, places: Mapping[str, Place], own: CostRanking) -> Hashable | None:
    """A value that is equal for contractions that are alike; None where an element decides which others are read."""
    t, nest = job.tiled, job.nest
    assert t is not None
    scalars = (nest.value, t.finish, *t.lefts, t.right, *(t.zeros or ()))
    indices = [*nest.dims, *(e for x in scalars for e in indices_of(x))]
    if any(isinstance(a, (Entry, Loaded)) for e in indices for a in atoms(e)):
        return None
    params = (*own.kernel.inputs, *own.kernel.outputs)
    extents = [a.extent for a in (*nest.axes, *t.rows, *t.columns, *t.ranges, *t.segments)]
    shapes = [e for p in params for e in (*p.shape, *p.storage)] + [b.size for b in own.kernel.scratch]
    used = {s for e in (*indices, *extents, *shapes) for s in symbols_of(e)}
    computed = [(s, e) for s, e in own.computed if s in used]
    names = _Names(places, _renamed(used.union(*(symbols_of(e) for _, e in computed))))
    axes = tuple(
        map(names.axes, (nest.axes, t.batch, t.rows, t.columns, t.ranges, t.segments, t.panels or (), t.lines or ()))
    )
    sides = tuple((names.scalar(x), names.offset(x)) for x in (*t.lefts, t.right))
    parts = tuple((names.axes((p.axis,)), p.begin) for p in t.parts)
    finish = names.scalar(t.finish)
    zeros = tuple(map(names.scalar, t.zeros or ()))
    stored = (tuple(map(names.index, (*nest.dims, *nest.shape))), nest.dtype)
    place = places.get(nest.name)
    at = None if place is None else names.index(place.offset(nest.dims))
    names.source(nest.name)
    known = [(p.name, p.dtype, names.index(product(list(p.storage))), p.name in own.weights) for p in params]
    known += [(b.name, b.dtype, names.index(b.size), False) for b in own.kernel.scratch]
    buffers = frozenset((names.source(name), *rest) for name, *rest in known)
    open_ = frozenset(names.index(e) for p in params for e in p.shape if e.constant is None)
    formulas = tuple((names.index(Index.of(s)), names.index(e)) for s, e in computed)
    around = (buffers, open_, formulas, bool(own.symbols), own.target, own.run_weight_bytes)
    loads = tuple(names.offset(x) for x in job.reads)
    return (
        axes,
        sides,
        parts,
        finish,
        zeros,
        stored,
        at,
        loads,
        names.index(t.length),
        t.product,
        names.index(t.pitch),
        t.lines is None,
        t.channels,
        around,
    )


def _renamed(symbols: Collection[Symbol]) -> dict[Symbol, Index]:
    """Names for symbols by their rank: what is assumed of symbols depends on the order of their names at most."""
    plain = sorted((s for s in symbols if s.formula is None), key=lambda s: s.name)
    if len(plain) < len(symbols):
        return {}
    return {s: Index.of(Symbol(f"s{at:03}", s.least)) for at, s in enumerate(plain)}


@dataclass(slots=True)
class _Names:
    """Numbers for values and axes in the order in which they are met."""

    places: Mapping[str, Place]
    symbols: Mapping[Symbol, Index]
    sources: dict[str, str] = field(default_factory=dict)
    known: dict[Axis, Axis] = field(default_factory=dict)

    def source(self, name: str) -> str:
        return self.sources.setdefault(name, f"b{len(self.sources)}")

    def axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple(map(self.axis, axes))

    def axis(self, a: Axis) -> Axis:
        if a not in self.known:
            self.known[a] = Axis(f"a{len(self.known)}", self.index(a.extent))
        return self.known[a]

    def index(self, e: Index) -> Index:
        return transform(e, self._atom)

    def _atom(self, atom: Atom) -> Index | None:
        if isinstance(atom, Symbol):
            return self.symbols.get(atom)
        return Index.of(self.axis(atom)) if isinstance(atom, Axis) else None

    def offset(self, x: Load) -> Index | None:
        """Where a load reads in its buffer."""
        place = self.places.get(x.source)
        return None if place is None else self.index(place.offset(x.index))

    def scalar(self, x: Scalar) -> Scalar:
        def leaf(n: Scalar) -> Scalar | None:
            if not isinstance(n, Load):
                return None
            guards = tuple(Guard(self.index(g.index), self.index(g.extent)) for g in n.guards)
            otherwise = self.scalar(n.otherwise) if n.otherwise is not None else None
            return Load(self.source(n.source), tuple(map(self.index, n.index)), n.dtype, guards, otherwise)

        return rebuild(x, leaf, self.index)
