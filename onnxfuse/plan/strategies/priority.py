"""Priority fusion, as in XLA's GPU compiler: a queue of merges ordered by the time that each saves.

Initially every operator is a group. Candidates are pairs of a group and a reader of it, and a group with all of its
readers; the merge that saves most time is made, and its neighbors are priced again, until none saves time. Then groups
that read the same value are merged in the same way (sibling fusion). A merged group may have several results. As in
XLA, contractions are not merged with each other (except those of an attention), and savings within the error of prices
count as ties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from onnxfuse.plan.kinds import BATCHED, HEAVY
from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.price import TIE, Seconds, mean_ratio, summed
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space


def priority(space: Space) -> Cover:
    """Groups merged in the order of savings; unfused operators if there are no prices."""
    return space.cover(merged(space, [1 << i for i in space.order]))


def merged(space: Space, groups: list[Set], *, products: bool = False) -> list[Set]:
    """Merge groups as long as that saves time; with `products`, contractions may be merged with each other."""
    for neighbours in (_joined, _beside):
        groups = _Merging(space, groups, neighbours, products=products).run()
    return groups


class _Merging:
    """Disjoint groups, and a queue of merges among them."""

    def __init__(self, space: Space, groups: list[Set], neighbours: Neighbours, *, products: bool) -> None:
        self.space, self.neighbours, self.products = space, neighbours, products
        self.groups = set(groups)
        self.own = {i: g for g in groups for i in members(g)}

    def run(self) -> list[Set]:
        """Merge until nothing saves time; the groups."""
        queue = [merge for g in sorted(self.groups) for merge in self._merges(g)]
        heapify(queue)
        while queue:
            _, parts = heappop(queue)
            if not self.groups.issuperset(parts):
                continue
            whole = sum(parts)
            if self.space.legal.circular(whole, self.own):
                continue
            self.groups = self.groups.difference(parts) | {whole}
            self.own.update(dict.fromkeys(members(whole), whole))
            for merge in self._merges(whole, around=True):
                heappush(queue, merge)
        return sorted(self.groups, key=lambda g: g & -g)

    def _merges(self, group: Set, *, around: bool = False) -> Iterator[tuple[float, tuple[Set, ...]]]:
        """Merges of a group that save time, by descending saving; with `around`, those of its producers too."""
        makers = {self.own[i] for i in members(self.space.legal.makers(group)) if i in self.own} if around else set()
        for one in (group, *sorted(makers)):
            for parts in self.neighbours(self, one):
                saved = self._saved(parts)
                if saved is not None:
                    yield (-saved, parts)

    def _saved(self, parts: tuple[Set, ...]) -> float | None:
        """The time saved by merging groups, as the mean over all points; None if it is unknown or not positive."""
        space = self.space
        heavy = [k for i in members(sum(parts)) if (k := space.kind(i).name) in HEAVY]
        if not self.products and len(heavy) > 1 and set(heavy) != {BATCHED}:
            return None
        together = space.seconds(sum(parts))
        apart = [space.seconds(p) for p in parts]
        if together is None or any(a is None for a in apart):
            return None
        alone: Seconds = summed([a for a in apart if a is not None], len(together))
        ratio = mean_ratio(together, alone)
        return (1 - ratio) * max(alone) if ratio < 1 - TIE else None

    def around(self, nodes: Set) -> list[Set]:
        """The groups of some nodes, in order."""
        return sorted({self.own[i] for i in members(nodes) if i in self.own}, key=lambda g: g & -g)


Neighbours = Callable[[_Merging, Set], Iterator[tuple[Set, ...]]]


def _joined(m: _Merging, group: Set) -> Iterator[tuple[Set, ...]]:
    """A group with each of its readers, and with all of them."""
    readers = m.around(m.space.legal.readers(group))
    yield from ((group, r) for r in readers)
    if len(readers) > 1:
        yield (group, *readers)


def _beside(m: _Merging, group: Set) -> Iterator[tuple[Set, ...]]:
    """A group with each later one that reads one of its inputs."""
    scope = m.space.scope
    values = {v for i in members(group) for v in scope.reads[i] if v not in scope.graph.constants}
    readers = set_of(i for v in values for i in scope.apart.readers.get(v, ()))
    yield from ((group, g) for g in m.around(readers & ~group) if g > group)
