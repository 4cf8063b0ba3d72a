"""Models as text for the tests of loading, and the values that ONNX's reference evaluator computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph, TensorType
from onnxfuse.ir.index import Index, Symbol
from onnxfuse.ir.indexing import evaluate
from onnxfuse.load import load


def parse(body: str, *, opset: int = 20, ir: int = 8, imports: str = "") -> onnx.ModelProto:
    """A model from a graph in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["": {opset}{imports}]>\n{body}')


def graph_of(model: onnx.ModelProto | str, **options: Any) -> Graph:
    """The graph that load makes of a model or of its text."""
    proto = parse(model) if isinstance(model, str) else model
    return load(proto.SerializeToString(), Options(**options))


def text(t: TensorType | None) -> str:
    """A type as one reads it."""
    return repr(t)


def disagreements(proto: onnx.ModelProto, graph: Graph, feeds: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
    """Where types and known integers of a graph differ from a run: element types, ranks, extents and values."""
    values = [o for n in graph.nodes for o in n.outputs if o]
    every = onnx.ModelProto()
    every.CopyFrom(proto)
    del every.graph.output[:]
    for name in values:
        every.graph.output.add().name = name
    made = dict(zip(values, ReferenceEvaluator(every).run(None, dict(feeds)), strict=True)) | dict(feeds)
    symbols: dict[str, int] = {}
    for name, array in feeds.items():
        t = graph.types[name]
        assert t is not None
        for e, extent in zip(t.shape, array.shape, strict=True):
            if e.constant is None and len(e.terms) == 1 and isinstance(e.terms[0][0][0], Symbol):
                symbols[repr(e)] = extent

    def number(e: Index) -> int:
        return int(evaluate(e, lambda a: symbols[a.name] if isinstance(a, Symbol) else None))

    wrong: list[str] = []
    for name in values:
        t, array = graph.types[name], np.asarray(made[name])
        if t is None or t.dtype.numpy != array.dtype or tuple(map(number, t.shape)) != array.shape:
            wrong.append(f"{name} is {t!r}, in the run {array.dtype}{list(array.shape)}")
        if name in graph.known and [number(e) for e in graph.known[name]] != array.reshape(-1).tolist():
            wrong.append(f"{name} is {graph.known[name]}, in the run {array.tolist()}")
    return wrong
