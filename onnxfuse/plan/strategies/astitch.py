"""Fusion as AStitch has it (2022): everything between contractions, in scopes that are as large as may be.

Dominant operators are reductions, expensive values that are broadcast, and results. Those that are joined by operators
which go from element to element alone are merged (dominant merging), so that one order of elements suits all of them.
Such units are stitched along what they read, whatever they reduce: they may wait for each other inside of a kernel.
Scopes that do not depend on each other are stitched too. Nothing but cycles, and the size of a group, limits them; no
price is asked.
"""

from __future__ import annotations

from onnxfuse.ir.compose import EXPENSIVE
from onnxfuse.plan.kinds import REDUCTION, weight
from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space


def astitch(space: Space) -> Cover:
    """The largest scopes between contractions and windows, which stand alone."""
    units = _units(space)
    scopes = _stitched(space, units, apart=False)
    return space.cover(_stitched(space, scopes, apart=True))


def _units(space: Space) -> list[Set]:
    """Dominant operators, each with what is joined to it element by element; merged where that is the same."""
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
    """Whether an operator decides the order of elements for those around it."""
    if space.kind(node).name == REDUCTION or space.is_given(node):
        return True
    readers = space.readers(node)
    wider = any(space.elements(r) > space.elements(node) for r in readers)
    return not all(map(space.of_memory, readers)) or (wider and weight(space.kind(node)) >= EXPENSIVE)


def _stitched(space: Space, groups: list[Set], *, apart: bool) -> list[Set]:
    """Groups merged with all that they read and are read by, or (`apart`) with others that they do not depend on."""
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
