"""The graph as strategies see it: nodes that may be fused, their neighbours, and the plan that a cover becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.config import Options
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.group import Candidate, Group, Plan, group_of
from onnxfuse.ops.spec import Table
from onnxfuse.plan.alive import alive
from onnxfuse.plan.alone import pools_beside, spared, stays
from onnxfuse.plan.kinds import Kind
from onnxfuse.plan.layouts import layouts_of
from onnxfuse.plan.legality import Legality
from onnxfuse.plan.refusals import too_few, unworthy
from onnxfuse.plan.units import Units

Members = tuple[int, ...]  # positions of nodes, in order


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint groups of nodes by position, and what was refused on the way to them.

    Where prices `decided`, small groups were meant, and nodes were left to the runtime for a reason, which is `left`.
    """

    groups: tuple[Members, ...]
    decisions: tuple[Decision, ...] = ()
    decided: bool = False
    left: tuple[Decision, ...] = ()
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph without nodes that only serve shapes, and of its nodes by position those that may be fused.

    `whole` is the graph with them; `reads` are the values that each node depends on.
    """

    whole: Graph
    graph: Graph
    kinds: Mapping[int, Kind]
    reads: Sequence[tuple[str, ...]]
    options: Options
    legality: Legality

    @staticmethod
    def of(graph: Graph, kinds: dict[int, Kind], rows: Table, options: Options, legality: Legality) -> Scope:
        """The scope of a graph whose nodes may be fused where they have a kind."""
        return Scope(graph, *alive(graph, kinds, rows), options, legality)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes by position."""
        return self.graph.nodes

    @cached_property
    def apart(self) -> Units:
        """Every node alone, not to be joined."""
        return self.units()

    @cached_property
    def by_name(self) -> dict[str, Kind]:
        """Kinds by the names of nodes."""
        return {self.nodes[i].name: k for i, k in self.kinds.items()}

    @cached_property
    def _wanted(self) -> Counter[str]:
        found = Counter(v for values in self.reads for v in dict.fromkeys(values))
        found.update(self.graph.outputs)
        return found

    def units(self, cover: Iterable[Members] = ()) -> Units:
        """The nodes as units, those of a group together."""
        units = Units.of(self.graph, self.reads)
        for first, *others in cover:
            for i in others:
                units.join(first, i)
        return units

    def group(self, members: Members) -> Group:
        """Nodes as a group, under the name of its first."""
        nodes = tuple(self.nodes[m] for m in members)
        return group_of(nodes[0].name, nodes, self.graph, self._wanted)

    def finished(self, cover: Cover) -> tuple[Plan, list[Decision]]:
        """The plan of a cover, and why some of its nodes ended up in no group."""
        groups, dropped = self._worthwhile(cover)
        kept = layouts_of(self.graph, groups, self.by_name)
        made = Plan(self.graph, tuple(groups), kept, cover.decisions, candidates=cover.candidates)
        return made, [*cover.left, *dropped]

    def _worthwhile(self, cover: Cover) -> tuple[list[Group], list[Decision]]:
        """Groups in an order in which each comes after those that it reads from; no small ones but those meant."""
        least = self.options.min_group
        chosen = [g for g in cover.groups if cover.decided or not self._only_shapes(g)]
        dropped = [unworthy([self.nodes[m] for m in g]) for g in cover.groups if g not in chosen]
        units = self.units(chosen)
        groups = [self.group(tuple(units.members[g])) for g in units.ordered([g[0] for g in chosen])]
        if cover.decided:
            return groups, dropped
        shared = layouts_of(self.graph, groups, self.by_name)
        kept = [
            g for g in groups if stays(g, self.graph, self.by_name, shared, least, spared(g, self.whole, self.graph))
        ]
        beside = [g for g in groups if g in kept or pools_beside(g, kept, self.graph, self.by_name, least)]
        few = too_few([g for g in groups if g not in beside], self.graph, self.by_name, least)
        return beside, [*dropped, *few]

    def _only_shapes(self, members: Members) -> bool:
        """Whether a group only changes a shape, which costs the runtime nothing."""
        return self.options.min_group > 1 and all(self.kinds[m].keeps_order for m in members)
