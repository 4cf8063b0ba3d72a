"""Verification of definition before use: names, buffers, and the scopes and monoids of reductions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import fields
from typing import assert_never

from onnxfuse.ir.compose import indices_of, sources, walk
from onnxfuse.ir.index import ZERO, Index, axes_of, symbols_of
from onnxfuse.ir.indexing import looked_up, product
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    HorizontalReduce,
    Kernel,
    Let,
    Loop,
    Pack,
    Phase,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
    When,
    statements,
)
from onnxfuse.ir.launch import (
    Asynchronous,
    BeginArrivals,
    Commit,
    CopyAsync,
    CopyBox,
    Mma,
    Sync,
    Wait,
    WaitArrival,
    WaitProducts,
    WarpgroupMma,
)
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.ir.tile import Ahead, Coding, Packed, Panel, Pointers, Quantized, Tile

TILE_PARTS = (Ahead, Coding, Packed, Panel, Pointers, Quantized)


def disorder(kernel: Kernel) -> tuple[str, ...]:
    """Duplicate and undefined names, uses before definitions, reads before stores, and outputs that nothing stores."""
    found = dict.fromkeys(_kinds(kernel))
    found |= dict.fromkeys(f"{name} is read before anything is stored there" for name in early_reads(kernel))
    found |= dict.fromkeys(f"{name} is an output, and nothing is stored there" for name in _left_out(kernel))
    found |= dict.fromkeys(_unnamed(kernel))
    return tuple(found)


def _left_out(kernel: Kernel) -> Iterator[str]:
    """Outputs with elements that no phase stores."""
    stored = {name for phase in kernel.phases for s in statements(phase.body) for name in _stored(s)}
    yield from (p.name for p in kernel.outputs if p.name not in stored and product(p.shape) != ZERO)


def _shared(kernel: Kernel) -> list[str]:
    return [*(p.name for p in (*kernel.inputs, *kernel.outputs)), *(b.name for b in kernel.scratch)]


def _kinds(kernel: Kernel) -> Iterator[str]:
    """Duplicate names of buffers, scopes and monoids of reductions that do not fit, and stores into inputs."""
    shared = _shared(kernel)
    inputs = {p.name for p in kernel.inputs}
    for phase in kernel.phases:
        names = Counter((*shared, *(b.name for b in phase.locals)))
        yield from (f"there are {n} buffers {name}" for name, n in names.items() if n > 1)
        if phase.launch is None:
            yield from _lanes(phase.body, vector=False)
        yield from _across(phase)
        for s in statements(phase.body):
            yield from (f"{name} is an input, and stored into" for name in _stored(s) if name in inputs)


def _lanes(body: tuple[Stmt, ...], *, vector: bool) -> Iterator[str]:
    """Reductions whose scope does not match their loops: lane if and only if a vector loop is inside."""
    for s in body:
        if isinstance(s, ReduceLoop):
            carried = not vector and any(isinstance(x, Loop) and x.kind == "vector" for x in statements(s.body))
            if carried != (s.scope == "lane"):
                expected, loop = ("lane", "contains a vector") if carried else ("serial", "contains no vector")
                expected, loop = ("serial", "is in a vector") if vector else (expected, loop)
                which = f"reduction of {', '.join(s.targets)}"
                yield f"scope of the {which} is {s.scope}, expected {expected}: the reduction {loop} loop"
        if isinstance(s, (Loop, ReduceLoop, When)):
            yield from _lanes(s.body, vector=vector or (isinstance(s, Loop) and s.kind == "vector"))


def _across(phase: Phase) -> Iterator[str]:
    """Vector accumulators in memory that are not reduced across their lanes, or by another monoid."""
    stored: dict[str, str] = {}  # monoids of the vector accumulators in each buffer
    reduced: set[str] = set()
    for s in statements(phase.body):
        if isinstance(s, ReduceLoop) and s.part is not None:
            stored[s.part[0]] = s.combine
        elif isinstance(s, HorizontalReduce):
            reduced.add(s.source)
            if stored.get(s.source) != s.combine:
                expected = f"{stored[s.source]} as its ReduceLoop" if s.source in stored else "a ReduceLoop before it"
                yield f"HorizontalReduce of {s.source} combines by {s.combine}, expected {expected}"
    yield from (
        f"vector accumulators in {buffer} have no HorizontalReduce" for buffer in stored if buffer not in reduced
    )


def early_reads(kernel: Kernel) -> tuple[str, ...]:
    """Buffers that are read before any store into them, in textual order.

    Local buffers are uninitialized when a phase begins. Loop-carried values have to be initialized before the loop.
    """
    made = {p.name for p in kernel.inputs}
    found: dict[str, None] = {}
    for phase in kernel.phases:
        made -= {b.name for b in phase.locals}
        _walk(phase.body, made, found)
    return tuple(found)


def _walk(body: tuple[Stmt, ...], made: set[str], found: dict[str, None]) -> None:
    for s in body:
        found.update(dict.fromkeys(name for name in _read(s) if name not in made))
        if isinstance(s, (Loop, ReduceLoop, When)):
            _walk(s.body, made, found)
        made.update(_stored(s))


class _Scope:
    """The names in scope: loop variables, variables, accumulators of open reductions, symbols and buffers."""

    def __init__(self, axes: set[str], symbols: frozenset[str], buffers: frozenset[str]) -> None:
        self.axes, self.symbols, self.buffers = axes, symbols, buffers
        self.binds: frozenset[Bind] = frozenset()
        self.variables: set[str] = set()
        self.reductions: dict[str, str] = {}  # accumulators, and the monoids of their reductions
        self.found: dict[str, None] = {}

    def inner(self, *axes: str) -> _Scope:
        """A nested scope with more axes."""
        made = copy(self)
        made.axes, made.variables = self.axes | {*axes}, set(self.variables)
        return made

    def declare(self, s: Loop | Bind) -> None:
        """Check that the name of an axis is not in scope, but for an equal Bind."""
        if s.axis.name in self.axes and s not in self.binds:
            self.found[f"the axis {s.axis.name} shadows another one of this name"] = None
        if isinstance(s, Bind):
            self.binds |= {s}

    def among(self, variables: tuple[str, ...]) -> _Scope:
        """A scope with more variables."""
        made = copy(self)
        made.variables = {*self.variables, *variables}
        return made

    def index(self, e: Index) -> None:
        """Check the names in an index."""
        missing = {a.name for a in axes_of(e)} - self.axes | {s.name for s in symbols_of(e)} - self.symbols
        self.found.update((f"{name} has no value yet in {e!r}", None) for name in sorted(missing))
        self.memory(looked_up(e))

    def memory(self, names: Iterable[str]) -> None:
        """Check the names of buffers."""
        self.found.update((f"there is no buffer {name}", None) for name in names if name not in self.buffers)

    def scalar(self, x: Scalar) -> None:
        """Check the names in a value."""
        for e in indices_of(x):
            self.index(e)
        for n in walk(x):
            if isinstance(n, Load) and not n.index and n.source not in self.variables:
                self.found[f"{n.source} has no value yet"] = None

    def parts(self, x: object) -> None:
        """Check the names in a statement's fields, except its body and declarations."""
        if isinstance(x, Index):
            self.index(x)
        elif isinstance(x, Guard):
            self.index(x.index)
            self.index(x.extent)
        elif isinstance(x, Scalar):
            self.scalar(x)
        elif isinstance(x, tuple):
            for each in x:
                self.parts(each)
        elif isinstance(x, TILE_PARTS):
            self.parts(tuple(getattr(x, f.name) for f in fields(x)))


def _unnamed(kernel: Kernel) -> Iterator[str]:
    """Uses of names without a definition."""
    symbols = frozenset(b.symbol.name for b in kernel.binds)
    shared = frozenset(_shared(kernel))
    for phase in kernel.phases:
        edges = {a.name for s in phase.splits for a in (s.first, s.last)}
        scope = _Scope(edges, symbols, shared | {b.name for b in phase.locals})
        for s in phase.splits:
            scope.inner().index(s.extent)
        _named(phase.body, scope)
        yield from scope.found


def _named(body: tuple[Stmt, ...], scope: _Scope) -> None:
    for s in body:
        declared = [s.row.name, *(a.name for a in s.segments)] if isinstance(s, RowPointer) else []
        declared += [s.row.name, s.k.name] if isinstance(s, Pack) else []
        here = scope.inner(*declared) if declared else scope
        for f in fields(s):
            if f.name == "merged" and isinstance(s, Accumulate):
                here.among(s.targets).parts(s.merged)
            elif f.name != "body":
                here.parts(getattr(s, f.name))
        scope.memory((s.buffer,) if isinstance(s, Prefetch) else _stored(s))
        match s:
            case Bind():
                scope.declare(s)
                scope.axes.add(s.axis.name)
            case Let():
                scope.variables.add(s.name)
            case Loop():
                scope.declare(s)
                _named(s.body, scope.inner(s.axis.name))
            case When():
                _named(s.body, scope.inner())
            case ReduceLoop():
                outer = scope.reductions
                scope.reductions = outer | dict.fromkeys(s.targets, s.combine)
                _named(s.body, scope)
                scope.reductions = outer
                scope.variables |= {*s.targets}
            case Accumulate():
                _accumulated(s, scope)
            case _:
                pass


def _accumulated(s: Accumulate, scope: _Scope) -> None:
    """Check that an accumulation is in its reduction, and combines as that does."""
    for t in s.targets:
        combine = scope.reductions.get(t)
        if combine is None:
            scope.found[f"{t} is accumulated into outside its reduction loop"] = None
        elif combine != s.combine:
            scope.found[f"{t} is accumulated by {s.combine}, expected {combine} as its ReduceLoop"] = None
    if len(s.values) != len(s.targets):
        scope.found[f"{len(s.values)} values are accumulated into {', '.join(s.targets)}"] = None


def _read(s: Stmt) -> Iterator[str]:
    """Buffers that a statement reads, nested statements excluded."""
    match s:
        case Let():
            yield from sorted(sources(s.value))
        case Accumulate() | Store():
            for value in s.values:
                yield from sorted(sources(value))
        case RowPointer():
            yield s.load.source
            yield from (s.padding,) if s.padding else ()
        case Pack():
            yield s.load.source
        case Tile():
            yield from (s.left.buffer, s.right.buffer if s.right.source is None else s.right.source.buffer)
        case HorizontalReduce() | CopyAsync():
            yield s.source
        case Mma():
            yield from (s.left, s.right, s.sums)
        case Asynchronous():
            yield from _read_beside(s)
        case Bind() | Loop() | ReduceLoop() | When() | Prefetch() | Sync() | Commit() | Wait():
            pass
        case _:
            assert_never(s)


def touched(s: Stmt) -> frozenset[str]:
    """Buffers that a statement reads or stores into, nested statements excluded."""
    return frozenset((*_read(s), *_stored(s)))


def _read_beside(s: Asynchronous) -> Iterator[str]:
    match s:
        case WarpgroupMma():
            yield from (s.left, s.right, s.sums)
        case WaitProducts():
            yield s.sums
        case CopyBox():
            yield from (s.source, s.arrivals)
        case WaitArrival():
            yield s.arrivals


def _stored(s: Stmt) -> tuple[str, ...]:
    """Buffers that a statement stores into, nested statements excluded."""
    match s:
        case Store():
            return (s.buffer,)
        case RowPointer():
            return (s.table,)
        case Tile(right=Panel(source=Pointers())):
            return (s.out, s.right.buffer)
        case Pack() | Tile():
            return (s.out,)
        case HorizontalReduce() | CopyAsync():
            return (s.target,)
        case Mma() | WarpgroupMma() | WaitProducts():
            return (s.sums,)
        case BeginArrivals() | WaitArrival():
            return (s.arrivals,)
        case CopyBox():
            return (s.target,)
        case ReduceLoop():
            return (s.part[0],) if s.part is not None else ()
        case Let() | Accumulate() | Bind() | Loop() | When() | Prefetch() | Sync() | Commit() | Wait():
            return ()
        case _:
            assert_never(s)
