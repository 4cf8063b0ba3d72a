"""What a strategy is given: the nodes of a scope, the laws for groups of them, and their prices where there are any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from onnxfuse.ir.graph import Graph
from onnxfuse.ir.indexing import product
from onnxfuse.plan.kinds import DECODING, ELEMENTWISE, MOVEMENT, REDUCTION, Kind
from onnxfuse.plan.legal import Legal, Set, members
from onnxfuse.plan.price import Costing, Prices, Seconds
from onnxfuse.plan.search.scope import Cover, Scope

USUAL = 128  # elements along an extent that is a symbol, where sizes of values are compared
MEMORY = (ELEMENTWISE, MOVEMENT, DECODING, REDUCTION)  # kinds of operators that take as long as their bytes


@dataclass(frozen=True, eq=False)
class Space:
    """A scope with its laws, and prices made of a `costing`."""

    scope: Scope
    costing: Costing | None = None

    @cached_property
    def legal(self) -> Legal:
        """The laws for groups."""
        return Legal(self.scope)

    @cached_property
    def prices(self) -> Prices | None:
        """None where nothing may be scheduled, or no sizes are possible: then strategies do what needs no prices."""
        if self.costing is None or self.costing.memo.budget <= 0:
            return None
        found = Prices(self.scope, self.costing)
        return found if found.sizes else None

    @property
    def graph(self) -> Graph:
        """The graph that is planned."""
        return self.scope.graph

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions of the nodes that may be fused."""
        return tuple(sorted(self.scope.kinds))

    def kind(self, node: int) -> Kind:
        """The kind of a node that may be fused."""
        return self.scope.kinds[node]

    def is_free(self, node: int) -> bool:
        """Whether a node may be fused."""
        return node in self.scope.kinds

    def readers(self, node: int) -> list[int]:
        """Nodes that read what a node makes, in order."""
        return self.scope.apart.after[node]

    def makers(self, node: int) -> list[int]:
        """Nodes that make what a node reads, in order."""
        return self.scope.apart.before[node]

    def is_given(self, node: int) -> bool:
        """Whether a node makes an output of the graph."""
        return any(o in self.graph.outputs for o in self.scope.nodes[node].outputs)

    def of_memory(self, node: int) -> bool:
        """Whether a node may be fused and takes as long as its bytes: no contraction, and no window."""
        return self.is_free(node) and self.kind(node).name in MEMORY

    def elements(self, node: int) -> int:
        """Elements of the first result of a node; symbols count as usual extents."""
        t = self.graph.types.get(self.scope.nodes[node].outputs[0])
        count = 1
        for extent in t.shape if t is not None else ():
            count *= product([extent]).constant or USUAL
        return count

    def seconds(self, nodes: Set) -> Seconds | None:
        """Seconds of a set as a kernel; None where it is not legal, has no kernel, or there are no prices."""
        return self.prices.of(nodes) if self.prices is not None and self.legal.allows(nodes) else None

    def cover(self, groups: list[Set]) -> Cover:
        """Disjoint sets as a cover; those that would depend on each other in a circle are taken apart."""
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
