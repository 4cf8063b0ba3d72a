"""One value's loops: which axis is vectorised, what is computed at which level, and the statements that follow.

A value is placed at the outermost loop that it does not depend on beyond; loads and shared subexpressions become
variables there. A reduction becomes a fold at its own level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, atoms, axes_of, coefficient, substitute, transform
from onnxfuse.ir.kernel import Accumulate, Bind, Fold, Let, Loop, Stmt, Store
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar, children, cost, indices_of, substitute_axes, walk

CHEAP = 8.0  # vector operations below which a fold would wait for its own sums, so that four are carried
WIDE = ("sum", "prod", "max", "min")  # monoids that a vector may carry lane by lane


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a value goes. `also` are parts of it that are stored on the way, by the buffer and offset they go to."""

    buffer: str
    offset: Index
    value: Scalar
    also: Mapping[Scalar, tuple[str, Index]] = field(default_factory=dict, hash=False)

    def substituted(self, values: Mapping[Axis, Index]) -> Goal:
        """The goal with axes replaced."""
        also = {substitute_axes(x, values): (b, substitute(o, values)) for x, (b, o) in self.also.items()}
        return Goal(self.buffer, substitute(self.offset, values), substitute_axes(self.value, values), also)


@dataclass(frozen=True, slots=True)
class Level:
    """A loop to be opened."""

    axis: Axis
    kind: str = "serial"
    begin: Index = ZERO
    end: Index | None = None


def offsets_of(x: Scalar) -> list[Index]:
    """Flat offsets that x loads from."""
    return [n.index[0] for n in walk(x) if isinstance(n, Load) and n.index]


def _fitness(axis: Axis, offsets: Sequence[Index]) -> tuple[int, int, int]:
    """How well an axis vectorises: few strided accesses, then many contiguous ones, then its extent."""
    bad = good = 0
    for e in offsets:
        stride = coefficient(e, axis)
        if stride == ONE:
            good += 1
        elif stride is None or stride != ZERO:
            bad += 1
    extent = axis.extent.constant
    return (-bad, good, min(extent if extent is not None else 256, 64))


def vector_axis(axes: Sequence[Axis], offsets: Sequence[Index], guards: Sequence[Guard] = ()) -> Axis | None:
    """The axis to vectorise, or None when no axis is worth it."""
    guarded = {a for g in guards for a in axes_of(g.index)}
    open_axes = [a for a in axes if a.extent != ONE and (a.extent.constant is None or a.extent.constant > 1)]
    ranked = sorted(open_axes, key=lambda a: (a not in guarded, *_fitness(a, offsets)), reverse=True)
    return ranked[0] if ranked else None


def fused_axes(axes: tuple[Axis, ...], indices: Sequence[Index]) -> tuple[tuple[Axis, ...], dict[Axis, Index]]:
    """Adjacent axes that every index walks as one are made one; the values of the old axes in terms of the new."""
    out: list[Axis] = list(axes)
    values: dict[Axis, Index] = {}
    at = len(out) - 2
    while at >= 0:
        high, low = out[at], out[at + 1]
        if all(_walks_as_one(e, high, low) for e in indices):
            one = Axis(f"{high.name}*{low.name.rsplit(':', 1)[-1]}", high.extent * low.extent)
            split = {high: Index.of(one) // low.extent, low: Index.of(one) % low.extent}
            values = {a: transform(v, lambda x, s=split: s.get(x)) for a, v in values.items()} | split  # type: ignore[misc]  # bound as a default
            indices = [transform(e, lambda x, s=split: s.get(x)) for e in indices]  # type: ignore[misc]  # bound as a default
            out[at : at + 2] = [one]
        at -= 1
    return tuple(out), values


def indices_to_fuse(goal: Goal) -> list[Index]:
    """Every index that has to agree before two axes of a goal are made one."""
    return [goal.offset, *indices_of(goal.value), *(o for _, o in goal.also.values())]


def _walks_as_one(e: Index, high: Axis, low: Axis) -> bool:
    outer, inner = coefficient(e, high), coefficient(e, low)
    return outer is not None and inner is not None and outer == inner * low.extent


def order_of(axes: Sequence[Axis], store: Index | None) -> list[Axis]:
    """Axes from slowest to fastest in the stored order; those that the store does not mention stay in place."""
    if store is None:
        return list(axes)

    def stride(a: Axis) -> tuple[int, int]:
        c = coefficient(store, a)
        if c is None or not c.terms:
            return (0, 0)
        mono, k = c.terms[0]
        return (len(mono), k)

    return sorted(axes, key=stride, reverse=True)


@dataclass(slots=True)
class _Writer:
    """Places values at loop levels and writes statements. `at` holds the statements of each open level."""

    loops: list[Level]
    known: dict[Scalar, str] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    bound: dict[Loaded, Axis] = field(default_factory=dict)
    at: list[list[Stmt]] = field(default_factory=list)
    memo: dict[Scalar, int] = field(default_factory=dict)
    also: dict[Scalar, tuple[str, Index]] = field(default_factory=dict)
    count: int = 0
    prefix: str = ""

    def level_of_index(self, e: Index) -> int:
        """How many of the open loops an index depends on."""
        mine = axes_of(e)
        found = max((i + 1 for i, l in enumerate(self.loops) if l.axis in mine), default=0)
        return max([found, *(self.levels.get(a.name, 0) for a in mine)])

    def level(self, x: Scalar) -> int:
        """How many of the open loops x depends on; reductions count what is free in them."""
        if x in self.known:
            return self.levels[self.known[x]]
        if x in self.memo:
            return self.memo[x]
        own = [0]
        if isinstance(x, Load):
            own += [self.levels.get(x.source, 0)]
            own += [self.level_of_index(e) for e in x.index]
            own += [self.level_of_index(g.index) for g in x.guards]
        elif isinstance(x, FromIndex):
            own.append(self.level_of_index(x.index))
        elif isinstance(x, Reduce):
            own += self._free_levels(x)
        if not isinstance(x, Reduce):
            own += [self.level(c) for c in children(x)]
        self.memo[x] = max(own)
        return self.memo[x]

    def _free_levels(self, x: Reduce) -> list[int]:
        out = [0]
        for b in x.body:
            for e in indices_of(b):
                mine = axes_of(e) - frozenset(x.ranges)
                out += [i + 1 for i, l in enumerate(self.loops) if l.axis in mine]
            out += [self.levels.get(n.source, 0) for n in walk(b) if isinstance(n, Load) and not n.index]
        return out

    def variable(self, level: int) -> str:
        """A new variable that lives at a level."""
        name = f"%{self.prefix}v{self.count}"
        self.count += 1
        self.levels[name] = level
        return name

    def index(self, e: Index) -> Index:
        """e with loaded indices that do not vary inside a vector bound to integer variables."""

        def go(atom: object) -> Index | None:
            if not isinstance(atom, Loaded):
                return None
            inner = Loaded(atom.source, tuple(self.index(i) for i in atom.at), atom.extent)
            level = max((self.level_of_index(i) for i in inner.at), default=0)
            if any(l.kind == "vector" for l in self.loops[:level]):
                return Index.of(inner)
            if inner not in self.bound:
                axis = Axis(f"%{self.prefix}g{self.count}", atom.extent)
                self.count += 1
                self.levels[axis.name] = level
                self.bound[inner] = axis
                self.at[level].append(Bind(axis, Index.of(inner)))
            return Index.of(self.bound[inner])

        return transform(e, go) if any(isinstance(a, Loaded) for a in atoms(e)) else e

    def visit(self, x: Scalar, uses: dict[Scalar, int], parent: int) -> Scalar:
        """x with what belongs to outer levels, loads and shared parts replaced by variables."""
        if x in self.known:
            return Load(self.known[x], (), x.dtype)
        if isinstance(x, Const) or (isinstance(x, Load) and not x.index and not x.guards):
            return x
        level = self.level(x)
        if isinstance(x, Reduce):
            return self._fold(x, level)
        made = self._rebuilt(x, uses, level)
        kept = x in self.also
        if isinstance(x, FromIndex) and level == parent:
            return made
        if isinstance(x, Apply) and level == parent and uses.get(x, 0) < 2 and not kept:
            return made
        name = self.variable(level)
        self.known[x] = name
        self.at[level].append(Let(name, made))
        if kept:
            buffer, offset = self.also[x]
            self.at[level].append(Store(buffer, self.index(offset), Load(name, (), x.dtype)))
        return Load(name, (), x.dtype)

    def _rebuilt(self, x: Scalar, uses: dict[Scalar, int], level: int) -> Scalar:
        if isinstance(x, Apply):
            return Apply(x.fn, tuple(self.visit(a, uses, level) for a in x.args), x.dtype)
        if isinstance(x, FromIndex):
            return FromIndex(self.index(x.index), x.dtype)
        assert isinstance(x, Load)
        guards = tuple(Guard(self.index(g.index), self.index(g.extent)) for g in x.guards)
        otherwise = self.visit(x.otherwise, uses, level) if x.otherwise is not None else None
        return Load(x.source, tuple(self.index(i) for i in x.index), x.dtype, guards, otherwise)

    def _fold(self, x: Reduce, level: int) -> Scalar:
        """A fold at `level`; parts of its body that do not depend on the ranges are placed outside."""
        names = tuple(self.variable(level) for _ in x.body)
        inside = _range_loops(x, self.loops[:level])
        saved_loops, saved_at, saved_known = self.loops, self.at, dict(self.known)
        self.loops = saved_loops[:level] + inside
        self.at = saved_at[: level + 1] + [[] for _ in inside]
        self.memo = {}
        uses = use_counts(x.body)
        values = tuple(self.visit(b, uses, len(self.loops)) for b in x.body)
        self.at[-1].append(Accumulate(names, x.combine, values))
        body = _closed(self.at[level + 1 :], inside)
        inner_known = {n: v for n, v in self.known.items() if self.levels[v] <= level}
        self.loops, self.at, self.memo = saved_loops, saved_at, {}
        self.known = saved_known | inner_known
        for slot, name in enumerate(names):
            self.known[Reduce(x.combine, x.ranges, x.body, x.dtype, slot)] = name
        self.bound = {k: a for k, a in self.bound.items() if self.levels[a.name] <= level}
        ways = 4 if sum(cost(b) for b in x.body) < CHEAP else 1
        self.at[level].append(Fold(names, x.combine, x.body[0].dtype, body, ways))
        return Load(names[x.slot], (), x.dtype)


def _range_loops(x: Reduce, outer: list[Level]) -> list[Level]:
    """Loops of a reduction; its fastest range is a vector unless an enclosing loop already is."""
    offsets = [e for b in x.body for e in offsets_of(b)]
    if any(l.kind == "vector" for l in outer) or x.combine not in WIDE:
        return [Level(r) for r in x.ranges]
    chosen = vector_axis(x.ranges, offsets, [g for b in x.body for n in walk(b) if isinstance(n, Load) for g in n.guards])
    rest = [Level(r) for r in x.ranges if r != chosen]
    return [*rest, Level(chosen, "vector")] if chosen is not None else rest


def _closed(at: list[list[Stmt]], loops: list[Level]) -> tuple[Stmt, ...]:
    """Nested loops around the statements of each level."""
    inner: tuple[Stmt, ...] = ()
    for stmts, loop in zip(reversed(at), reversed(loops), strict=True):
        end = loop.end if loop.end is not None else loop.axis.extent
        inner = (Loop(loop.axis, loop.begin, end, loop.kind, (*stmts, *inner)),)
    return inner


def use_counts(values: Sequence[Scalar]) -> dict[Scalar, int]:
    """How many distinct parents (or roots) read each node."""
    counts: dict[Scalar, int] = {}
    seen: set[Scalar] = set()
    for v in values:
        counts[v] = counts.get(v, 0) + 1
        for n in walk(v):
            if n in seen:
                continue
            seen.add(n)
            for c in children(n):
                counts[c] = counts.get(c, 0) + 1
    return counts


def written(goals: Sequence[Goal], loops: Sequence[Level], prefix: str = "") -> tuple[Stmt, ...]:
    """Statements that compute the goals' values over the loops and store them in the innermost one.

    Their variables begin with `prefix`, so that stages that follow each other do not share names.
    """
    writer = _Writer(list(loops), at=[[] for _ in range(len(loops) + 1)], prefix=prefix)
    for t in goals:
        writer.also |= t.also
    uses = use_counts([t.value for t in goals])
    for t in goals:
        value = writer.visit(t.value, uses, len(loops))
        writer.at[-1].append(Store(t.buffer, writer.index(t.offset), value))
    return (*writer.at[0], *_closed(writer.at[1:], list(loops)))


def free_loops(goal: Goal, axes: tuple[Axis, ...]) -> list[Level]:
    """Loops over free axes in stored order, the best one vectorised, unless a reduction inside vectorises better."""
    order = order_of(axes, goal.offset)
    loads = offsets_of(goal.value)
    guards = [g for n in walk(goal.value) if isinstance(n, Load) for g in n.guards]
    ranges = [r for n in walk(goal.value) if isinstance(n, Reduce) for r in n.ranges if n.combine in WIDE]
    offsets = [*loads, goal.offset]
    best = vector_axis(order, offsets, guards)
    if best is not None and ranges:
        inner = vector_axis(ranges, loads, guards)
        if inner is not None and _fitness(inner, loads)[:2] > _fitness(best, offsets)[:2]:
            best = None
    rest = [Level(a) for a in order if a != best]
    return [*rest, Level(best, "vector")] if best is not None else rest
