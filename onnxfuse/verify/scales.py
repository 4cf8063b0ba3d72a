"""Outputs whose errors are absolute: sigmoids, which runtimes compute to one rounding of 1, not of the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfuse.runtime.feed_limits import PASSED

# The root mean square that a sigmoid's results count as having at least. Of it the least limit for float32, 2e-5, is a
# rounding of 1: ONNX Runtime's are multiples of 2^-24 far from 0, and often 0 where the true ones are 1e-20.
OF_SIGMOIDS = 2.0**-8


def scales_of(model: ModelProto) -> list[float]:
    """By output of a model or skeleton, the root mean square that `compare.distance` takes a reference to have."""
    functions = {(each.domain, each.name): each for each in model.functions}
    sigmoids = _sigmoids(model.graph.node, functions)
    return [OF_SIGMOIDS if name in sigmoids else 0.0 for name in dict.fromkeys(o.name for o in model.graph.output)]


def _sigmoids(nodes: Iterable[NodeProto], functions: Mapping[tuple[str, str], FunctionProto]) -> set[str]:
    """The values that are results of a Sigmoid, or consist of elements of such, also those that functions make."""
    found: set[str] = set()
    for node in nodes:
        body = functions.get((node.domain, node.op_type))
        if body is not None:
            inside = _sigmoids(body.node, functions)
            found |= {out for out, name in zip(node.output, body.output, strict=False) if name in inside}
            continue
        read = [node.input[i] for i in PASSED.get(node.op_type, ()) if i < len(node.input)]
        if node.op_type == "Sigmoid" or (read and found.issuperset(read)):
            found.update(node.output)
    return found
