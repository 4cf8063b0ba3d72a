"""All possible groups of a small graph, as the reference for searches."""

from __future__ import annotations

from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.search.space import Space

MOST = 10  # nodes of a graph that is small


def exhaustive(space: Space) -> list[Set]:
    """Every legal set of nodes, whether they hang together or not."""
    assert len(space.order) <= MOST, "plan: the graph is too large to try everything"
    numbers = range(1, 1 << len(space.order))
    found = (set_of(space.order[k] for k in members(number)) for number in numbers)
    return [s for s in found if space.legal.allows(s)]
