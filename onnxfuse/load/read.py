"""Reads a path or bytes into a ModelProto whose large payloads stay in the mapped file."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types

from onnxfuse.errors import ModelError, OnnxFuseError, UsageError
from onnxfuse.load.tensors import mapped
from onnxfuse.runtime.graphs import graphs
from onnxfuse.runtime.wire import Malformed, key_of, slim

# Files that are mistaken for models, by their first bytes.
_NOT_ONNX: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself", "run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)", "export it with torch.onnx.export"),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?)", "export it with torch.onnx.export"),
    (b"\x89HDF", "an HDF5 file (a Keras model?)", "convert it with tf2onnx"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it first"),
    (b"<", "an HTML or XML page", "download the file itself"),
    (b"{", "a JSON document", "save the model in binary form"),
)
_COMPANIONS = ("onnxfuse.library", "onnxfuse.manifest")  # metadata that names files beside a model


@dataclass(frozen=True, slots=True, eq=False)
class ModelFile:
    """A file as it was read: the proto without large payloads, its bytes, and their digest."""

    proto: onnx.ModelProto
    data: memoryview
    path: Path | None
    digest: str  # SHA-256 of the bytes


def read(source: str | os.PathLike[str] | bytes) -> ModelFile:
    """Read a model. Raises UsageError for a missing file, ModelError for one that is not a model."""
    if isinstance(source, bytes):
        path, data, name = None, memoryview(source), "the input"
    else:
        path = Path(source)
        data, name = _open(path), str(path)
    if not len(data):
        raise ModelError(f"load: {name} is empty", hint="export or download the model again")
    with ThreadPoolExecutor(1) as pool:  # hashing and parsing both take time with large files
        digest = pool.submit(_digest, data, path)
        proto = _parse(name, data)
    return ModelFile(proto, data, path, digest.result())


def files_of(path: Path) -> Iterator[Path]:
    """A model's file with those that it names: external data, library, manifest; else the file alone."""
    yield path
    with suppress(OnnxFuseError):
        proto = _parse(str(path), _open(path))
        tensors = (t for g in graphs(proto.graph) for t in g.initializer if key_of(t) is None)
        named = dict.fromkeys(e.value for t in tensors for e in t.external_data if e.key == "location")
        named |= dict.fromkeys(p.value for p in proto.metadata_props if p.key in _COMPANIONS)
        yield from (path.parent / name for name in named)


def _digest(data: memoryview, path: Path | None) -> str:
    """SHA-256, streamed from a file: reading it through the mapping would keep all of it in memory."""
    if path is None or not path.is_file():
        return hashlib.sha256(data).hexdigest()
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _open(path: Path) -> memoryview:
    try:
        if path.is_dir():
            raise UsageError(f"load: {path} is a folder", hint="name the .onnx file in it")
        if path.exists() and not path.is_file():
            raise UsageError(f"load: {path} is not a regular file", hint="write it to a file; - is standard input")
        return mapped(path)
    except FileNotFoundError:
        raise UsageError(f"load: there is no file {path}", hint=_near_files(path)) from None
    except OSError as e:
        raise ModelError(f"load: {path} cannot be read: {e.strerror or e}", hint="check its permissions") from None


def _near_files(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".onnx"]
    except OSError:
        return f"there is no folder {path.parent} either"
    near = difflib.get_close_matches(path.name, names, 3, 0.5) or sorted(names)[:3]
    return f"near: {', '.join(near)}" if near else "check the spelling"


def _parse(name: str, data: memoryview) -> onnx.ModelProto:
    head = bytes(data[:64])
    for magic, what, todo in _NOT_ONNX:
        if head.startswith(magic):
            raise ModelError(f"load: {name} is not an ONNX model but {what}", hint=todo)
    if head[4:8] == b"ORTM":
        raise ModelError(
            f"load: {name} is in ONNX Runtime's own format", hint="use the .onnx file that it was made from"
        )
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(slim(data))
    except Malformed as e:
        if e.truncated:
            hint = "it is truncated or not an ONNX model; copy or download it again"
        else:
            hint = "check that it is an ONNX model; copy or download it again"
        raise ModelError(f"load: {name} cannot be read as ONNX: {e}", hint=hint) from None
    except (DecodeError, RecursionError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise ModelError(
            f"load: {name} cannot be read as ONNX: {reason}",
            hint="check that it is an ONNX model; copy or download it again",
        ) from None
    if not proto.HasField("graph"):
        raise ModelError(f"load: {name} has no graph", hint="check that it is an ONNX model")
    try:
        readable = all(isinstance(text, str) for text in _texts(proto))
    except UnicodeDecodeError:
        readable = False
    if not readable:
        raise ModelError(f"load: {name} has a name that is not UTF-8", hint="it is damaged, or export it again")
    return proto


def _texts(proto: onnx.ModelProto) -> Iterator[str]:
    """All names that this program uses; protobuf returns bytes for those that are not UTF-8."""
    for p in (*proto.opset_import, *proto.metadata_props):
        yield from (p.domain,) if isinstance(p, onnx.OperatorSetIdProto) else (p.key, p.value)
    for f in proto.functions:
        yield from (f.name, f.domain)
    for graph in graphs(proto.graph):
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            for a in node.attribute:
                yield from (a.name, a.ref_attr_name)
        for tensor in (*graph.initializer, *(s.values for s in graph.sparse_initializer)):
            yield tensor.name
            for e in tensor.external_data:
                yield from (e.key, e.value)
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield info.name
            for d in info.type.tensor_type.shape.dim:
                yield d.dim_param
