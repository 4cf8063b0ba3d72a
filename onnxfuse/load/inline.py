"""Model-local functions become nodes of the main graph, so that everything after load sees plain operators."""

from __future__ import annotations

import logging

import onnx

from onnxfuse.runtime.graphs import graphs, subgraphs


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with calls of its own functions replaced by their bodies; None where that cannot be done faithfully.

    Names of the main graph's values stay; those inside a body get suffixes where they are taken. Functions of another
    opset keep their calls.
    """
    import onnx_ir  # noqa: PLC0415  few models have functions, and it is slow to import
    from onnx_ir.passes.common import InlinePass  # noqa: PLC0415  likewise

    if any(g.sparse_initializer for g in graphs(proto.graph)):
        return None  # lost by onnx_ir
    opsets = {o.domain: o.version for o in proto.opset_import}
    log = logging.getLogger("onnx_ir")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        model = onnx_ir.from_proto(proto)
        InlinePass(lambda f: all(opsets.get(k, v) == v for k, v in f.opset_imports.items()))(model)
        result = onnx_ir.to_proto(model)
    except Exception:  # whatever the pass does not know, the runtime may: the calls stay, as opaque nodes
        return None
    finally:
        log.setLevel(level)
    return None if _shadows(result.graph) > _shadows(proto.graph) else result


def defined(graph: onnx.GraphProto) -> set[str]:
    """Names of the values that a graph defines itself."""
    names = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    names |= {t.values.name for t in graph.sparse_initializer}
    return names.union(*(n.output for n in graph.node)) - {""}


def _shadows(graph: onnx.GraphProto) -> int:
    """How many names of inner graphs the main graph has too."""
    outer = defined(graph)
    return sum(len(outer & defined(g)) for g in graphs(graph) if g is not graph)


def free_names(graph: onnx.GraphProto) -> set[str]:
    """Names that a graph reads and does not define, its own inner graphs included."""
    wanted = {o.name for o in graph.output}
    for node in graph.node:
        wanted.update(node.input)
        for inner in subgraphs(node):
            wanted |= free_names(inner)
    return wanted - defined(graph) - {""}
