"""Carried values that a Loop or Scan never changes, read from outside of its body instead.

Exporters of TensorFlow carry all that a body reads: weights, too, which are constants once they come from outside. The
runtime copies such a value in every iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx

from onnxfuse.load.names import rename_here
from onnxfuse.runtime.graphs import subgraphs

_FREE_OF_STATES = 11  # the opset from which on a Loop needs no carried value


class _Places(NamedTuple):
    """Where the carried values of a node begin: in its inputs, and in the inputs and outputs of its body."""

    given: int
    formal: int
    next: int


_PLACES = {"Loop": _Places(2, 2, 1), "Scan": _Places(0, 0, 0)}


def uncarried(proto: onnx.ModelProto, opset: int) -> None:
    """Take values that no iteration changes out of those carried, in place; what comes out is what was given.

    No name in a body may hide one of a graph around it. Of a node without any other result one value stays.
    """
    _in_graph(proto.graph, opset)


def _in_graph(graph: onnx.GraphProto, opset: int) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in subgraphs(node):  # first: what passes through an inner loop may be what an outer one never changes
            _in_graph(body, opset)
        nodes.append(node)
        if node.op_type in _PLACES and node.domain in ("", "ai.onnx"):
            nodes += _of_node(node, opset)
    if len(nodes) > len(graph.node):
        kept = onnx.GraphProto(node=nodes)
        del graph.node[:]
        graph.node.extend(kept.node)


def _of_node(node: onnx.NodeProto, opset: int) -> Iterator[onnx.NodeProto]:
    """Identities for those results of a node that are what it was given; it has them no longer."""
    body, at = next((a.g for a in node.attribute if a.name == "body"), None), _PLACES[node.op_type]
    count = _count(node, body, at) if body is not None else 0
    if body is None or not count:
        return
    fixed = [k for k in range(count) if _is_fixed(body, body.input[at.formal + k].name, at.next + k)]
    if len(fixed) == count and (len(body.output) == count + at.next or opset < _FREE_OF_STATES):
        fixed = fixed[1:]
    for k in reversed(fixed):
        given = node.input[at.given + k]
        rename_here(body, {body.input[at.formal + k].name: given})
        del node.input[at.given + k], body.input[at.formal + k], body.output[at.next + k]
        if k < len(node.output):
            if node.output[k]:
                yield onnx.helper.make_node("Identity", [given], [node.output[k]], name=f"{node.output[k]}/given")
            del node.output[k]


def _count(node: onnx.NodeProto, body: onnx.GraphProto, at: _Places) -> int:
    """The number of carried values; 0 where node and body do not match."""
    sequences = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    count, names = len(node.input) - at.given - sequences, {v.name for v in body.input}
    matches = len(names) == len(body.input) == at.formal + count + sequences and len(body.output) >= at.next + count
    return count if matches and sequences >= 0 and count > 0 and all(node.input[at.given : at.given + count]) else 0


def _is_fixed(body: onnx.GraphProto, name: str, output: int) -> bool:
    """Whether an output of a body is this input of it, and neither is another output."""
    makers = {o: n for n in body.node for o in n.output}
    if name in makers or any(t.name == name for t in body.initializer):
        return False  # not valid, or a default that the runtime may take
    found = last = body.output[output].name
    while found != name:
        maker = makers.pop(found, None)
        if maker is None or maker.op_type != "Identity" or maker.domain not in ("", "ai.onnx") or not maker.input:
            return False
        found = maker.input[0]
    return not {name, last}.intersection(o.name for k, o in enumerate(body.output) if k != output)
