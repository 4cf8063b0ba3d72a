"""Groups that differ from those of a cover in one decision which the growth of groups makes by a fixed rule.

| alternative | instead of |
| --- | --- |
| `prologue` | rows that a product reads are made in its kernel, not by the kernel before it |
| `stored` | they are made by a kernel of their own, not for the product alone |
| `chain` | a product goes through the kernel of the product that it reads |
| `apart` | it has a kernel of its own, with what follows it |
| `epilogue` | what reads a product is computed when that is stored, whatever it reads besides |
| `beside` | two groups that read the same value are one kernel |

Their prices tell which of them are worth it: `best` proposes them beside what strategies propose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfuse.plan.kinds import BATCHED, WEIGHTS, WINDOW
from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.search.space import Space

HEAVY = (WEIGHTS, BATCHED, WINDOW)


def alternatives(space: Space, groups: Sequence[Set]) -> dict[str, list[Set]]:
    """The legal groups of one decision made otherwise, by the name of the alternative."""
    found: dict[str, list[Set]] = {}
    own = {i: g for g in groups for i in members(g)}
    for group in groups:
        for name, other in (*_joined(space, group, own), *_beside(space, group, own), *_split(space, group)):
            if other != group and space.legal.allows(other) and other not in found.setdefault(name, []):
                found[name].append(other)
    return found


def _products(space: Space, group: Set) -> list[int]:
    return [i for i in members(group) if space.is_free(i) and space.kind(i).name in HEAVY]


def _joined(space: Space, group: Set, own: dict[int, Set]) -> Iterator[tuple[str, Set]]:
    """A group with one that reads it, and with all that do."""
    readers = sorted({own[i] for i in members(space.legal.readers(group)) if i in own})
    for r in readers:
        first, second = (bool(_products(space, g)) for g in (group, r))
        if first or second:
            yield ("chain" if first and second else "epilogue" if first else "prologue"), group | r
    if len(readers) > 1 and not _products(space, group):
        yield "prologue", group | sum(readers)


def _beside(space: Space, group: Set, own: dict[int, Set]) -> Iterator[tuple[str, Set]]:
    """A group with each later one that reads a value which it reads too."""
    scope = space.scope
    values = {v for i in members(group) for v in scope.reads[i] if v not in scope.graph.constants}
    readers = {i for v in values for i in scope.apart.readers.get(v, ())}
    yield from (("beside", group | g) for g in sorted({own[i] for i in readers if i in own}) if g > group)


def _split(space: Space, group: Set) -> Iterator[tuple[str, Set]]:
    """Both parts of a group that is cut before one of its products: behind another one, or behind what makes rows."""
    products = set_of(_products(space, group))
    for p in members(products):
        before = space.legal.above[p] & group
        behind = group & ~before if before else 0
        if behind and behind.bit_count() < group.bit_count():
            name = "apart" if before & products else "stored"
            yield from ((name, before), (name, behind))
