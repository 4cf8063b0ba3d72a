"""From strategies to plans: a strategy is run again as long as its groups leave further nodes to the runtime.

A node that stays needs its shape inputs after all, so nodes that compute shapes are no longer removable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from onnxfuse.config import BEST, EXHAUSTIVE, SEARCHES, USUAL, Options
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Candidate, Plan
from onnxfuse.ops.spec import OperatorTable
from onnxfuse.plan.kinds import Kind
from onnxfuse.plan.legal import members, set_of
from onnxfuse.plan.legality import Legality
from onnxfuse.plan.price import Costing, Seconds, clearly_less, mean_ratio
from onnxfuse.plan.refusals import about
from onnxfuse.plan.search.alternatives import SPLITS, alternatives
from onnxfuse.plan.search.best import composed
from onnxfuse.plan.search.exhaustive import proposals
from onnxfuse.plan.search.layouts import with_cheaper_layouts
from onnxfuse.plan.search.promises import in_order, may_win
from onnxfuse.plan.search.scope import Cover, Scope
from onnxfuse.plan.search.space import Space
from onnxfuse.plan.strategies import STRATEGIES
from onnxfuse.target import Target

Left = frozenset[str]  # names of nodes that stay with the runtime
_GIVEN = "given"  # no strategy: groups decided earlier
NEW_PLAN = "--strategy makes a new plan"


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans a graph whose nodes, by position, are of these kinds. Spaces and covers are memoized."""

    graph: Graph
    kinds: Mapping[int, Kind]
    rows: OperatorTable
    options: Options
    legality: Legality[Target]
    costing: Costing | None
    _given: list[tuple[str, ...]] = field(default_factory=list)  # groups decided earlier
    _spaces: dict[Left, Space] = field(default_factory=dict)
    _covers: dict[tuple[str, Left], Cover] = field(default_factory=dict)

    def made(self, name: str) -> Plan:
        """The plan of a strategy."""
        return self._made(name)[0]

    def again(self, grouping: Iterable[tuple[str, ...]], *, searched: bool) -> Plan:
        """The plan of groups decided earlier, given by names of nodes, as far as they are legal.

        Where a search has found them, values have the layouts that it gives them.
        """
        self._given[:] = grouping
        made = self.made(_GIVEN)
        return self._with_cheaper_layouts(made) if searched else made

    def kept(self, earlier: Plan, *, searched: bool) -> Plan:
        """The groups of an earlier plan whose nodes still are fusible, with its candidates and refusals."""
        names = [tuple(n.name for n in g.nodes) for g in earlier.groups]
        made, free = self.again(names, searched=searched), {self.graph.nodes[i].name for i in self.kinds}
        told = {name for d in earlier.decisions for name in d.nodes}
        new = [d for d in made.decisions if not told.issuperset(d.nodes)]
        candidates = tuple(c for c in earlier.candidates if free.issuperset(c.nodes))
        return replace(made, decisions=(*earlier.decisions, *new), candidates=candidates)

    def searched(self, name: str = BEST) -> Plan:
        """The plan with the least predicted time, of all strategies and of their combination.

        With `exhaustive`, every legal group of small regions is considered too.

        The plan of `anchors` if there are no prices, or if no other is better by more than `TIE` and by as many seconds
        as are worth it; when prices are measured, smaller differences count too.
        """
        anchors, unit = self._priced(USUAL)
        if unit is None or 0.0 in unit or self.costing is None:
            return self._with_cheaper_layouts(anchors)
        found = [self._priced(search) for search in dict.fromkeys((name, BEST))]
        plans = [(anchors, unit), *found]
        least = min(_ratio(seconds, unit) for _, seconds in plans)
        asked = [other for other in STRATEGIES if other != USUAL and (other, frozenset[str]()) in self._covers]
        plans += [self._priced(other) for other in asked if _ratio(self._at_first(other), unit) < least]
        measures, worth = self.costing.memo.samples is not None, self.costing.worth
        seen = [(s, p) for p, s in plans if s is not None and (measures or clearly_less(s, unit, worth))]
        _, made = min(seen, key=lambda pair: mean_ratio(pair[0], unit), default=(unit, anchors))
        groups = {tuple(n.name for n in g.nodes) for g in made.groups}
        tie = Decision("E-COST", (), "with it, no plan is predicted to be clearly faster than that of anchors")
        ends = {True: None, False: tie}
        told = []
        for c in found[0][0].candidates:
            why = ends[c.nodes in groups] if c.reason is None or c.nodes in groups else c.reason
            told.append(replace(c, reason=why and replace(why, nodes=c.nodes)))
        return self._with_cheaper_layouts(replace(made, candidates=tuple(told)))

    def _with_cheaper_layouts(self, made: Plan) -> Plan:
        prices = self._space(frozenset()).prices
        return made if prices is None else with_cheaper_layouts(made, prices)

    def _priced(self, name: str) -> tuple[Plan, Seconds | None]:
        """The plan of a strategy, and its seconds."""
        made, space = self._made(name)
        return made, _seconds(made, space)

    def _at_first(self, name: str) -> Seconds | None:
        """Seconds of a strategy's first plan, before further nodes are left to the runtime."""
        space = self._space(frozenset())
        return _seconds(space.scope.finished(self._cover(name, frozenset()))[0], space)

    def _made(self, name: str) -> tuple[Plan, Space]:
        decisions: list[Decision] = []
        candidates: dict[tuple[str, ...], Candidate] = {}  # of all rounds: a node that is left drops its candidates
        left: Left = frozenset()
        while True:
            made, dropped = self._space(left).scope.finished(self._cover(name, left))
            candidates |= {c.nodes: _with_reason(c, dropped) for c in made.candidates}
            again = {node for d in dropped for node in d.nodes}
            if not again:
                made = replace(made, decisions=(*decisions, *made.decisions), candidates=tuple(candidates.values()))
                return made, self._space(left)
            decisions += [*dropped, *about(made.decisions, again)]
            left |= again

    def _space(self, left: Left) -> Space:
        if left not in self._spaces:
            free = {i: k for i, k in self.kinds.items() if self.graph.nodes[i].name not in left}
            scope = Scope.of(self.graph, free, self.rows, self.options, self.legality)
            self._spaces[left] = Space(scope, self.costing)
        return self._spaces[left]

    def _cover(self, name: str, left: Left) -> Cover:
        if (name, left) not in self._covers:
            if name in SEARCHES:
                found = self._composed(left, every=name == EXHAUSTIVE)
            else:
                found = self._decided(left) if name == _GIVEN else STRATEGIES[name](self._space(left))
            self._covers[name, left] = found
        return self._covers[name, left]

    def _decided(self, left: Left) -> Cover:
        """The groups decided earlier; the cover of `anchors` if they form a cycle."""
        space = self._space(left)
        at = {space.scope.nodes[i].name: i for i in space.order}
        found = [set_of(at[n] for n in names) for names in self._given if all(n in at for n in names)]
        groups = [g for g in found if space.legal.allows(g)]
        if not space.legal.acyclic(groups):
            return self._cover(USUAL, left)
        alone = {n for n, i in at.items() if not any(g >> i & 1 for g in groups)}
        stay = (
            Decision("E-COST", (n,), "the plan that was measured leaves it to ONNX Runtime", NEW_PLAN) for n in alone
        )
        return Cover(tuple(map(members, groups)), decided=True, left=tuple(sorted(stay, key=lambda d: at[d.nodes[0]])))

    def _composed(self, left: Left, *, every: bool = False) -> Cover:
        """The cover combined from alternatives to that of `anchors` and from those of strategies.

        The cover of `anchors` if there are no prices, or if none of that might save enough. With `every`, from all
        legal groups of small regions too. Groups of each strategy are priced at once; strategies that need most
        prices come last. All of it as far as the budget lasts.
        """
        space, covers = self._space(left), {USUAL: self._cover(USUAL, left)}
        prices, unit = space.prices, _seconds(space.scope.finished(covers[USUAL])[0], space)
        if prices is None or unit is None:
            return covers[USUAL]
        usual, memo = [set_of(g) for g in covers[USUAL].groups], prices.costing.memo
        others = alternatives(space, usual)
        for group in usual:
            prices.outcome(group, counted=False)
        parts = [g for name in SPLITS for g in others.get(name, ())]
        for group in parts:
            prices.outcome(group)
        if not every and memo.samples is None and not may_win(space, prices, usual, parts, unit):
            return covers[USUAL]
        for group in in_order(space, prices, usual, others):
            prices.outcome(group)
        memo.kept = memo.budget // 2  # for what the choice is merged to, and what is planned again
        for name in STRATEGIES:
            if memo.spent:
                break
            covers[name] = self._cover(name, left)
            for members_ in covers[name].groups:
                space.seconds(set_of(members_))
        if every:
            others[EXHAUSTIVE] = proposals(space, usual)
            for group in others[EXHAUSTIVE]:
                space.seconds(group)
        memo.kept = 0
        return composed(space, covers, others) or covers[USUAL]


def _seconds(made: Plan, space: Space) -> Seconds | None:
    return space.prices.plan(made) if space.prices is not None else None


def _ratio(seconds: Seconds | None, unit: Seconds) -> float:
    """Time over `unit`; infinite if unknown."""
    return inf if seconds is None else mean_ratio(seconds, unit)


def predicted(made: Plan, options: Options, legality: Legality[Target], costing: Costing) -> Seconds | None:
    """Seconds of a plan at each point, including nodes that stay with the runtime; None if a kernel has no price."""
    graph = made.graph
    scope = Scope(graph, graph, {}, [n.reads for n in graph.nodes], options, legality)
    return _seconds(made, Space(scope, costing))


def _with_reason(c: Candidate, dropped: Iterable[Decision]) -> Candidate:
    """The candidate; with the reason of the refusal if one of its nodes was left to the runtime later."""
    why = next((d for d in dropped if not {*d.nodes}.isdisjoint(c.nodes)), None)
    return c if why is None or c.reason is not None else replace(c, reason=replace(why, nodes=c.nodes))
