"""Nodes that read only constants: the runtime folds them at load time, a kernel would run them each time."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.compose import EXPENSIVE, cost, walk
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.scalar import Reduce
from onnxfuse.plan.kinds import Kind
from onnxfuse.plan.unlocks import ALONE


def computed_once(graph: Graph, kinds: Mapping[int, Kind]) -> dict[int, Decision]:
    """Refusals of expensive nodes that depend only on constants and were too large or too slow to fold into the model.

    Their producers stay too: the runtime folds only subgraphs that it runs entirely. Moving, scaling or dequantizing
    constants costs a kernel little and often saves bytes, so such nodes may be fused.
    """
    makers = {o: i for i, n in enumerate(graph.nodes) for o in n.outputs}
    known = set(graph.constants)
    found: dict[int, Decision] = {}
    for i, n in enumerate(graph.nodes):
        if i not in kinds or not n.reads or not known.issuperset(n.reads):
            continue
        known.update(o for o in n.outputs if o)
        pending = [i] if _expensive(kinds[i]) else []
        while pending:
            at = pending.pop()
            node = graph.nodes[at]
            said = f"{node.op} reads constants only: ONNX Runtime computes it once, when it loads the model"
            found[at] = Decision("E-COST", (node.name,), said, ALONE)
            pending += [makers[v] for v in node.reads if v in makers and makers[v] not in found]
    return found


def _expensive(kind: Kind) -> bool:
    return any(
        cost(d.value) >= EXPENSIVE or any(isinstance(x, Reduce) for x in walk(d.value)) for d in kind.definitions
    )
