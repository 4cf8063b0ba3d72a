"""The first step: an ONNX file becomes a `Graph` whose values all have a type or are marked unknown."""

from __future__ import annotations

from onnxfuse.load.model import load
from onnxfuse.load.read import files_of
from onnxfuse.load.simplify import simplify_shapes
from onnxfuse.load.source import LoadedSubgraph, ModelSource, everywhere, source_of
from onnxfuse.runtime.wire import expand, key_of, make_stub

__all__ = [
    "LoadedSubgraph",
    "ModelSource",
    "everywhere",
    "expand",
    "files_of",
    "key_of",
    "load",
    "make_stub",
    "simplify_shapes",
    "source_of",
]
