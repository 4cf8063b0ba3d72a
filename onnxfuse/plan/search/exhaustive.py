"""Every legal group of a few nodes: the proposals of the strategy `exhaustive`, which shows what `best` misses.

A group need not be connected. There are up to 2^n - 1 of n nodes, so only regions of up to `MOST` nodes are tried.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.search.region import regions_of
from onnxfuse.plan.search.space import Space

MOST = 10  # nodes of a region all of whose legal groups are proposed


def proposals(space: Space, standing: Iterable[Set]) -> list[Set]:
    """Every legal group of each region of up to `MOST` nodes; regions are not cut inside of the `standing` groups."""
    regions = regions_of(space.scope, standing, MOST)
    return [group for region in regions if region.bit_count() <= MOST for group in legal_sets(space, region)]


def legal_sets(space: Space, nodes: Set) -> list[Set]:
    """Every legal subset of up to `MOST` nodes, without those that cannot be fused."""
    free = members(nodes & space.legal.free)
    assert len(free) <= MOST, "plan: there are too many nodes to try every group of them"
    numbers = range(1, 1 << len(free))
    found = (set_of(free[k] for k in members(number)) for number in numbers)
    return [s for s in found if space.legal.allows(s)]
