"""Writes a model with its weights inside the file, or in aligned external data beside it, one tensor at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import onnx

from onnxfuse.emit.model import Emitted
from onnxfuse.emit.proto import tensors_in
from onnxfuse.emit.staged import Staged
from onnxfuse.emit.weights import Weight
from onnxfuse.errors import OutputError
from onnxfuse.load.tensors import forget_pages
from onnxfuse.runtime.wire import Buffer, expand, key_of

LARGE = 100_000_000  # bytes of weights from which on they are external data
_MOST = (1 << 31) - 1  # maximum bytes of a protobuf message
_PAGE, _PAGED = 4096, 64 << 10  # tensors from _PAGED bytes on are aligned to pages
_ALIGNED = 64
_WINDOW = 256 << 20  # bytes written between two calls that release mapped pages of the model's files


def data_path(model: Path) -> Path:
    """The external data file of a model: NAME.data."""
    name = model.name.removesuffix(".onnx")
    return model.with_name(f"{name}.data")


def outside(emitted: Emitted, *, asked: bool = False) -> bool:
    """Whether weights become external data: they are large, were external before, or `asked` for."""
    large = emitted.weight_bytes >= LARGE and emitted.exact is None
    return bool(emitted.weights) and (asked or large or emitted.was_external)


def write(
    emitted: Emitted, path: Path, staged: Staged, *, external: bool = False, data_there: bool = False
) -> tuple[Path, ...]:
    """Write a model, and its external data if `external` or needed, to staged files; returns their paths, data first.

    With `data_there` the external data is left alone: `write_data` wrote it. Raises OutputError when the disk is full
    or the model is too large for one file.
    """
    if not outside(emitted, asked=external):
        _write_file(staged.stage(path), path, _chunks(emitted))
        return (path,)
    data = data_path(path)
    if not data_there:
        write_data(emitted, staged.stage(data), data)
    proto = _referring(emitted, data)
    _write_file(staged.stage(path), path, expand(proto.SerializeToString(deterministic=True), emitted.blob))
    return data, path


def write_stream(emitted: Emitted, stream: BinaryIO) -> None:
    """Write a model with its weights inside to a stream. Raises OutputError above protobuf's 2 GiB."""
    for chunk in _chunks(emitted):
        stream.write(chunk)
        del chunk  # before the next one is made
    stream.flush()


def _chunks(emitted: Emitted) -> Iterator[Buffer]:
    """The bytes of the model with its weights inside, in chunks."""
    if emitted.exact is not None:
        return iter([emitted.exact])
    frame = emitted.proto.SerializeToString(deterministic=True)
    if len(frame) + emitted.weight_bytes > _MOST:
        raise OutputError(
            f"write: the model has {emitted.weight_bytes} bytes of weights, more than one file can hold",
            hint="write it to a file with --save-as-external-data",
        )
    sizes = {w.key: w.bytes for w in emitted.weights}
    return expand(frame, emitted.blob, lambda key: sizes.get(key) or memoryview(emitted.blob(key)).nbytes)


def _write_file(temporary: Path, path: Path, chunks: Iterator[Buffer]) -> None:
    try:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
                del chunk  # before the next one is made
    except OSError as e:
        raise OutputError(f"write: {path} cannot be written: {e.strerror or e}", hint="is the disk full?") from None


def write_data(emitted: Emitted, temporary: Path, path: Path, stop: threading.Event | None = None) -> None:
    """Write all weights to the file `temporary`, the external data `path` to be, until `stop` is set.

    Raises OutputError when the disk is full.
    """
    at = 0
    try:
        with temporary.open("wb") as file:
            for weight, begin in _places(emitted):
                if stop is not None and stop.is_set():
                    return
                file.write(bytes(begin - at))
                payload = memoryview(weight.payload()).cast("B")
                assert len(payload) == weight.bytes, f"emit: {weight.key} has {len(payload)} bytes"
                file.write(payload)
                del payload  # before the next one is made
                if (begin + weight.bytes) // _WINDOW > at // _WINDOW:
                    forget_pages()
                at = begin + weight.bytes
    except OSError as e:
        raise OutputError(f"write: {path} cannot be written: {e.strerror or e}", hint="is the disk full?") from None


def _referring(emitted: Emitted, data: Path) -> onnx.ModelProto:
    """The model with places in its external data instead of stubs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(emitted.proto)
    stubs = {key_of(t): t for t in _tensors(proto)}
    for weight, begin in _places(emitted):
        _place(stubs[weight.key], data.name, begin, weight.bytes)
    return proto


def _places(emitted: Emitted) -> Iterator[tuple[Weight, int]]:
    """The weights with their offsets in the external data."""
    at = 0
    for weight in emitted.weights:
        begin = -(-at // _alignment(weight.bytes)) * _alignment(weight.bytes)
        yield weight, begin
        at = begin + weight.bytes


def _alignment(size: int) -> int:
    return _PAGE if size >= _PAGED else _ALIGNED


def _place(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    inner = chain.from_iterable(tensors_in(f) for f in proto.functions)
    return chain(proto.graph.initializer, tensors_in(proto.graph), inner)
