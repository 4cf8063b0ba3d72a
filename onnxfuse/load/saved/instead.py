"""Nodes that take the place of one, with names that no value has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.load.inline import defined
from onnxfuse.runtime.graphs import graphs, put_nodes


class Instead:
    """Nodes and constants that take the place of nodes of a graph; nothing is changed before `put`."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.taken = set[str]().union(*(defined(g) for g in graphs(graph)))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def fresh(self, name: str) -> str:
        """A name like this one that no value has."""
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        return name

    def add(self, op: str, inputs: Iterable[str], output: str, **attrs: Any) -> str:
        """Add a node; the name of its output."""
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"{output}/{op}", **attrs))
        return output

    def constant(self, like: str, values: np.ndarray[Any, Any]) -> str:
        """Add a constant; its name, which is like another one."""
        name = self.fresh(like)
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def put(self, graph: onnx.GraphProto, dropped: Iterable[str] = ()) -> None:
        """Let the graph have these nodes and constants. Constants in `dropped` that nothing reads any more go."""
        put_nodes(graph, self.nodes)
        read = {name for g in graphs(graph) for n in g.node for name in n.input} | {o.name for o in graph.output}
        gone = set(dropped) - read
        kept = [t for t in graph.initializer if t.name not in gone]
        if len(kept) < len(graph.initializer):
            held = onnx.GraphProto(initializer=kept)
            del graph.initializer[:]
            graph.initializer.extend(held.initializer)
        graph.initializer.extend(self.constants)
