"""Fusion as in FusionStitching (2020): patterns explored from outputs to inputs, the best three for each operator.

A pattern starts at an operator and contains patterns of its consumers. Many consumers are halved recursively until at
most two are left, all combinations of which are tried; the best three are kept, and halves are combined in the same way
(PatternReduction). A pattern is rated by the time it is estimated to save: memory traffic and kernel calls. Then a beam
of three plans is built from inputs to outputs, and the final three are compared by price. Independent patterns over
equally many rows are packed into one kernel (remote fusion). Contractions and windows stay unfused, and so do
reductions that would need synchronization between blocks: over columns, or over other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxfuse.ir.indexing import product
from onnxfuse.plan.kinds import REDUCTION
from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.price import Seconds, mean_ratio, summed
from onnxfuse.plan.rows import rows_of
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import USUAL, Space

TOP = 3  # patterns of an operator
BEAM = 3  # plans
CALL = 1e-6  # seconds of calling a kernel


def stitch(space: Space) -> Cover:
    """Disjoint patterns that are estimated to save most; other operators stay unfused."""
    explorer = _Explorer(space)
    patterns = explorer.patterns()
    plans = _assembled(space, patterns)
    best = min(plans, key=lambda p: _price(space, p.groups)) if _priced(space, plans) else plans[0]
    return space.cover(explorer.packed(best.groups))


@dataclass(frozen=True, slots=True)
class _Pattern:
    nodes: Set
    saves: float


@dataclass(frozen=True, slots=True)
class _Plan:
    groups: tuple[Set, ...] = ()
    covered: Set = 0
    saves: float = 0.0


class _Explorer:
    """Patterns of the operators of one space."""

    def __init__(self, space: Space) -> None:
        self.space = space
        target = space.scope.legality.targets(space.scope.options)[0]
        self.byte: float = 1e-9 / target.bandwidth
        self.known: dict[Set, float | None] = {}

    def patterns(self) -> dict[int, Sequence[_Pattern]]:
        """The best patterns that start at each operator, in reverse topological order."""
        found: dict[int, Sequence[_Pattern]] = {}
        for i in reversed(self.space.order):
            if self.space.of_memory(i):
                readers = [found[r] for r in self.space.readers(i) if r in found]
                alone = _Pattern(1 << i, 0.0)
                found[i] = self._best([alone, *self._reduced(1 << i, readers)])
        return found

    def packed(self, groups: Iterable[Set]) -> list[Set]:
        """The patterns, with independent ones over equally many rows packed into one."""
        done: list[Set] = []
        for g in groups:
            at = next((k for k, other in enumerate(done) if self._packs(other, g, [*done, g])), None)
            if at is None:
                done.append(g)
            else:
                done[at] |= g
        return done

    def _reduced(self, first: Set, readers: Sequence[Sequence[_Pattern]]) -> Sequence[_Pattern]:
        """The best patterns of an operator with patterns of its consumers (PatternReduction)."""
        if not readers:
            return ()
        if len(readers) > 2:
            half = len(readers) // 2
            readers = [self._reduced(first, readers[:half]), self._reduced(first, readers[half:])]
        one, two = readers[0], readers[1] if len(readers) == 2 else ()
        sets = [a.nodes for a in one] + [b.nodes for b in two] + [a.nodes | b.nodes for a in one for b in two]
        return self._best([p for s in dict.fromkeys(s | first for s in sets) if (p := self._pattern(s)) is not None])

    def _best(self, patterns: Iterable[_Pattern]) -> Sequence[_Pattern]:
        return sorted(patterns, key=lambda p: (-p.saves, p.nodes))[:TOP]

    def _pattern(self, nodes: Set) -> _Pattern | None:
        if nodes not in self.known:
            self.known[nodes] = self._saves(nodes) if self._emitted(nodes) else None
        saves = self.known[nodes]
        return None if saves is None else _Pattern(nodes, saves)

    def _emitted(self, nodes: Set) -> bool:
        """Whether a pattern can be one kernel: it is legal, and all reductions are over the same rows."""
        if not self.space.legal.allows(nodes):
            return False
        rows = [rows_of(self.space.kind(i)) for i in members(nodes) if self.space.kind(i).name == REDUCTION]
        return len(rows) < 2 or (None not in rows and len(set(rows)) == 1)

    def _saves(self, nodes: Set) -> float:
        """Estimated seconds that a pattern saves: bytes that are neither stored nor loaded again, and calls."""
        scope, inside = self.space.scope, members(nodes)
        made = {o for i in inside for o in scope.nodes[i].outputs if o}
        readers = scope.apart.readers
        bytes_saved = 0
        for v in dict.fromkeys(v for i in inside for v in scope.reads[i] if v not in scope.graph.constants):
            mine = sum(1 for r in readers.get(v, ()) if nodes >> r & 1)
            stays = v in made and mine == len(readers[v]) and v not in scope.graph.outputs
            bytes_saved += self._bytes(v) * (mine + stays - (v not in made))
        return bytes_saved * self.byte + (len(inside) - 1) * CALL

    def _bytes(self, value: str) -> int:
        t = self.space.graph.types.get(value)
        size = t.dtype.bytes if t is not None else 0
        for e in t.shape if t is not None else ():
            size *= product([e]).constant or USUAL
        return size

    def _packs(self, one: Set, other: Set, all_of_them: list[Set]) -> bool:
        """Whether two independent patterns can be packed into one kernel."""
        legal, both = self.space.legal, one | other
        sizes = {max(self.space.elements(i) for i in members(g)) for g in (one, other)}
        apart = not legal.between(both) and not legal.readers(one) & other and not legal.readers(other) & one
        if len(sizes) > 1 or not apart or not self._emitted(both):
            return False
        return not legal.circular(both, {i: g for g in all_of_them for i in members(g)})


def _assembled(space: Space, patterns: dict[int, Sequence[_Pattern]]) -> list[_Plan]:
    """The best plans of a beam search over the operators in order."""
    beam = [_Plan()]
    for i in space.order:
        if i not in patterns:
            continue
        after: dict[tuple[Set, ...], _Plan] = {}
        for p in beam:
            if p.covered >> i & 1:
                after[p.groups] = p
                continue
            own = {at: g for g in p.groups for at in members(g)}
            for c in (_Pattern(1 << i, 0.0), *patterns[i]):
                if not c.nodes & p.covered and not space.legal.circular(c.nodes, own):
                    groups = (*p.groups, c.nodes)
                    after[groups] = _Plan(groups, p.covered | c.nodes, p.saves + c.saves)
        beam = sorted(after.values(), key=lambda p: (-p.saves, p.groups))[:BEAM]
    return beam


def _priced(space: Space, plans: Sequence[_Plan]) -> bool:
    return all(space.seconds(g) is not None for p in plans for g in p.groups)


def _price(space: Space, groups: Iterable[Set]) -> float:
    """The time of groups as the geometric mean over all points, in seconds."""
    found: list[Seconds] = [s for g in groups if (s := space.seconds(g)) is not None]
    if not found:
        return 0.0
    total = summed(found, len(found[0]))
    return mean_ratio(total, tuple(1.0 for _ in total))
