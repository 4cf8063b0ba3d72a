"""All groups that there could be in a small graph: what a search is held against."""

from __future__ import annotations

from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.space import Space

MOST = 14  # nodes of a graph that is small


def exhaustive(space: Space) -> list[Set]:
    """Every legal set of nodes that hang together by what they read of each other, or both read."""
    assert len(space.order) <= MOST, "plan: the graph is too large to try everything"
    beside = _beside(space)
    found: set[Set] = set()
    pending = [1 << i for i in space.order]
    while pending:
        here = pending.pop()
        if here in found:
            continue
        found.add(here)
        around = 0
        for i in members(here):
            around |= beside[i]
        pending += [here | 1 << i for i in members(around & ~here & space.legal.free)]
    return sorted(s for s in found if space.legal.allows(s))


def _beside(space: Space) -> dict[int, Set]:
    """Nodes that each reads, is read by, or reads the same value as."""
    found = {i: space.legal.before[i] | space.legal.after[i] for i in space.order}
    readers = space.scope.apart.readers
    for v in (v for v in readers if v not in space.graph.constants):
        together = sum(1 << r for r in readers[v])
        for r in (r for r in readers[v] if r in found):
            found[r] |= together & ~(1 << r)
    return found
