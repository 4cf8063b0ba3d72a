"""The input of a strategy: the nodes of a scope, legality of groups, and prices if there are any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from onnxfuse.ir.graph import Graph
from onnxfuse.ir.indexing import product
from onnxfuse.plan.kinds import DECODING, ELEMENTWISE, MOVEMENT, REDUCTION, Kind
from onnxfuse.plan.legal import Legal, Set, members
from onnxfuse.plan.price import Costing, Prices, Seconds
from onnxfuse.plan.search.scope import Cover, Scope

USUAL = 128  # symbolic extents count as this many elements when sizes of values are compared
MEMORY = (ELEMENTWISE, MOVEMENT, DECODING, REDUCTION)  # kinds of operators that are memory-bound


@dataclass(frozen=True, eq=False)
class Space:
    """A scope with legality, and prices by a `costing`."""

    scope: Scope
    costing: Costing | None = None

    @cached_property
    def legal(self) -> Legal:
        """The legality of groups."""
        return Legal(self.scope)

    @cached_property
    def prices(self) -> Prices | None:
        """Prices of groups; None if there is no budget or no possible size, in which case strategies do without."""
        if self.costing is None or self.costing.memo.budget <= 0:
            return None
        found = Prices(self.scope, self.costing)
        return found if found.sizes else None

    @property
    def graph(self) -> Graph:
        """The graph to plan."""
        return self.scope.graph

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions of the fusible nodes."""
        return tuple(sorted(self.scope.kinds))

    def kind(self, node: int) -> Kind:
        """The kind of a fusible node."""
        return self.scope.kinds[node]

    def is_free(self, node: int) -> bool:
        """Whether a node is fusible."""
        return node in self.scope.kinds

    def readers(self, node: int) -> list[int]:
        """The consumers of a node, in order."""
        return self.scope.apart.after[node]

    def makers(self, node: int) -> list[int]:
        """The producers of a node, in order."""
        return self.scope.apart.before[node]

    def is_given(self, node: int) -> bool:
        """Whether an output of a node is an output of the graph."""
        return any(o in self.graph.outputs for o in self.scope.nodes[node].outputs)

    def of_memory(self, node: int) -> bool:
        """Whether a node is fusible and memory-bound: no contraction and no window."""
        return self.is_free(node) and self.kind(node).name in MEMORY

    def elements(self, node: int) -> int:
        """Number of elements of the first output of a node, with a usual extent for symbols."""
        t = self.graph.types.get(self.scope.nodes[node].outputs[0])
        count = 1
        for extent in t.shape if t is not None else ():
            count *= product([extent]).constant or USUAL
        return count

    def seconds(self, nodes: Set) -> Seconds | None:
        """Seconds of a set as a kernel; None if it is illegal, has no kernel, or there are no prices."""
        return self.prices.of(nodes) if self.prices is not None and self.legal.allows(nodes) else None

    def cover(self, groups: list[Set]) -> Cover:
        """Disjoint sets as a cover; sets that form a cycle are split up."""
        kept: list[Set] = []
        if self.legal.acyclic(groups):
            kept = groups
        else:
            for g in sorted(groups, key=lambda g: (-g.bit_count(), g)):
                if g.bit_count() > 1 and self.legal.acyclic([*kept, g]):
                    kept.append(g)
        inside = 0
        for g in kept:
            inside |= g
        alone = [1 << i for i in self.order if not inside >> i & 1]
        return Cover(tuple(members(g) for g in sorted([*kept, *alone], key=lambda g: g & -g)))
