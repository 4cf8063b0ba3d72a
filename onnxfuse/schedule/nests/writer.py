"""Writes the statements that compute one or several values over given loops (loop-invariant code motion included).

Each subexpression is computed at the outermost loop level at which all its axes are known; loads and shared
subexpressions become variables there. A reduction becomes a ReduceLoop at its own level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.codes import coded
from onnxfuse.ir.compose import cost, indices_of, loads, replaced, substitute_axes, walk
from onnxfuse.ir.contraction import factors
from onnxfuse.ir.index import Axis, Entry, Index, Loaded, atoms, axes_of
from onnxfuse.ir.indexing import looked_up, product, substitute, transform
from onnxfuse.ir.kernel import Accumulate, Bind, Let, Loop, ReduceLoop, ReduceScope, Stmt, Store, When, statements
from onnxfuse.ir.lanes import CARRIED
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar, children, uncast, variable
from onnxfuse.schedule.nests.nest import WIDE, Goal, Level, offsets_of, vector_axis
from onnxfuse.schedule.nests.subranges import split_reduction

LONG_SUM = 64  # terms above which a sum is made of partial sums
PARTS = (16, 12, 10, 14, 18, 20, 8, 24, 32, 9, 11, 13, 7, 17, 19, 23)  # terms of a partial sum, by preference
ROUNDS = frozenset(("snap", "coded", "round", "floor", "ceil"))
CHEAP = 8.0  # vector operations below which a reduction is bound by latency, so that it gets several accumulators


@dataclass(slots=True)
class Writer:
    """Places values at loop levels and writes statements. `at` holds the statements of each open level."""

    loops: list[Level]
    known: dict[Scalar, str] = field(default_factory=dict)
    levels: dict[str, int] = field(default_factory=dict)
    bound: dict[tuple[Loaded, tuple[Guard, ...]], Axis] = field(default_factory=dict)
    at: list[list[Stmt]] = field(default_factory=list)
    memo: dict[Scalar, int] = field(default_factory=dict)
    also: dict[Scalar, tuple[str, Index]] = field(default_factory=dict)
    shared: set[Scalar] = field(default_factory=set)  # loads, or casts of loads, that several unrolled terms read
    rounded: set[Scalar] = field(default_factory=set)  # divisions whose quotients are rounded to integers
    count: int = 0
    prefix: str = ""

    def level_of_index(self, e: Index) -> int:
        """How many of the open loops an index depends on."""
        mine = axes_of(e)
        found = max((i + 1 for i, level in enumerate(self.loops) if level.axis in mine), default=0)
        return max([found, *(self.levels.get(a.name, 0) for a in mine)])

    def level(self, x: Scalar) -> int:
        """How many of the open loops x depends on; a reduction depends on its free axes."""
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
            own += [self.level_of_index(e) for e in (x.index, *(g.index for g in x.guards))]
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
                out += [i + 1 for i, level in enumerate(self.loops) if level.axis in mine]
            out += [self.levels.get(n.source, 0) for n in walk(b) if isinstance(n, Load) and not n.index]
        return out

    def variable(self, level: int) -> str:
        """A new variable that lives at a level."""
        name = f"%{self.prefix}v{self.count}"
        self.count += 1
        self.levels[name] = level
        return name

    def index(self, e: Index, guards: tuple[Guard, ...] = ()) -> Index:
        """e with loaded indices bound to integer variables, unless they vary among the lanes of a vector.

        They are looked up only where the guards hold, those of the load at e.
        """

        def go(atom: object) -> Index | None:
            if not isinstance(atom, Loaded):
                return None
            inner = replace(atom, at=tuple(self.index(i, guards) for i in atom.at))
            needed = (*inner.at, *(e for g in guards for e in (g.index, g.extent)))
            level = max((self.level_of_index(i) for i in needed), default=0)
            if any(loop.kind == "vector" for loop in self.loops[:level]):
                return Index.of(inner)
            if (inner, guards) not in self.bound:
                axis = Axis(f"%{self.prefix}g{self.count}", atom.extent)
                self.count += 1
                self.levels[axis.name] = level
                self.bound[inner, guards] = axis
                self.at[level].append(Bind(axis, Index.of(inner), None, guards))
            return Index.of(self.bound[inner, guards])

        return transform(e, go) if looked_up(e) else e

    def guards(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """Guards with loaded indices bound, each under those before it."""
        made: tuple[Guard, ...] = ()
        for g in guards:
            made = (*made, Guard(self.index(g.index, made), self.index(g.extent, made)))
        return made

    def visit(self, x: Scalar, uses: dict[Scalar, int], parent: int) -> Scalar:
        """x with loads, shared parts and parts of outer levels replaced by variables."""
        if x in self.known:
            return variable(self.known[x], x.dtype)
        if isinstance(x, Const) or (isinstance(x, Load) and not x.index and not x.guards):
            return x
        level = self.level(x)
        if isinstance(x, Reduce):
            return self._reduce(x, level)
        made = self._rebuilt(x, uses, level)
        kept = x in self.also
        if isinstance(x, FromIndex) and level == parent:
            return made
        if isinstance(x, Apply) and level == parent and uses.get(x, 0) < 2 and not kept and x not in self.shared:
            return made
        name = self.variable(level)
        self.known[x] = name
        self.at[level].append(Let(name, made, x in self.shared))
        if kept:
            buffer, offset = self.also[x]
            self.at[level].append(Store(buffer, self.index(offset), variable(name, x.dtype)))
        return variable(name, x.dtype)

    def _rebuilt(self, x: Scalar, uses: dict[Scalar, int], level: int) -> Scalar:
        if isinstance(x, Apply) and self._by_reciprocal(x):
            inverse = Apply("reciprocal", (x.args[1],), x.dtype)
            return Apply("mul", (self.visit(x.args[0], uses, level), self.visit(inverse, uses, level)), x.dtype)
        if isinstance(x, Apply):
            return Apply(x.fn, tuple(self.visit(a, uses, level) for a in x.args), x.dtype)
        if isinstance(x, FromIndex):
            guards = self.guards(x.guards)
            return FromIndex(self.index(x.index, guards), x.dtype, guards)
        assert isinstance(x, Load)
        otherwise = self.visit(x.otherwise, uses, level) if x.otherwise is not None else None
        guards = self.guards(x.guards)
        return Load(x.source, tuple(self.index(i, guards) for i in x.index), x.dtype, guards, otherwise)

    def _by_reciprocal(self, x: Apply) -> bool:
        """Whether a divisor is invariant in the innermost loop, so that one reciprocal outside of it is cheaper.

        Not if the quotient is rounded to an integer, which its last bit may change.
        """
        divides = x.fn == "div" and x.dtype.floating and not isinstance(x.args[1], Const)
        return divides and x not in self.rounded and self.level(x.args[1]) < self.level(x.args[0])

    def _reduce(self, x: Reduce, level: int) -> Scalar:
        """A reduction at `level`; parts of its body that do not depend on the reduction axes are placed outside."""
        in_vector = any(loop.kind == "vector" for loop in self.loops[:level])
        if in_vector and (parts := in_parts(x)) is not None:
            made = self._reduce(parts, level)
            assert isinstance(made, Load)
            self.known[x] = made.source
            return made
        names = tuple(self.variable(level) for _ in x.body)
        closed: tuple[Stmt, ...] = ()
        for piece, at in split_reduction(x):
            kept = self.also.items() if at else ()
            self.also |= {simplify(substitute_axes(v, at)): (b, substitute(o, at)) for v, (b, o) in kept}
            closed += self._reduce_loops(piece, names, level)
        for slot, name in enumerate(names):
            self.known[Reduce(x.combine, x.ranges, x.body, x.dtype, slot)] = name
        accumulators = CARRIED if sum(cost(b) for b in x.body) < CHEAP else 1
        scope: ReduceScope = "serial"
        if not any(loop.kind == "vector" for loop in self.loops[:level]) and _has_vector(closed):
            scope = "lane"
        self.at[level].append(ReduceLoop(names, x.combine, x.body[0].dtype, closed, accumulators, scope=scope))
        return variable(names[x.slot], x.dtype)

    def _reduce_loops(self, x: Reduce, names: tuple[str, ...], level: int) -> tuple[Stmt, ...]:
        """The loops that accumulate the body of `x` in the variables `names`.

        Elements that are stored too are so outside of their guards as well: these stay where they are.
        """
        inside = _range_loops(x, self.loops[:level])
        stored = any(n in self.also for b in x.body for n in walk(b))
        vectors = {level.axis for level in (*self.loops, *inside) if level.kind == "vector"}
        body, guards = (x.body, []) if stored else lifted(x, vectors)
        uses = use_counts(body)

        def accumulate() -> None:
            values = tuple(self.visit(b, uses, len(self.loops)) for b in body)
            self.at[-1].append(Accumulate(names, x.combine, values))

        return self._inside(level, inside, guards, accumulate, body)

    def _inside(
        self,
        level: int,
        inside: list[Level],
        lifted: list[Guard],
        fill: Callable[[], None],
        values: Iterable[Scalar] = (),
    ) -> tuple[Stmt, ...]:
        """The statements that `fill` writes in further loops below `level`, under guards; their variables end there.

        Elements that `values` read are in bounds under these guards alone, and so read inside of them: not before
        the loops even if they depend on none of these.
        """
        saved_loops, saved_at, saved_known = self.loops, self.at, dict(self.known)
        self.loops = saved_loops[:level] + inside
        self.at = saved_at[: level + 1] + [[] for _ in inside]
        self.memo = {}
        if lifted:
            under = max(min(level + 1, len(self.loops)), *(self.level_of_index(g.index) for g in lifted))
            self.memo = {n: max(self.level(n), under) for n in {n for v in values for n in loads(v)}}
        fill()
        whens: dict[int, tuple[Guard, ...]] = {}
        for g in lifted:
            depth = max(self.level_of_index(g.index) - level - 1, 0)
            whens[depth] = (*whens.get(depth, ()), Guard(self.index(g.index), g.extent))
        closed = _closed(self.at[level + 1 :], inside, whens)
        outer_known = {n: v for n, v in self.known.items() if self.levels[v] <= level}
        self.loops, self.at, self.memo = saved_loops, saved_at, {}
        self.known = saved_known | outer_known
        self.bound = {k: a for k, a in self.bound.items() if self.levels[a.name] <= level}
        return closed

    def reduce_together(
        self,
        reduces: Sequence[Reduce],
        looped: Sequence[Axis],
        unrolled: Sequence[tuple[int, Scalar]],
        guards: list[Guard],
    ) -> None:
        """Reductions over the same axes in one ReduceLoop: loops over `looped` axes, the others unrolled.

        `unrolled` are the terms in order, each with the number of its reduction; they share the guards and their loads.
        """
        level, first = len(self.loops), reduces[0]
        names = [self.variable(level) for _ in reduces]
        readers = Counter(read for _, term in unrolled for read in _reads(term))
        self.shared = {read for read, count in readers.items() if count > 1}

        def accumulate() -> None:
            for number, term in unrolled:
                value = self.visit(term, {}, len(self.loops))
                self.at[-1].append(Accumulate((names[number],), first.combine, (value,)))

        terms = [term for _, term in unrolled]
        closed = self._inside(level, [Level(r) for r in looped], guards, accumulate, terms)
        self.shared = set()
        for name, x in zip(names, reduces, strict=True):
            self.known[x] = name
        self.at[level].append(ReduceLoop(tuple(names), first.combine, first.body[0].dtype, closed))


def _reads(term: Scalar) -> Iterator[Scalar]:
    """The loads of a term, widened if it widens them."""
    casts = {n.args[0]: n for n in walk(term) if isinstance(n, Apply) and n.fn == "cast" and n.dtype.floating}
    yield from (casts.get(load, load) for load in loads(term))


def _has_vector(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Loop) and s.kind == "vector" for s in statements(body))


def in_parts(x: Reduce) -> Reduce | None:
    """A long serial sum as a sum of partial sums, which has smaller rounding errors; None for other reductions."""
    count = product([r.extent for r in x.ranges]).constant
    if x.combine != "sum" or (count is not None and count <= LONG_SUM):
        return None
    if len(x.ranges) > 1:
        inner = Reduce(x.combine, x.ranges[-1:], x.body, x.dtype)
        return Reduce(x.combine, x.ranges[:-1], (inner,), x.dtype)
    part = next((p for p in PARTS if count is not None and count % p == 0), None)
    if part is None or count is None:
        return None
    whole = x.ranges[0]
    high, low = Axis(f"{whole.name}.1", Index.of(count // part)), Axis(f"{whole.name}.0", Index.of(part))
    body = tuple(substitute_axes(b, {whole: Index.of(high) * part + low}) for b in x.body)
    return Reduce(x.combine, (high,), (Reduce(x.combine, (low,), body, x.dtype),), x.dtype)


def lifted(x: Reduce, vectors: Container[Axis]) -> tuple[tuple[Scalar, ...], list[Guard]]:
    """The body without guards outside of which it contributes the identity, and those guards, to be hoisted.

    A guard that differs among the lanes of a vector stays in place, and so do the guards of a loaded index.
    """
    if len(x.body) != 1:
        return x.body, []
    parts = factors(x.body[0]) if x.combine == "sum" else [x.body[0]]
    idle = {"sum": 0.0, "max": float("-inf"), "maxnum": float("-inf"), "min": float("inf")}.get(x.combine)
    for f in (uncast(part) if part.dtype.floating else part for part in parts):
        if isinstance(f, Load) and f.guards and isinstance(f.otherwise, Const) and f.otherwise.value == idle:
            if any(isinstance(a, (Entry, Loaded)) for e in f.index for a in atoms(e)):
                continue  # looked up under its guards only
            stay = tuple(g for g in f.guards if any(a in vectors for a in axes_of(g.index)))
            load = Load(f.source, f.index, f.dtype, stay, f.otherwise if stay else None)
            return (replaced(x.body[0], f, load),), [g for g in f.guards if g not in stay]
    return x.body, []


def _range_loops(x: Reduce, outer: list[Level]) -> list[Level]:
    """The loops of a reduction; the best axis becomes a vector loop unless an enclosing loop is one."""
    offsets = [e for b in x.body for e in offsets_of(b)]
    if any(level.kind == "vector" for level in outer) or x.combine not in WIDE:
        return [Level(r) for r in x.ranges]
    guards = [g for b in x.body for n in walk(b) if isinstance(n, Load) for g in n.guards]
    chosen = vector_axis(x.ranges, offsets, (), guards)
    if any(chosen in axes_of(g.index) for g in guards):  # lanes would be read one by one
        return [Level(r) for r in x.ranges]
    rest = [Level(r) for r in x.ranges if r != chosen]
    return [*rest, Level(chosen, "vector")] if chosen is not None else rest


def _closed(at: list[list[Stmt]], loops: list[Level], whens: Mapping[int, tuple[Guard, ...]]) -> tuple[Stmt, ...]:
    """Nested loops around the statements of each level; `whens` are the guards of a level and all below it."""
    inner: tuple[Stmt, ...] = ()
    for depth in reversed(range(len(loops))):
        loop = loops[depth]
        end = loop.end if loop.end is not None else loop.axis.extent
        body = (*at[depth], *inner)
        if depth in whens:
            body = (When(whens[depth], body),)
        inner = (Loop(loop.axis, loop.begin, end, loop.kind, body),)
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


def written(
    goals: Sequence[Goal], loops: Sequence[Level], prefix: str = "", *, interleaved: bool = False
) -> tuple[Stmt, ...]:
    """Statements that compute the goals' values over the loops and store them in the innermost one.

    The names of their variables begin with `prefix`, so that consecutive stages do not share names. `interleaved` goals
    are adjacent elements, which one statement stores.
    """
    return finished(
        Writer(list(loops), at=[[] for _ in range(len(loops) + 1)], prefix=prefix), goals, interleaved=interleaved
    )


def finished(writer: Writer, goals: Sequence[Goal], *, interleaved: bool = False) -> tuple[Stmt, ...]:
    """All statements of a writer, once the goals' values are written and stored."""
    goals = [t if t.also else replace(t, value=coded(t.value)) for t in goals]
    for t in goals:
        writer.also |= t.also
        rounded = [n for n in walk(t.value) if isinstance(n, Apply) and n.fn in ROUNDS]
        writer.rounded |= {n for x in rounded for n in walk(x) if isinstance(n, Apply) and n.fn == "div"}
    uses = use_counts([t.value for t in goals])
    values = []
    for t in goals:
        values.append(writer.visit(t.value, uses, len(writer.loops)))
        if not interleaved:
            writer.at[-1].append(Store(t.buffer, writer.index(t.offset), values[-1]))
    if interleaved:
        offset = writer.index(goals[0].offset)
        writer.at[-1].append(Store(goals[0].buffer, offset, values[0], behind=tuple(values[1:])))
    return (*writer.at[0], *_closed(writer.at[1:], writer.loops, {}))
