"""Regions of a graph: runs of nodes between narrow cuts. Each is solved by itself, and equal ones once.

A cut is where few values are live, and never inside of an existing group. Nodes are in topological order, so that
groups of different regions cannot form a cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from onnxfuse.plan.legal import Set
from onnxfuse.plan.search.scope import Scope

NARROW = 3  # most values that cross a cut
MOST = 40  # most nodes of a region that is not cut further


def regions_of(scope: Scope, standing: Iterable[Set], most: int = MOST) -> list[Set]:
    """The regions of a scope, in order; each group of `standing` is in one of them.

    They have up to `most` nodes, or cannot be cut.
    """
    found: list[Set] = []
    begin = 0
    atoms = _atoms(_crossing(scope), standing)
    for before, end in pairwise(atoms):
        if end - begin > most and before > begin:
            found.append(_run(begin, before))
            begin = before
    return [*found, _run(begin, atoms[-1])] if atoms[-1] > begin else found


def _run(begin: int, end: int) -> Set:
    return (1 << end) - (1 << begin)


def _crossing(scope: Scope) -> list[int]:
    """Number of values that are live at each place: before the first node, ..., after the last."""
    count = len(scope.nodes)
    steps = [0] * (count + 2)
    made = {o: i for i, n in enumerate(scope.nodes) for o in n.outputs if o}
    last: dict[str, int] = {}
    for i, values in enumerate(scope.reads):
        last.update({v: i for v in values if v in made})
    for v, i in last.items():
        steps[made[v] + 1] += 1
        steps[i + 1] -= 1
    found, at = [], 0
    for step in steps[: count + 1]:
        at += step
        found.append(at)
    return found


def _atoms(crossing: Sequence[int], standing: Iterable[Set]) -> list[int]:
    """Places where a cut is allowed, including both ends."""
    closed: Set = 0
    for g in standing:
        first, last = (g & -g).bit_length() - 1, g.bit_length() - 1
        closed |= _run(first + 1, last + 1)
    inner = range(1, len(crossing) - 1)
    return [0, *(at for at in inner if crossing[at] <= NARROW and not closed >> at & 1), len(crossing) - 1]
