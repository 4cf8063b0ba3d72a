"""The strategy `best`: the cover with the least price among the proposals of all strategies.

The graph is cut into regions, and the cheapest cover of each is found (`select.py`); equal regions are solved once.
Then neighbors are merged as long as that saves time, also across regions. The result is compared with the covers of all
strategies, so that none of them is predicted to be faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.group import Candidate
from onnxfuse.plan.legal import Set, members, set_of
from onnxfuse.plan.price import Prices, Seconds
from onnxfuse.plan.refusals import duration
from onnxfuse.plan.search.region import regions_of
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.select import PricedGroup, Solved, cheapest
from onnxfuse.plan.search.space import Space
from onnxfuse.plan.small_groups import USUAL_GROUP, looks_up_weights
from onnxfuse.plan.strategies.priority import merged
from onnxfuse.plan.unlocks import ALONE, ANCHORS, BUDGET

MERGED = "merged"  # the proposer of merged neighbors

Proposals = Mapping[str, Cover]  # by the name of the strategy, including anchors


Others = Mapping[str, Sequence[Set]]  # alternatives to groups of anchors, by name


def composed(space: Space, proposals: Proposals, others: Others) -> Cover | None:
    """The cover with the least price from groups that strategies propose, and others; None if there are no prices."""
    prices = space.prices
    unit = prices.plan(space.scope.finished(proposals["anchors"])[0]) if prices is not None else None
    return _Choosing(space, proposals, others, prices, unit).run() if prices is not None and unit is not None else None


class _Choosing:
    """Chooses among proposals; prices are relative to the plan of `anchors`, as the mean over all points."""

    def __init__(self, space: Space, proposals: Proposals, others: Others, prices: Prices, unit: Seconds) -> None:
        self.space, self.prices, self.unit = space, prices, unit
        self.proposals = proposals
        self.known: dict[object, tuple[int, Solved | None]] = {}
        self.by: dict[Set, list[str]] = {}
        for name, cover in proposals.items():
            for group in (set_of(g) for g in cover.groups):
                self.by.setdefault(group, []).append(name)
        for name, groups in others.items():
            for group in groups:
                self.by.setdefault(group, []).append(name)
        for i in space.order:
            self.by.setdefault(1 << i, [])

    def run(self) -> Cover:
        """The chosen groups, the nodes left to the runtime, and all proposals."""
        standing = [set_of(g) for g in self.proposals["anchors"].groups]
        chosen: list[PricedGroup] = []
        found: list[Solved] = []
        for region in regions_of(self.space.scope, standing):
            solved = self._solved(region)
            if solved is None:  # a price is unknown: use the cover of anchors
                chosen += [PricedGroup(g, 0.0) for g in standing if not g & ~region]
            else:
                found.append(solved)
                chosen += solved.choices
        groups = merged(self.space, [c.nodes for c in chosen if not c.alone], products=True)
        left = tuple(d for c in chosen if c.alone and (d := self._left(c.nodes)) is not None)
        told = tuple(self._candidates(found, set(groups)))
        return Cover(tuple(map(members, groups)), decided=True, left=left, candidates=told)

    def _solved(self, region: Set) -> Solved | None:
        """The cheapest cover of a region, copied from an earlier equal region if there is one."""
        choices = list(self._choices(region))
        by = (region & -region).bit_length() - 1
        wired = tuple((self.space.legal.before[i] & region) >> by for i in members(region))
        key = (wired, tuple((c.nodes >> by, c.price, c.alone) for c in choices))
        if key not in self.known:
            self.known[key] = (by, cheapest(region, choices, self.space.legal))
        first, found = self.known[key]
        return _moved(found, by - first) if found is not None else None

    def _choices(self, region: Set) -> Iterator[PricedGroup]:
        """The choices for the nodes of a region."""
        least = self.space.scope.options.min_group
        free = region & self.space.legal.free
        for group in sorted(g for g in self.by if not g & ~free):
            seconds = self.space.seconds(group)
            if seconds is not None and self._large_enough(group):
                yield PricedGroup(group, self._part(seconds))
        for i in members(region):
            left = self.prices.in_runtime(i)
            if not free >> i & 1:
                yield PricedGroup(1 << i, 0.0, alone=True)
            elif left is not None and (least > 1 or self.space.seconds(1 << i) is None) and self._may_be_left(i):
                yield PricedGroup(1 << i, self._part(left), alone=True)

    def _may_be_left(self, node: int) -> bool:
        """Whether a node may be left to the runtime.

        Times of kernels and of nodes are predicted by different models, and not compared. So a node that `anchors`
        fuses is left only if its time was measured, or its group has no price, is too small or would not be built.
        """
        scope = self.space.scope
        if looks_up_weights(scope.nodes[node], scope.graph, scope.by_name) and self.space.seconds(1 << node):
            return False
        group, seconds = self._anchored(node)
        if group is None or seconds is None or not self._large_enough(group) or self.prices.node_is_measured(node):
            return True
        return self.prices.is_clearly_slower(group)

    def _anchored(self, node: int) -> tuple[Set | None, Seconds | None]:
        """The group of `anchors` that has a node, and its times where they are known."""
        group = next((g for g in self.by if g >> node & 1 and "anchors" in self.by[g]), None)
        return group, self.space.seconds(group) if group is not None else None

    def _large_enough(self, group: Set) -> bool:
        """Whether a group has as many operators as `--min-group` asks for, where it asks for more than usual."""
        least = self.space.scope.options.min_group
        return least <= USUAL_GROUP or group.bit_count() >= least

    def _part(self, seconds: Seconds) -> float:
        return sum(s / u for s, u in zip(seconds, self.unit, strict=True)) / len(self.unit)

    def _left(self, node: Set) -> Decision | None:
        """The refusal of a node that could be fused but is left to the runtime."""
        (i,) = members(node)
        if not self.space.is_free(i):
            return None
        n, kernel, runtime = self.space.scope.nodes[i], self.prices.outcome(node), self.prices.in_runtime(i)
        if isinstance(kernel, Decision):
            return replace(kernel, nodes=(n.name,))
        at = self.prices.shown
        if kernel is None or runtime is None:
            return self._with_others(i) or Decision(
                "E-COST", (n.name,), f"the time of {n.op} as a kernel is unknown", BUDGET
            )
        said = f"{n.op}: {duration(kernel[at])} as a kernel by itself, {duration(runtime[at])} in ONNX Runtime"
        return Decision("E-COST", (n.name,), said, ALONE)

    def _with_others(self, node: int) -> Decision | None:
        """The refusal of a node that has no price by itself, but one in a group that the runtime is faster for."""
        n, at = self.space.scope.nodes[node], self.prices.shown
        group, seconds = self._anchored(node)
        apart = [self.prices.in_runtime(i) for i in members(group or 0)]
        if seconds is None or any(part is None for part in apart):
            return None
        whole = sum(part[at] for part in apart if part is not None)
        said = (
            f"{n.op} with {len(apart) - 1} more: {duration(seconds[at])} as a kernel, {duration(whole)} in ONNX Runtime"
        )
        return Decision("E-COST", (n.name,), said, ANCHORS)

    def _candidates(self, solved: Iterable[Solved], taken: set[Set]) -> Iterator[Candidate]:
        """All proposals, with their times and the reasons why they were not chosen."""
        least = {c.nodes: (price, s.price) for s in solved for c, price in s.least.items() if not c.alone}
        proposed = {group: by for group, by in self.by.items() if by}
        proposed |= {group: [MERGED] for group in sorted(taken) if group not in proposed}
        for group, by in proposed.items():
            if by:
                names = tuple(self.space.scope.nodes[i].name for i in members(group))
                seconds = self.space.seconds(group)
                shown = seconds[self.prices.shown] if seconds is not None else None
                why = (
                    None
                    if group in taken
                    else replace(self._why_not_chosen(group, seconds, least.get(group)), nodes=names)
                )
                with_it, without = least.get(group, (None, None))
                behind = None
                if seconds is not None and with_it is not None and without is not None:
                    behind = (with_it - without) / self._part(seconds)
                measured = seconds is not None and self.prices.is_measured(group)
                yield Candidate(names, tuple(by), shown, why, behind, measured)

    def _why_not_chosen(self, group: Set, seconds: Seconds | None, region: tuple[float, float] | None) -> Decision:
        """Why a group was not chosen; `region` is the time of its region with it, and the least time."""
        refused = self.space.legal.refusal(group) or self.prices.outcome(group)
        if isinstance(refused, Decision):
            return refused
        if seconds is None:
            return Decision("E-COST", (), "it was not scheduled, since the budget of candidates was used up", BUDGET)
        if region is None:
            return Decision("E-COST", (), "pruned by the beam search: other plans are predicted to be faster")
        unit = self.unit[self.prices.shown]
        with_it, without = (duration(part * unit) for part in region)
        how = "its own time measured" if self.prices.is_measured(group) else "as predicted"
        return Decision("E-COST", (), f"its region takes {with_it} with it, {without} without it, {how}")


def _moved(solved: Solved, by: int) -> Solved:
    """The result of a region, for an equal one `by` positions after it."""

    def moved(c: PricedGroup) -> PricedGroup:
        return replace(c, nodes=c.nodes << by)

    least = {moved(c): price for c, price in solved.least.items()}
    return replace(solved, choices=tuple(map(moved, solved.choices)), least=least)
