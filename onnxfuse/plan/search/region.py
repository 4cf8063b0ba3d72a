"""A graph in regions: runs of nodes between narrow places, so that each is solved by itself and equal ones once.

A cut is made where few values go from what is before to what is behind, and never through a group that stands already.
Nodes are in topological order, so that whatever is decided in two regions, they depend on each other one way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from onnxfuse.plan.legal import Set
from onnxfuse.plan.search.scope import Scope

NARROW = 3  # values that cross a cut at most
MOST = 40  # nodes of a region that is not cut where it could be


def regions_of(scope: Scope, standing: Iterable[Set]) -> list[Set]:
    """The regions of a scope, in order; no group that is `standing` lies in two of them."""
    found: list[Set] = []
    begin = 0
    atoms = _atoms(_crossing(scope), standing)
    for before, end in pairwise(atoms):
        if end - begin > MOST and before > begin:
            found.append(_run(begin, before))
            begin = before
    return [*found, _run(begin, atoms[-1])] if atoms[-1] > begin else found


def _run(begin: int, end: int) -> Set:
    return (1 << end) - (1 << begin)


def _crossing(scope: Scope) -> list[int]:
    """How many values that nodes make are read across each place: before the first node, ..., behind the last."""
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
    """Places where a cut may be made, the ends included."""
    closed: Set = 0
    for g in standing:
        first, last = (g & -g).bit_length() - 1, g.bit_length() - 1
        closed |= _run(first + 1, last + 1)
    inner = range(1, len(crossing) - 1)
    return [0, *(at for at in inner if crossing[at] <= NARROW and not closed >> at & 1), len(crossing) - 1]
