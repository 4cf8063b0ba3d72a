"""The function body of a fused node as a model of its own, which its kernel runs where sizes are not what it relies on.

A kernel relies on equal names of dimensions, which the runtime does not check: `[n]` and `[n]` may be fed 4 and 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import onnx
from onnx import helper

from onnxfuse.emit.body import Body
from onnxfuse.emit.planned import Fused
from onnxfuse.emit.proto import node_proto
from onnxfuse.ir.extents import expanded
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Symbol, symbols_of
from onnxfuse.load.source import source_of
from onnxfuse.runtime.entries import FALLBACK

_IR = 8  # of the smallest runtime that runs kernels, and every opset


def repeated(graph: Graph) -> frozenset[Symbol]:
    """The symbols that several dimensions of the graph's inputs have, by their names alone, and that nobody reads.

    Where the model computes with a size (Shape, Size), no body knows whose it was, so that unequal ones are refused.
    """
    return frozenset(s for s, n in _uses(graph, graph.inputs).items() if n > 1 and s not in source_of(graph).read)


def relies_on(f: Fused, graph: Graph, symbols: Iterable[Symbol]) -> bool:
    """Whether a kernel is right only where two dimensions of its inputs with one of these symbols are equal."""
    uses = _uses(graph, (p.value for p in f.kernel.inputs if p.value not in graph.constants))
    return any(uses[s] > 1 for s in symbols)


def _uses(graph: Graph, values: Iterable[str]) -> Counter[Symbol]:
    """How many dimensions of some values a symbol is in."""
    types = [t for v in values if (t := graph.types.get(v)) is not None]
    return Counter(s for t in types for e in t.shape for s in symbols_of(expanded(e)))


def imports(body: Body, versions: Mapping[str, int]) -> list[onnx.OperatorSetIdProto]:
    """The operator sets of a body; `versions` are those of the model."""
    others = sorted({n.domain for n in body.nodes if not n.standard})
    sets = {"": body.opset} | {domain: versions.get(domain, 1) for domain in others if domain}
    return [helper.make_operatorsetid(domain, version) for domain, version in sets.items()]


def fallback(body: Body, versions: Mapping[str, int]) -> onnx.AttributeProto:
    """The attribute FALLBACK: the body as the bytes of a model, whose inputs have types and no shapes."""
    names = (*body.inputs, *body.outputs)
    values = {
        name: helper.make_tensor_value_info(name, dtype.onnx, None)
        for name, dtype in zip(names, body.dtypes, strict=True)
    }
    graph = onnx.GraphProto(name="body")
    graph.node.extend(node_proto(n, body.opset) for n in body.nodes)
    graph.input.extend(values[name] for name in body.inputs)
    graph.output.extend(values[name] for name in body.outputs)
    made = onnx.ModelProto(ir_version=_IR, opset_import=imports(body, versions), graph=graph)
    return helper.make_attribute(FALLBACK, made.SerializeToString(deterministic=True))
