"""Fusion as in NNVM-Fusion (2016): chains of elementwise operators, each with a single reader.

From outputs to inputs, a producer is merged into its consumer if both are elementwise over the same shape (or read a
scalar), and the producer has one result with one reader. Reductions and movement are not fused.
"""

from __future__ import annotations

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.indexing import product
from onnxfuse.plan.kinds import ELEMENTWISE
from onnxfuse.plan.search.scope import Cover
from onnxfuse.plan.search.space import Space
from onnxfuse.plan.unlocks import ANCHORS


def nnvm(space: Space) -> Cover:
    """Chains of elementwise operators."""
    group = {i: 1 << i for i in space.order}
    refused: list[Decision] = []
    for i in reversed(space.order):
        if not _elementwise(space, i):
            continue
        readers = [r for r in space.readers(i) if space.is_free(r)]
        refused += [_strange(space, i, r) for r in readers if not _elementwise(space, r)]
        if space.is_given(i) or len(space.readers(i)) != 1 or not all(_elementwise(space, r) for r in readers):
            continue
        joined = group[i] | sum(group[r] for r in readers)
        if space.legal.allows(joined):
            group |= {at: joined for at in space.order if joined >> at & 1}
    cover = space.cover(list(dict.fromkeys(group.values())))
    return Cover(cover.groups, tuple(refused))


def _strange(space: Space, node: int, reader: int) -> Decision:
    first, second = space.scope.nodes[node], space.scope.nodes[reader]
    return Decision("E-TYPE", (first.name, second.name), f"{second.op} is not elementwise", ANCHORS)


def _elementwise(space: Space, node: int) -> bool:
    """Whether a node has one result, and all inputs are scalars or have its shape."""
    n, types = space.scope.nodes[node], space.graph.types
    if space.kind(node).name != ELEMENTWISE or len([o for o in n.outputs if o]) != 1:
        return False
    made = types[n.outputs[0]]
    read = [types[v] for v in n.reads]
    return made is not None and all(t is not None and (t.shape == made.shape or product(t.shape) == 1) for t in read)
