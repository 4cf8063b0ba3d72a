"""Outputs whose errors are absolute: sigmoids, which runtimes compute to one rounding of 1, not of the result."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

# The root mean square that a sigmoid's results count as having at least. Of it the least limit for float32, 2e-5, is a
# rounding of 1: ONNX Runtime's are multiples of 2^-24 far from 0, and often 0 where the true ones are 1e-20.
OF_SIGMOIDS = 2.0**-8
_MOVES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand", "Cast")


def scales_of(model: ModelProto) -> list[float]:
    """By output of a model or skeleton, the root mean square that `compare.distance` takes a reference to have."""
    functions = {(each.domain, each.name): each for each in model.functions}
    return [OF_SIGMOIDS if _is_sigmoid(model.graph, out.name, functions) else 0.0 for out in model.graph.output]


def _is_sigmoid(
    graph: GraphProto | FunctionProto, value: str, functions: Mapping[tuple[str, str], FunctionProto]
) -> bool:
    """Whether a value is the result of a Sigmoid, moved perhaps, in the graph or in a function that it calls."""
    made: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output if name}
    while (node := made.get(value)) is not None:
        body = functions.get((node.domain, node.op_type))
        if body is not None:
            return _is_sigmoid(body, body.output[list(node.output).index(value)], functions)
        if node.op_type not in _MOVES or not node.input:
            return node.op_type == "Sigmoid"
        value = node.input[0]
    return False
