"""Statements that one thread runs: reductions inside of a value are loops of the thread, one term after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.ir.compose import inside, rebuild, walk
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Accumulate, ReduceLoop, ReduceScope, Stmt
from onnxfuse.ir.scalar import Apply, Guard, Load, Reduce, Scalar, variable
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.nests.nest import Level
from onnxfuse.schedule.nests.writer import ROUNDS, Writer, in_parts, lifted, use_counts

Resolve = Callable[[Load], Scalar | None]  # what stands for an element of a value of the same phase


@dataclass(slots=True)
class ThreadWriter(Writer):
    """A writer whose loops are those of a thread, or divided among the threads that are at a row together.

    `before` writes what comes first in the innermost loop of the next reduction.
    """

    before: Callable[[], None] | None = None

    def _reduce(self, x: Reduce, level: int) -> Scalar:
        """A reduction that a thread does alone."""
        if (parts := in_parts(x)) is not None:
            made = self._reduce(parts, level)
            assert isinstance(made, Load)
            self.known[x] = made.source
            return made
        names = self.reduction(x, level, [Level(r) for r in x.ranges], (), "serial")
        for slot, name in enumerate(names):
            self.known[Reduce(x.combine, x.ranges, x.body, x.dtype, slot)] = name
        return variable(names[x.slot], x.dtype)

    def reduction(
        self,
        x: Reduce,
        level: int,
        inside: Sequence[Level],
        guards: Sequence[Guard],
        scope: ReduceScope,
        begun: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        """A reduction over loops `inside` a level, by one thread or by those of a scope together; its variables.

        One that has `begun` with other loops, just before, goes on with these.
        """
        names = begun or tuple(self.variable(level) for _ in x.body)
        body, own = lifted(x, {each.axis for each in (*self.loops, *inside) if each.kind == "vector"})

        def accumulate() -> None:
            before, self.before = self.before, None
            if before is not None:
                before()
            uses = use_counts(body)
            values = tuple(self.visit(b, uses, len(self.loops)) for b in body)
            self.at[-1].append(Accumulate(names, x.combine, values))

        closed = self._inside(level, list(inside), [*guards, *own], accumulate, body)
        before: tuple[Stmt, ...] = ()
        if begun:
            first = next(s for s in self.at[level] if isinstance(s, ReduceLoop) and s.targets == begun)
            self.at[level].remove(first)
            before = first.body
        self.at[level].append(ReduceLoop(names, x.combine, x.body[0].dtype, (*before, *closed), scope=scope))
        return names

    def loop(self, inside: Sequence[Level], guards: Sequence[Guard], fill: Callable[[], None]) -> None:
        """Loops at the outermost level, and what `fill` writes in the innermost one."""
        self.at[0] += self._inside(0, list(inside), list(guards), fill)

    def store(self, s: Stmt) -> None:
        """A statement of the innermost level."""
        self.at[-1].append(s)

    def value(self, x: Scalar) -> Scalar:
        """A value at the innermost level."""
        self.mark(x)
        return self.visit(x, use_counts([x]), len(self.loops))

    def mark(self, x: Scalar) -> None:
        """Divisions on the way to an integer are done as they are."""
        on_the_way = [n for n in walk(x) if isinstance(n, Apply) and n.fn in ROUNDS]
        self.rounded |= {n for each in on_the_way for n in walk(each) if isinstance(n, Apply) and n.fn == "div"}


def resolved(x: Scalar, resolve: Resolve, places: Mapping[str, Place]) -> Scalar:
    """A value with the elements of other values of the phase put in, and all else read from where it lies."""

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or not node.index:
            return None
        found = resolve(node)
        if found is None or node.otherwise is None:
            return found
        return inside(node.guards, found, rebuild(node.otherwise, leaf, _same))

    return flat(rebuild(x, leaf, _same), places)


def _same(e: Index) -> Index:
    return e
