"""Fusion as NNVM-Fusion does it (2016): chains of elementwise operators, each read once.

From the outputs to the inputs, a producer is merged into its consumer where both are elementwise over one shape, or
read a single element, and the producer has one result that is used once. Nothing else joins: no reduction, no movement,
no value that is read twice.
"""

from __future__ import annotations

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.indexing import product
from onnxfuse.plan.kinds import ELEMENTWISE
from onnxfuse.plan.refusals import ANCHORS
from onnxfuse.plan.scope import Cover
from onnxfuse.plan.space import Space


def nnvm(space: Space) -> Cover:
    """Chains of elementwise operators."""
    group = {i: 1 << i for i in space.order}
    refused: list[Decision] = []
    for i in reversed(space.order):
        if not _elementwise(space, i) or space.is_given(i) or len(space.readers(i)) != 1:
            continue
        (reader,) = space.readers(i)
        if not space.is_free(reader):
            continue
        if not _elementwise(space, reader):
            names = (space.scope.nodes[i].name, space.scope.nodes[reader].name)
            refused.append(Decision("E-TYPE", names, f"{space.scope.nodes[reader].op} is not elementwise", ANCHORS))
            continue
        joined = group[i] | group[reader]
        if space.legal.allows(joined):
            group |= {at: joined for at in space.order if joined >> at & 1}
    cover = space.cover(list(dict.fromkeys(group.values())))
    return Cover(cover.groups, tuple(refused))


def _elementwise(space: Space, node: int) -> bool:
    """Whether a node has one result, of whose shape all that it reads is, if it is no single element."""
    n, types = space.scope.nodes[node], space.graph.types
    if space.kind(node).name != ELEMENTWISE or len([o for o in n.outputs if o]) != 1:
        return False
    made = types[n.outputs[0]]
    read = [types[v] for v in n.reads]
    return made is not None and all(t is not None and (t.shape == made.shape or product(t.shape) == 1) for t in read)
