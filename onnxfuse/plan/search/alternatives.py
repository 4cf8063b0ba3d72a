"""Groups that differ from those of a cover in one decision that growth makes by a fixed rule.

| alternative | difference |
| --- | --- |
| `prologue` | rows that a product reads are computed in its kernel, not by the kernel before it |
| `stored` | rows that a product reads are computed and stored by a kernel of their own |
| `chain` | a product is fused with the product that it reads |
| `apart` | a product fused with another gets a kernel of its own, with what follows it |
| `epilogue` | readers of a product are fused into its epilogue, whatever else they read |
| `beside` | two groups that read the same value are one kernel |
| `strips` | a window is one phase with the convolutions around it, where the closed form that growth uses says no |

`best` considers them in addition to the proposals of strategies, and chooses by price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxfuse.plan.kinds import HEAVY, WINDOW
from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.search.space import Space

SPLITS = ("apart", "stored")  # alternatives that are parts of a group


def alternatives(space: Space, groups: Sequence[Set]) -> dict[str, list[Set]]:
    """The legal groups that differ in one decision, by the name of the alternative."""
    found: dict[str, list[Set]] = {}
    own = {i: g for g in groups for i in members(g)}
    for group in groups:
        for name, other in (
            *_joined(space, group, own), *_beside(space, group, own), *_split(space, group), *_strips(space, group, own)
        ):  # fmt: skip
            if other != group and space.legal.allows(other) and other not in found.setdefault(name, []):
                found[name].append(other)
    return found


def products(space: Space, group: Set) -> list[int]:
    """The contractions and windows of a group."""
    return [i for i in members(group) if space.is_free(i) and space.kind(i).name in HEAVY]


def _joined(space: Space, group: Set, own: dict[int, Set]) -> Iterator[tuple[str, Set]]:
    """A group with each of its readers, and with all of them."""
    readers = sorted({own[i] for i in members(space.legal.readers(group)) if i in own})
    for r in readers:
        first, second = (bool(products(space, g)) for g in (group, r))
        if first or second:
            yield ("chain" if first and second else "epilogue" if first else "prologue"), group | r
    if len(readers) > 1 and not products(space, group):
        yield "prologue", group | sum(readers)


def _beside(space: Space, group: Set, own: dict[int, Set]) -> Iterator[tuple[str, Set]]:
    """A group with each later one that reads one of its inputs."""
    scope = space.scope
    values = {v for i in members(group) for v in scope.reads[i] if v not in scope.graph.constants}
    readers = {i for v in values for i in scope.apart.readers.get(v, ())}
    yield from (("beside", group | g) for g in sorted({own[i] for i in readers if i in own}) if g > group)


def _strips(space: Space, group: Set, own: dict[int, Set]) -> Iterator[tuple[str, Set]]:
    """The group of a window with the one that makes its image, and with the one that reads its result too."""
    scope, legal = space.scope, space.legal
    heavy = products(space, group)
    before, behind = ({own[i] for i in members(each(group)) if i in own} for each in (legal.makers, legal.readers))
    if [space.kind(p).name for p in heavy] != [WINDOW] or len(before) != 1:
        return
    (first,), (p,) = before, heavy
    made = [(scope.nodes[i].outputs, space.kind(i)) for i in members(first)]
    target, single = scope.legality.targets(scope.options)[0], scope.options.precision == "fp32"
    why = scope.legality.windowed(scope.graph, made, scope.nodes[p], space.kind(p), target, single)
    if why is not None and why[0] != "E-COST":
        return
    yield "strips", first | group
    yield from (("strips", first | group | r) for r in behind if len(behind) == 1 and products(space, r))


def _split(space: Space, group: Set) -> Iterator[tuple[str, Set]]:
    """Both parts of a group that is split before one of its products: after another product, or after its prologue."""
    heavy = set_of(products(space, group))
    for p in members(heavy):
        before = space.legal.above[p] & group
        behind = group & ~before if before else 0
        if behind and behind.bit_count() < group.bit_count():
            name = "apart" if before & heavy else "stored"
            yield from ((name, before), (name, behind))
