"""Turns a `Plan` with its kernels into an ONNX model that runs with the kernel library and without it."""

from __future__ import annotations

from onnxfuse.emit.body import Body, body
from onnxfuse.emit.model import Emitted, LibraryEntry, copied, emit, state_library
from onnxfuse.emit.names import domain, identity
from onnxfuse.emit.planned import Fused, Planned
from onnxfuse.emit.staged import Staged, refuse_existing, refuse_inputs, write_text
from onnxfuse.emit.write import data_path, outside, write, write_data, write_stream

__all__ = [
    "Body",
    "Emitted",
    "Fused",
    "LibraryEntry",
    "Planned",
    "Staged",
    "body",
    "copied",
    "data_path",
    "domain",
    "emit",
    "identity",
    "outside",
    "refuse_existing",
    "refuse_inputs",
    "state_library",
    "write",
    "write_data",
    "write_stream",
    "write_text",
]
