"""A subgraph (the body of an If, Loop or Scan) as a model of its own, in which its kernels can be verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxfuse.emit.calls import Subgraph
from onnxfuse.emit.proto import value_info, without
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Index
from onnxfuse.load.inline import free_names
from onnxfuse.load.names import OWN


def standalone(
    model: onnx.ModelProto, subgraph: Subgraph, decoding: Sequence[onnx.NodeProto]
) -> onnx.ModelProto | None:
    """The subgraph with captured values as inputs, weights as initializers, and the functions of the model.

    It has what it needs of the nodes `decoding`, which make weights of codes in the main graph. Captured extents are
    computed from inputs. None where the subgraph itself has no kernel, or the type of a captured value is not known.
    """
    if not subgraph.planned.fused:
        return None
    graph, body = subgraph.planned.plan.graph, subgraph.protos[-1]
    made = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    made.graph.CopyFrom(body)
    without(made.graph, "input", "node")
    stored = {t.name: t for outer in (model.graph, *subgraph.protos[1:-1]) for t in outer.initializer}
    read, before = free_names(body), list[onnx.NodeProto]()
    for node in reversed(decoding):
        if read.intersection(node.output):
            read = (read - set(node.output)) | set(node.input)
            before.insert(0, node)
    made.graph.node.extend(before)
    made.graph.initializer.extend(stored[name] for name in sorted(read & stored.keys()))
    values = (*(v.name for v in body.input), *sorted(read - stored.keys()))
    extents = _extents(graph, values)
    for name in values:
        have = graph.types.get(name)
        if have is None:
            return None
        computed = list(_computed(graph, name, extents)) if name in graph.known else []
        made.graph.node.extend(computed)
        if not computed:
            made.graph.input.append(value_info(name, have.dtype, have.shape))
    made.graph.node.extend(body.node)
    return made


def _extents(graph: Graph, values: tuple[str, ...]) -> dict[Index, tuple[str, int]]:
    """Where extents can be read: (value, axis) of values whose own contents are not known integers."""
    found: dict[Index, tuple[str, int]] = {}
    for name in values:
        have = graph.types.get(name)
        if have is not None and name not in graph.known:
            for axis, e in enumerate(have.shape):
                found.setdefault(e, (name, axis))
    return found


def _computed(graph: Graph, name: str, extents: dict[Index, tuple[str, int]]) -> Iterator[onnx.NodeProto]:
    """Nodes that compute known integers from extents; none where one of them is neither an extent nor a constant."""
    have, elements = graph.types[name], graph.known[name]
    if have is None or not elements or any(e.constant is None and e not in extents for e in elements):
        return
    parts = []
    for number, e in enumerate(elements):
        part = f"{name}{OWN}{number}"
        parts.append(part)
        if e.constant is not None:
            yield _constant(part, np.array([e.constant], have.dtype.numpy))
            continue
        source, axis = extents[e]
        yield helper.make_node("Shape", [source], [f"{part}{OWN}shape"])
        yield _constant(f"{part}{OWN}axis", np.array([axis], np.int64))
        yield helper.make_node("Gather", [f"{part}{OWN}shape", f"{part}{OWN}axis"], [f"{part}{OWN}long"])
        yield helper.make_node("Cast", [f"{part}{OWN}long"], [part], to=have.dtype.onnx)
    yield _constant(f"{name}{OWN}like", np.array(have.static_shape, np.int64))
    yield helper.make_node("Concat", parts, [f"{name}{OWN}all"], axis=0)
    yield helper.make_node("Reshape", [f"{name}{OWN}all", f"{name}{OWN}like"], [name])


def _constant(name: str, array: np.ndarray[tuple[int], np.dtype[np.int64]]) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
