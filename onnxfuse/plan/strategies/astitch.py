"""Fusion as in AStitch (2022): everything between contractions, in scopes as large as possible.

Dominant operators are reductions, expensive values that are broadcast, and outputs. Those connected by elementwise
operators only are merged (dominant merging), so that they share one schedule. Such units are stitched with their
producers, whatever they reduce, since a kernel may have barriers. Independent scopes are stitched too. Scopes are
limited only by cycles and the size of a group; prices are not used.
"""

from __future__ import annotations

from onnxfuse.ir.compose import EXPENSIVE
from onnxfuse.plan.kinds import REDUCTION, weight
from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space


def astitch(space: Space) -> Cover:
    """The largest scopes between contractions and windows, which are not fused."""
    units = _units(space)
    scopes = _stitched(space, units, apart=False)
    return space.cover(_stitched(space, scopes, apart=True))


def _units(space: Space) -> list[Set]:
    """Dominant operators with the elementwise operators connected to them; those that share operators are merged."""
    own: dict[int, Set] = {}
    for i in reversed(space.order):
        if not space.of_memory(i):
            continue
        whole = 1 << i
        if not _dominant(space, i) or space.kind(i).name != REDUCTION:
            for r in space.readers(i):
                if r in own and space.elements(r) == space.elements(i) and space.kind(r).name != REDUCTION:
                    whole |= own[r]
        if not space.legal.allows(whole):
            whole = 1 << i
        own |= dict.fromkeys(members(whole), whole)
    return sorted(dict.fromkeys(own.values()), key=lambda u: u & -u)


def _dominant(space: Space, node: int) -> bool:
    """Whether an operator is dominant: it decides the schedule of those around it."""
    if space.kind(node).name == REDUCTION or space.is_given(node):
        return True
    readers = space.readers(node)
    wider = any(space.elements(r) > space.elements(node) for r in readers)
    return not all(map(space.of_memory, readers)) or (wider and weight(space.kind(node)) >= EXPENSIVE)


def _stitched(space: Space, groups: list[Set], *, apart: bool) -> list[Set]:
    """Groups merged with their producers and consumers, or with `apart` with independent groups."""
    legal, done = space.legal, list[Set]()
    pending = list(groups)
    while pending:
        scope = pending.pop(0)
        grown = True
        while grown:
            grown = False
            for other in pending:
                near = bool(legal.readers(scope) & other or legal.makers(scope) & other)
                if near == apart or not legal.allows(scope | other):
                    continue
                own = {i: g for g in (*done, *pending) for i in members(g)}
                if not legal.circular(scope | other, own):
                    pending.remove(other)
                    scope |= other
                    grown = True
                    break
        done.append(scope)
    return done
