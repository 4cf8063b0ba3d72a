"""Shape arithmetic disappears: what is known to be plain integers becomes constants, what nobody needs is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from onnxfuse.ir.graph import Constant, Graph, Node


def simplify_shapes(graph: Graph) -> Graph:
    """The graph with nodes of known integers as constants and without dead nodes and constants.

    A node that makes an output of the graph stays: outputs are made by nodes. So does one of another domain, which may
    do more than make its outputs.
    """
    made: dict[str, Constant] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        found = _constants(graph, node)
        if found is None:
            kept.append(node)
        else:
            made |= found
    nodes, wanted = alive(kept, graph.outputs)
    constants = {name: c for name, c in {**graph.constants, **made}.items() if name in wanted}
    return graph.with_nodes(nodes, constants=constants)


def _constants(graph: Graph, node: Node) -> dict[str, Constant] | None:
    """The outputs of a node as constants; None unless all of them are plain integers."""
    found: dict[str, Constant] = {}
    for o in filter(None, node.outputs):
        t, values = graph.types.get(o), graph.known.get(o)
        if t is None or values is None or o in graph.outputs or t.static_shape is None:
            return None
        numbers = [e.constant for e in values]
        if any(n is None for n in numbers):
            return None
        found[o] = Constant.of(np.array(numbers, t.dtype.numpy).reshape(t.static_shape), t.dtype)
    return found or None


def alive(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[list[Node], set[str]]:
    """The nodes that something depends on, in order, and every value that is read."""
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not node.standard or wanted.intersection(node.outputs):
            wanted.update(node.reads)
            kept.append(node)
    return kept[::-1], wanted
