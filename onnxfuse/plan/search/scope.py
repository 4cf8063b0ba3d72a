"""The graph as strategies see it: fusible nodes and their neighbors; and plans made from covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from onnxfuse.config import Options
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ir.group import Candidate, Group, Plan, group_of
from onnxfuse.ir.layout import Layout
from onnxfuse.ops.spec import OperatorTable
from onnxfuse.plan.dependences import alive
from onnxfuse.plan.kinds import Kind
from onnxfuse.plan.layouts import layouts_of
from onnxfuse.plan.legality import Legality
from onnxfuse.plan.refusals import too_few, unworthy
from onnxfuse.plan.small_groups import pools_beside, spared, stays
from onnxfuse.plan.units import Units
from onnxfuse.target import Target

Members = tuple[int, ...]  # positions of nodes, in order


@dataclass(frozen=True, slots=True)
class Cover:
    """Disjoint groups of nodes by position, and the refusals made on the way.

    If prices `decided`, small groups are kept, and `left` has the reasons for nodes left to the runtime.
    """

    groups: tuple[Members, ...]
    decisions: tuple[Decision, ...] = ()
    decided: bool = False
    left: tuple[Decision, ...] = ()
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph without nodes that only compute shapes, and the kinds of its fusible nodes by position.

    `whole` is the graph with all nodes; `reads` are the values that each node depends on.
    """

    whole: Graph
    graph: Graph
    kinds: Mapping[int, Kind]
    reads: Sequence[tuple[str, ...]]
    options: Options
    legality: Legality[Target]

    @staticmethod
    def of(
        graph: Graph, kinds: dict[int, Kind], rows: OperatorTable, options: Options, legality: Legality[Target]
    ) -> Scope:
        """The scope of a graph; nodes with a kind are fusible."""
        return Scope(graph, *alive(graph, kinds, rows), options, legality)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes by position."""
        return self.graph.nodes

    @cached_property
    def apart(self) -> Units:
        """Every node as a unit of its own."""
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
        """The nodes as units, one for each group."""
        units = Units.of(self.graph, self.reads)
        for first, *others in cover:
            for i in others:
                units.join(first, i)
        return units

    def group(self, members: Members) -> Group:
        """A group of nodes, named after the first."""
        nodes = tuple(self.nodes[m] for m in members)
        return group_of(nodes[0].name, nodes, self._wanted)

    def plan(self, groups: tuple[Group, ...], layouts: Mapping[str, Layout]) -> Plan:
        """A plan of these groups, for this backend."""
        return Plan(self.graph, groups, layouts, widened=self.legality.widened)

    def finished(self, cover: Cover) -> tuple[Plan, list[Decision]]:
        """The plan of a cover, with refusals of the nodes that are in no group."""
        groups, dropped = self._worthwhile(cover)
        kept = layouts_of(self.graph, groups, self.by_name)
        found = self.plan(tuple(groups), kept)
        made = replace(found, decisions=cover.decisions, candidates=cover.candidates)
        return made, [*cover.left, *dropped]

    def _worthwhile(self, cover: Cover) -> tuple[list[Group], list[Decision]]:
        """The groups in topological order, without those that are too small unless prices decided."""
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
        """Whether a group only changes a shape, which is free in the runtime."""
        return self.options.min_group > 1 and all(self.kinds[m].keeps_order for m in members)
