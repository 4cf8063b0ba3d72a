"""Builds the verified `Graph` from converted parts and propagated types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx

from onnxfuse.ir.graph import Graph
from onnxfuse.load.convert import ConvertedGraph
from onnxfuse.load.dims import declared_dims
from onnxfuse.load.functions import with_bodies
from onnxfuse.load.infer import Claim
from onnxfuse.load.setting import Shapes
from onnxfuse.load.source import ModelSource


def declared(infos: Iterable[onnx.ValueInfoProto], *, named: bool = True) -> Iterator[tuple[str, Claim]]:
    """The types that a model declares for values; without names of dimensions unless `named`."""
    for info in infos:
        number, dims = declared_dims(info.type)
        if number and dims is not None:
            yield info.name, (number, tuple(d if named or isinstance(d, int) else None for d in dims))


def typed(
    parts: ConvertedGraph, outputs: Iterable[onnx.ValueInfoProto], shapes: Shapes, opset: int, handle: ModelSource
) -> Graph:
    """The graph of these parts, with function bodies attached; calls that their operators do not allow are marked."""
    graph = Graph(
        nodes=tuple(replace(n, invalid=shapes.invalid[n.name]) if n.name in shapes.invalid else n for n in parts.nodes),
        inputs=tuple(parts.inputs),
        outputs=tuple(o.name for o in outputs),
        types=shapes.types,
        constants=parts.constants,
        known=shapes.known,
        opset=opset,
        source=handle,
    )
    graph.verify()
    return with_bodies(graph, handle.nodes)
