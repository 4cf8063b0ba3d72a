"""Operators that rewrites introduced and the opset of the model lacks, where they stay with the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from onnxfuse.emit.legal import legal
from onnxfuse.emit.spell import Spelling
from onnxfuse.ir.graph import Graph, Node
from onnxfuse.load.names import OWN
from onnxfuse.load.source import source_of
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import view_of


def spelled(nodes: Iterable[Node], graph: Graph) -> Iterator[Node]:
    """The nodes of a graph, each that its opset lacks and the loaded model has not as its row spells it."""
    loaded = source_of(graph).nodes
    for node in nodes:
        row = ROWS.find(node, graph.opset)
        raw = loaded.get(node.name)
        new = node.raw is None and (raw is None or raw.op_type != node.op)
        if row is None or row.spell is None or not new or not node.standard or legal(node, graph) is None:
            yield node
            continue
        put = Spelling(graph.opset, {})
        made = row.spell(view_of(graph, node), put, node.inputs)
        names = dict(zip(made, node.outputs, strict=True))
        for n in put.nodes:
            own = {o: names.get(o, f"{node.outputs[0]}{OWN}{o}") for o in n.outputs}
            names |= own
            yield replace(
                n,
                inputs=tuple(names.get(i, i) for i in n.inputs),
                outputs=tuple(own.values()),
                name=f"{node.name}{OWN}{n.outputs[0]}",
                origin=node.origin,
            )
