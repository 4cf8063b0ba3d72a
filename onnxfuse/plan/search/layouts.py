"""Images that keep the runtime's layout where their kernels are predicted to be faster so.

Channels last suit most networks. An island of few kernels between nodes of the runtime transposes twice for it, and
filters that are fewer than the lanes of a vector leave most of each tile empty: filters as rows of a tile and pixels as
its columns need neither. Where such a filter ends a large network (an image of three colours, a mask), the values
right before it are tried alone: what makes them transposes. So are the stages of a large network whose images have few
channels, the last ones of a vocoder for example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.ir.group import Group, Plan
from onnxfuse.plan.layouts import CHANNELS
from onnxfuse.plan.price import Prices, mean_ratio

MOST = 6  # kernels of an island, or of the end of one, at most: each is scheduled once more
IN_ALL = 48  # kernels of all parts, at most; not by the budget, which is another one where a lock gives the groups
SAVED = 0.015  # share of time that is saved, at least, on one core and on all of the target
FEW = 16  # channels that are fewer: those of a vector
LOST = 0.25  # share of time that may be lost on a larger machine


def with_cheaper_layouts(made: Plan, prices: Prices) -> Plan:
    """The plan, without the layouts of islands that are predicted to be faster in the runtime's layout."""
    priced = 0
    for values, groups in _islands(made):
        whole = len(groups) <= MOST
        ends = [(values, MOST)] if whole else [(part, MOST) for part in _ends(made, values, groups)]
        stages = [] if whole else [(part, IN_ALL) for part in _stages(made, values, groups)]
        for part, most in (*ends, *stages):
            kept = {v: layout for v, layout in made.layouts.items() if v not in part}
            touched = groups if whole else tuple(g for g in groups if part.intersection((*g.inputs, *g.outputs)))
            if kept.keys() == made.layouts.keys() or len(touched) > min(most, IN_ALL - priced):
                continue
            priced += len(touched)
            if _pays(touched, made, replace(made, layouts=kept), prices):
                made = replace(made, layouts=kept)
            prices.of_groups(touched, made.layouts)  # asked last: `tune` measures these, not those left
    return made


def _ends(made: Plan, values: frozenset[str], groups: Sequence[Group]) -> list[frozenset[str]]:
    """The images that are read where few channels leave an island; and those with what they are made of."""
    found: list[frozenset[str]] = []
    for g in groups:
        if any(_few(made, v) is not None for v in g.outputs if v not in values):
            near = values.intersection(g.inputs)
            found += [near, near.union(*(values.intersection(m.inputs) for m in groups if near & set(m.outputs)))]
    return [part for part in dict.fromkeys(found) if part]


def _stages(made: Plan, values: frozenset[str], groups: Sequence[Group]) -> list[frozenset[str]]:
    """The images with few channels, equally many each, by what groups connect."""
    found: list[frozenset[str]] = []
    for g in groups:
        channels = {v: _few(made, v) for v in (*g.inputs, *g.outputs) if v in values}
        for count in sorted({c for c in channels.values() if c is not None}):
            mine = frozenset(v for v, c in channels.items() if c == count)
            joined = [part for part in found if part & mine]
            found = [*(part for part in found if not part & mine), mine.union(*joined)]
    return found


def _few(made: Plan, value: str) -> int | None:
    """The channels of a value that is an image of few."""
    t = made.graph.types.get(value)
    count = t.shape[CHANNELS].constant if t is not None and len(t.shape) > CHANNELS + 1 else None
    return count if count is not None and count < FEW else None


def _pays(groups: Sequence[Group], made: Plan, other: Plan, prices: Prices) -> bool:
    """Whether groups are faster with the layouts of another plan."""
    now, then = (prices.of_groups(groups, each.layouts) for each in (made, other))
    if now is None or then is None or 0.0 in now:
        return False
    here = mean_ratio(prices.on_target(then), prices.on_target(now))
    return here < 1 - SAVED and max(a / b for a, b in zip(then, now, strict=True)) < 1 + LOST


def _islands(made: Plan) -> list[tuple[frozenset[str], tuple[Group, ...]]]:
    """The values with a layout, and the groups that make or read them, by what groups connect."""
    rest = [(frozenset(made.layouts.keys() & {*g.inputs, *g.outputs}), g) for g in made.groups]
    found: list[tuple[frozenset[str], tuple[Group, ...]]] = []
    for values, group in ((values, g) for values, g in rest if values):
        joined = [island for island in found if island[0] & values]
        apart = [island for island in found if not island[0] & values]
        together = values.union(*(names for names, _ in joined))
        found = [*apart, (together, (*(g for _, groups in joined for g in groups), group))]
    return found
