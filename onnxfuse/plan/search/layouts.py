"""Images that keep the runtime's layout where their kernels are predicted to be faster so.

Channels last suit most networks. An island of few kernels between nodes of the runtime transposes twice for it, and
filters that are fewer than the lanes of a vector leave most of each tile empty: filters as rows of a tile and pixels as
its columns need neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.ir.group import Group, Plan
from onnxfuse.plan.price import Prices, mean_ratio

MOST = 6  # kernels of an island, at most: each is scheduled once more
IN_ALL = 24  # kernels of all islands, at most; not by the budget, which is another one where a lock gives the groups
SAVED = 0.015  # share of time that is saved, at least, on one core and on all of the target
LOST = 0.25  # share of time that may be lost on a larger machine


def with_cheaper_layouts(made: Plan, prices: Prices) -> Plan:
    """The plan, without the layouts of islands that are predicted to be faster in the runtime's layout."""
    priced = 0
    for values, groups in _islands(made):
        kept = {v: layout for v, layout in made.layouts.items() if v not in values}
        if len(groups) > min(MOST, IN_ALL - priced):
            continue
        priced += len(groups)
        if _pays(groups, made, replace(made, layouts=kept), prices):
            made = replace(made, layouts=kept)
        prices.of_groups(groups, made.layouts)  # asked last: `tune` measures these, not those left
    return made


def _pays(groups: Sequence[Group], made: Plan, other: Plan, prices: Prices) -> bool:
    """Whether groups are faster with the layouts of another plan."""
    now, then = (prices.of_groups(groups, each.layouts) for each in (made, other))
    if now is None or then is None or 0.0 in now:
        return False
    here = mean_ratio(prices.on_target(then), prices.on_target(now))
    return here < 1 - SAVED and max(a / b for a, b in zip(then, now, strict=True)) < 1 + LOST


def _islands(made: Plan) -> list[tuple[frozenset[str], tuple[Group, ...]]]:
    """The values with a layout, and the groups that make or read them, by what groups connect."""
    rest = [(frozenset((*g.inputs, *g.outputs)) & made.layouts.keys(), g) for g in made.groups]
    found: list[tuple[frozenset[str], tuple[Group, ...]]] = []
    for values, group in ((values, g) for values, g in rest if values):
        joined = [island for island in found if island[0] & values]
        apart = [island for island in found if not island[0] & values]
        together = values.union(*(names for names, _ in joined))
        found = [*apart, (together, (*(g for _, groups in joined for g in groups), group))]
    return found
