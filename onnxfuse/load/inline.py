"""Inlines model-local functions, so that later steps see operators only."""

from __future__ import annotations

import logging

import onnx

from onnxfuse.runtime.graphs import graphs, subgraphs


def inlined(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with model-local functions inlined; None where that could change it.

    Values of the main graph keep their names; those inside a body get suffixes where needed. Functions with another
    opset are not inlined.
    """
    import onnx_ir  # noqa: PLC0415  few models have functions, and it is slow to import
    from onnx_ir.passes.common import InlinePass  # noqa: PLC0415  likewise

    if any(g.sparse_initializer for g in graphs(proto.graph)):
        return None  # onnx_ir drops them
    opsets = {o.domain: o.version for o in proto.opset_import}
    log = logging.getLogger("onnx_ir")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        model = onnx_ir.from_proto(proto)
        InlinePass(lambda f: all(opsets.get(k, v) == v for k, v in f.opset_imports.items()))(model)
        result = onnx_ir.to_proto(model)
    except Exception:  # models that onnx_ir does not support may still run: the calls stay, as opaque nodes
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
    """Number of names that are defined in the main graph and in a subgraph."""
    outer = defined(graph)
    return sum(len(outer & defined(g)) for g in graphs(graph) if g is not graph)


def free_names(graph: onnx.GraphProto) -> set[str]:
    """Names that a graph and its subgraphs read and do not define."""
    wanted = {o.name for o in graph.output}
    for node in graph.node:
        wanted.update(node.input)
        for inner in subgraphs(node):
            wanted |= free_names(inner)
    return wanted - defined(graph) - {""}
