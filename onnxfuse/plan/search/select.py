"""Selection of the cover with the least price among proposed groups, by dynamic programming.

Groups are added in topological order, so that a cover has no cycle. States are sets of covered nodes (closed under
predecessors); of different orders that reach the same set, the cheapest is kept. This is exact as long as there are few
sets; otherwise the most promising ones of each size are kept (beam search).

Of the orders of a cover one is enough: the one in which each group is the first, by its first node, of all that are
next. A group whose first node is before that of the group added last belongs before it, unless it waited for it; and
no group is passed over that need not wait. So branches that do not read each other are covered one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from onnxfuse.plan.legal import Legal, Set, bits, members, set_of

WIDTH = 400  # most sets of the same size that are kept; a region of 30 operators seldom has more


@dataclass(frozen=True, slots=True)
class PricedGroup:
    """A group, and its price; with `alone`, a node that stays with the runtime."""

    nodes: Set
    price: float
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Solved:
    """The cheapest cover of a region. `least` is the least price found of the region with each choice."""

    choices: tuple[PricedGroup, ...]
    price: float
    exact: bool
    least: Mapping[PricedGroup, float]


@dataclass(frozen=True, slots=True)
class _Step:
    """A choice as a step: a bound of what its nodes cost, the nodes that it waits for, and those that wait for it."""

    choice: PricedGroup
    bound: float
    makers: Set
    readers: tuple[int, ...]


@dataclass(slots=True)
class _At:
    """A state, a set of covered nodes: the least price, a bound of the rest, the last step to it, all steps from it.

    `ready` are the nodes that are next: what they read is covered. Of all last steps to it, `low` is the least first
    node, and `made` are the nodes of any.
    """

    price: float
    rest: float
    ready: Set
    low: int = -1
    made: Set = 0
    last: PricedGroup | None = None
    before: Set = 0
    steps: list[PricedGroup] = field(default_factory=list)


def cheapest(region: Set, choices: Iterable[PricedGroup], legal: Legal) -> Solved | None:
    """The cover of a region with the least price; None if some node has no choice."""
    groups = list(choices)
    bound = _bounds(region, groups)
    if any(bound[i] == inf for i in bound):
        return None
    steps: dict[int, list[_Step]] = {i: [] for i in members(region)}
    for c in groups:
        step = _Step(c, _rest(c.nodes, bound), legal.makers(c.nodes), members(legal.readers(c.nodes) & region))
        for i in members(c.nodes):
            steps[i].append(step)
    first = set_of(i for i in members(region) if not legal.before[i] & region)
    seen: dict[Set, _At] = {0: _At(0.0, _rest(region, bound), first)}
    levels: list[list[Set]] = [[] for _ in range(region.bit_count() + 1)]
    levels[0].append(0)
    exact = True
    for level in levels:
        if len(level) > WIDTH:
            level.sort(key=lambda s: (seen[s].price + seen[s].rest, s))
            exact = False
            for dropped in level[WIDTH:]:
                del seen[dropped]
            del level[WIDTH:]
        for done in level:
            _step(done, region, steps, legal, seen, levels)
    return _solved(region, seen, levels, exact=exact) if region in seen else None


def _step(
    done: Set,
    region: Set,
    steps: Mapping[int, Sequence[_Step]],
    legal: Legal,
    seen: dict[Set, _At],
    levels: list[list[Set]],
) -> None:
    """All steps from a state, where `steps` are those that cover a node."""
    here = seen[done]
    todo = region & ~done
    for i in bits(here.ready):
        waits = False
        for step in steps[i]:
            c = step.choice
            if c.nodes & done:
                continue
            if step.makers & todo:
                waits = True
                continue
            if c.nodes & -c.nodes != 1 << i or (i < here.low and not step.makers & here.made):
                continue
            then, price = done | c.nodes, here.price + c.price
            known = seen.get(then)
            if known is None:
                left = todo & ~c.nodes
                ready = set_of(r for r in step.readers if not legal.before[r] & left)
                seen[then] = _At(price, here.rest - step.bound, (here.ready & left) | ready, i, c.nodes, c, done)
                levels[then.bit_count()].append(then)
            else:
                known.low, known.made = min(known.low, i), known.made | c.nodes
                if price <= known.price:  # of equal ones that with the smallest last group
                    known.price, known.last, known.before = price, c, done
            here.steps.append(c)
        if not waits:
            return


def _bounds(region: Set, choices: Iterable[PricedGroup]) -> dict[int, float]:
    """A lower bound for each node: its share of the cheapest choice that contains it."""
    found = dict.fromkeys(members(region), inf)
    for c in choices:
        share = c.price / c.nodes.bit_count()
        for i in members(c.nodes):
            found[i] = min(found[i], share)
    return found


def _rest(nodes: Set, bound: Mapping[int, float]) -> float:
    return sum(bound[i] for i in members(nodes))


def _solved(region: Set, seen: Mapping[Set, _At], levels: Sequence[Sequence[Set]], *, exact: bool) -> Solved:
    chosen: list[PricedGroup] = []
    at = region
    while (last := seen[at].last) is not None:
        chosen.append(last)
        at = seen[at].before
    behind = {region: 0.0}  # the least price from each state to the end
    least: dict[PricedGroup, float] = {}
    for level in reversed(levels):
        for done in level:
            for c in seen[done].steps:
                then = behind.get(done | c.nodes)
                if then is not None:
                    behind[done] = min(behind.get(done, inf), c.price + then)
                    least[c] = min(least.get(c, inf), seen[done].price + c.price + then)
    return Solved(tuple(reversed(chosen)), seen[region].price, exact, least)
