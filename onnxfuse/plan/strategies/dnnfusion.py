"""Fusion as in DNNFusion (PLDI 2021, listing 1): seeds that grow by a table of mapping types.

Seeds are one-to-one operators, smallest result first. A block grows over its consumers one by one, and then over its
producers. For each pair of block and operator, the table of 25 cells (`classify`) has a verdict: green is fused, red is
not, and yellow is fused if the price of the block with it is at most the sum of both, instead of the paper's profiling.
The paper has no test for cycles; here legality has one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from onnxfuse.ops.classify import MapType, combine, node_facts
from onnxfuse.plan.legal import Set
from onnxfuse.plan.price import mean_ratio, summed
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space


def dnnfusion(space: Space) -> Cover:
    """Blocks grown from one-to-one seeds; other operators stay unfused."""

    @cache
    def type_of(node: int) -> MapType:
        return node_facts(space.graph, space.scope.nodes[node], space.kind(node).definitions).type

    seeds = [i for i in space.order if type_of(i) is MapType.ONE_TO_ONE]
    taken: Set = 0
    blocks: list[Set] = []
    for seed in sorted(seeds, key=lambda i: (space.elements(i), i)):
        if not taken >> seed & 1:
            block = _Block(space, seed, taken, type_of)
            block.forward(seed)
            block.backward(seed)
            blocks.append(block.nodes)
            taken |= block.nodes
    return space.cover(blocks)


class _Block:
    """A block while it grows, and its mapping type."""

    def __init__(self, space: Space, seed: int, taken: Set, type_of: Callable[[int], MapType]) -> None:
        self.space, self.taken, self.type_of = space, taken, type_of
        self.nodes: Set = 1 << seed
        self.type = type_of(seed)

    def forward(self, node: int) -> None:
        """Grow over the consumers of a node, recursively."""
        for reader in self.space.readers(node):
            if self._joins(reader, behind=True):
                self.forward(reader)

    def backward(self, node: int) -> None:
        """Grow over the producers of a node, recursively."""
        for maker in self.space.makers(node):
            if self._joins(maker, behind=False):
                self.backward(maker)

    def _joins(self, node: int, *, behind: bool) -> bool:
        """Add a node to the block, as its consumer or producer, if that is allowed; whether it was added."""
        joined = self.nodes | 1 << node
        if joined == self.nodes or self.taken >> node & 1 or not self.space.legal.allows(joined):
            return False
        mine = self.type_of(node)
        fused, verdict = combine(self.type, mine) if behind else combine(mine, self.type)
        if verdict == "X" or (verdict == "Y" and not self._pays(joined, node)):
            return False
        self.nodes, self.type = joined, fused
        return True

    def _pays(self, joined: Set, node: int) -> bool:
        """Whether the block with a node takes no longer than both separately."""
        together, block, alone = (self.space.seconds(s) for s in (joined, self.nodes, 1 << node))
        if together is None or block is None or alone is None:
            return False
        return mean_ratio(together, summed((block, alone), len(together))) <= 1
