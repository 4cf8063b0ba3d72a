"""What other groups may save at most, which is known before they are scheduled.

A merge saves a kernel's call and the way of a value from one kernel to the next, and no products. So a budget of
candidates is spent first where most may be saved, and not at all where a plan could not become clearly faster even if
nothing but products took time. What a group saves that is split is known by price only; the parts of a group are cheap
to schedule. Windows that are merged with products are not: their lines are unrolled in several ways.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from onnxfuse.plan.legal import Set, members
from onnxfuse.plan.price import Prices, Seconds, clearly_less, summed
from onnxfuse.plan.search.alternatives import SPLITS, products
from onnxfuse.plan.search.space import Space

LEAST = 0.01  # share of a plan's time that is not saved, whatever the bound says


def in_order(space: Space, prices: Prices, groups: Sequence[Set], others: Mapping[str, Sequence[Set]]) -> list[Set]:
    """The alternatives to `groups`: parts of groups, then merges by what they may save, and those with windows last."""
    handed = list(_handed(space, prices, groups))
    parts = [g for name in SPLITS for g in others.get(name, ())]
    merges = dict.fromkeys(g for name, found in others.items() if name not in SPLITS for g in found)
    promise = {g: sum(sum(s) for v, s in handed if not v & ~g) for g in merges}
    return [*parts, *sorted(merges, key=lambda g: (prices.counts(g), -promise[g]))]


def may_win(space: Space, prices: Prices, groups: Sequence[Set], parts: Iterable[Set], unit: Seconds) -> bool:
    """Whether the plan of `groups`, which takes `unit`, might become clearly faster by merges, and by these parts."""
    if 0.0 in unit:
        return False
    light = [prices.of(g) for g in groups if not products(space, g)]
    left = [prices.in_runtime(i) for i in space.order if not any(g >> i & 1 for g in groups)]
    if None in light or any(map(prices.is_clearly_slower, groups)):
        return True
    saved = [s for s in (*light, *left, *_split(prices, groups, set(parts))) if s is not None]
    total = summed([*saved, *(s for _, s in _handed(space, prices, groups))], len(unit))
    least = tuple(max(u - s, u * LEAST) for u, s in zip(unit, total, strict=True))
    return clearly_less(least, unit, prices.costing.worth)


def _split(prices: Prices, groups: Iterable[Set], parts: Collection[Set]) -> Iterator[Seconds | None]:
    """What each group saves as two of the parts."""
    for group in groups:
        for part in parts:
            if not part & ~group and group & ~part in parts:
                yield _saved(prices, group, (part, group & ~part))


def _handed(space: Space, prices: Prices, groups: Iterable[Set]) -> Iterator[tuple[Set, Seconds]]:
    """The values that go from one group to another: the node that makes each and those that read it, and seconds."""
    own = {i: g for g in groups for i in members(g)}
    for i in own:
        readers: dict[Set, Set] = {}
        for r in space.readers(i):
            if r in own and own[r] != own[i]:
                readers[own[r]] = readers.get(own[r], 0) | 1 << r
        values = [v for v in space.scope.nodes[i].outputs if space.graph.types.get(v) is not None]
        for nodes in readers.values():
            yield 1 << i | nodes, summed(map(prices.handing_on, values), prices.points)


def _saved(prices: Prices, group: Set, parts: Iterable[Set]) -> Seconds | None:
    """Seconds that a group saves as two, at points where it does; None if a price is unknown."""
    whole, each = prices.of(group), [prices.of(p) for p in parts]
    if whole is None or None in each:
        return None
    apart = summed([p for p in each if p is not None], len(whole))
    return tuple(max(w - a, 0.0) for w, a in zip(whole, apart, strict=True))
