"""Data dependences of fused nodes, and removal of nodes that only compute shapes."""

from __future__ import annotations

from onnxfuse.ir.graph import Graph, Node
from onnxfuse.ops.spec import OperatorTable
from onnxfuse.plan.kinds import Kind


def alive(
    graph: Graph, kinds: dict[int, Kind], rows: OperatorTable
) -> tuple[Graph, dict[int, Kind], list[tuple[str, ...]]]:
    """The graph without nodes needed only for shapes that kernels and bodies compute; its kinds and reads."""
    reads = [data(graph, n, rows) if i in kinds else n.reads for i, n in enumerate(graph.nodes)]
    wanted = set(graph.outputs)
    kept: list[int] = []
    for i in reversed(range(len(graph.nodes))):
        if any(o in wanted for o in graph.nodes[i].outputs):
            wanted.update(reads[i])
            kept.append(i)
    kept.reverse()
    at = {old: new for new, old in enumerate(kept)}
    nodes = tuple(graph.nodes[i] for i in kept)
    return graph.with_nodes(nodes), {at[i]: k for i, k in kinds.items() if i in at}, [reads[i] for i in kept]


def data(graph: Graph, node: Node, rows: OperatorTable) -> tuple[str, ...]:
    """Values that a fused node reads as data, without inputs that only give a type or a known shape."""
    row = rows.find(node, graph.opset)
    if row is None:
        return node.reads
    data = {v for i, v in enumerate(node.inputs) if i not in row.quiet_inputs}
    typed = {node.inputs[i] for i in row.type_inputs if i < len(node.inputs)}
    return tuple(v for v in node.reads if v in data or (v not in typed and v not in graph.known))
