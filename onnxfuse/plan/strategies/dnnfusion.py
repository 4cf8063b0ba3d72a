"""Fusion as DNNFusion plans it (PLDI 2021, listing 1): seeds that grow, by a table of mapping types.

A seed is a one-to-one operator, that of the smallest result first. Its block grows over what reads it, one operator
after the other, and then over what it reads. For each pair of block and operator the table of 25 cells (`classify`) has
a verdict: green is fused, red is not, and yellow is fused where the price of the block with it is no more than those of
both apart, which stands for the published profile. The paper has no test for cycles; here the laws have one.
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
    """Blocks grown from one-to-one seeds; what no block took stands alone."""

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
        """Grow over the nodes that read a node, and those that read them."""
        for reader in self.space.readers(node):
            if self._joins(reader, behind=True):
                self.forward(reader)

    def backward(self, node: int) -> None:
        """Grow over the nodes that a node reads, and those that they read."""
        for maker in self.space.makers(node):
            if self._joins(maker, behind=False):
                self.backward(maker)

    def _joins(self, node: int, *, behind: bool) -> bool:
        """Whether a node was taken into the block, behind what is there or in front of it."""
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
        """Whether the block with a node takes no longer than both apart."""
        together, block, alone = (self.space.seconds(s) for s in (joined, self.nodes, 1 << node))
        if together is None or block is None or alone is None:
            return False
        return mean_ratio(together, summed((block, alone), len(together))) <= 1
