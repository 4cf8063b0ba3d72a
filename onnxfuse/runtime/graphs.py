"""Nested graphs, and the size of a model once all calls of its functions are inlined.

The size may double with each function. The runtime and ONNX's tools inline without a limit; a model of a few kilobytes
can keep them busy for years.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from onnxfuse.errors import ModelError

MOST_NODES = 100_000


def bounded(proto: onnx.ModelProto, stage: str) -> None:
    """Raise ModelError for a model that is too large once its functions are inlined."""
    count = written_out(proto) if proto.functions else 0
    if count > MOST_NODES:
        raise ModelError(
            f"{stage}: the functions of the model call each other to {count} nodes, more than {MOST_NODES}",
            hint="export it without functions that double",
        )


def written_out(proto: onnx.ModelProto) -> int:
    """The number of nodes once all calls of a model's functions are inlined; a recursive call counts 1."""
    functions = {(f.domain, f.name): f for f in proto.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(of(n) + sum(size(g.node) for g in subgraphs(n)) for n in nodes)

    def of(node: onnx.NodeProto) -> int:
        key = (node.domain, node.op_type)
        if key not in functions:
            return 1
        if key not in sizes:
            sizes[key] = 1
            sizes[key] = size(functions[key].node)
        return sizes[key]

    return size(proto.graph.node)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a node: its graph attributes."""
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        elif a.type == onnx.AttributeProto.GRAPHS:
            yield from a.graphs


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def put_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Let a graph have these nodes instead of its own, some of which may be among them."""
    kept = onnx.GraphProto(node=nodes)
    del graph.node[:]
    graph.node.extend(kept.node)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph, and of the graphs that it holds."""
    for each in graphs(graph):
        yield from each.node


def written_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a model, those of inner graphs and of functions too."""
    yield from all_nodes(model.graph)
    for function in model.functions:
        yield from function.node
