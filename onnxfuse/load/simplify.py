"""Removes shape arithmetic: values that propagation found to be constant integers, and dead nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from onnxfuse.ir.graph import Constant, Graph, Node


def simplify_shapes(graph: Graph) -> Graph:
    """The graph with nodes of known integers replaced by constants, and without dead nodes and constants.

    Nodes that make graph outputs stay, as do nodes of other domains, which may have side effects.
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
    """The outputs of a node as constants; None unless all of them are constant integers."""
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
    """The live nodes in order, and all values that are read."""
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not node.standard or wanted.intersection(node.outputs):
            wanted.update(node.reads)
            kept.append(node)
    return kept[::-1], wanted
