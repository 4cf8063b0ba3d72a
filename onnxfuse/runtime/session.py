"""Opens a model in ONNX Runtime with the kernel library that its metadata names, and no other native code."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from onnxfuse.errors import DeviceError, ModelError, UsageError
from onnxfuse.runtime.provider import DEVICES, need_runtime, provider_of

if TYPE_CHECKING:
    import onnxruntime as ort

_METADATA_FIELD = 14  # ModelProto.metadata_props; of its entries, field 1 is the key and field 2 the value


def session(
    path: str | os.PathLike[str],
    *,
    library: str | os.PathLike[str] | None = None,
    providers: Sequence[Any] | None = None,
    sess_options: ort.SessionOptions | None = None,
    target: str = "cpu",
    cuda_graph: bool = False,
) -> ort.InferenceSession:
    """An `onnxruntime.InferenceSession` of the model with its kernel library registered; other models open as usual.

    A library that a model names is loaded only from the model's own folder, or from the path `library`. Either way it
    must have the SHA-256 that the model states. The library is registered in `sess_options`, so they serve one model.
    `target` "cuda" stands for the `providers` of this machine's GPU; with `cuda_graph` its runs with IO binding are
    replayed as CUDA graphs.

    Raises UsageError when a file is missing, ModelError when model and library do not match, DeviceError when the
    runtime refuses the library, or there is no GPU; the runtime's own errors about the model pass through.
    """
    if target in DEVICES and providers is None:
        providers = provider_of(target, "session", graph=cuda_graph).listed
    model = Path(path)
    need_runtime("session")
    import onnxruntime as ort  # noqa: PLC0415  the rest of this module is of use where it is not installed

    options = ort.SessionOptions() if sess_options is None else sess_options
    chosen = library_of(model, library)
    if chosen is not None:
        try:
            options.register_custom_ops_library(str(chosen.absolute()))
        except Exception as problem:
            raise DeviceError(f"session: {chosen} cannot be registered: {' '.join(str(problem).split())}") from None
    return ort.InferenceSession(str(model), options, providers=providers)


def library_of(model: Path, library: str | os.PathLike[str] | None = None) -> Path | None:
    """The library that `session` would register for this model, checked; None for a model that names none.

    Raises UsageError and ModelError as `session` does.
    """
    if not model.is_file():
        raise UsageError(f"session: {model} is not there")
    facts = metadata(model)
    named, digest = facts.get("onnxfuse.library"), facts.get("onnxfuse.library_sha256")
    if library is None and not named:
        return None
    chosen = Path(library) if library is not None else _beside(model, named or "")
    if not chosen.is_file():
        raise UsageError(
            f"session: library {chosen} of {model.name} is not there",
            hint="put it beside the model or name it with library=; onnxruntime alone runs the model without it",
        )
    if digest is None:
        if library is None:
            raise ModelError(f"session: {model.name} names a library without its hash", hint="name it with library=")
    elif _sha256(chosen) != digest.lower():
        raise ModelError(
            f"session: {chosen} is not the library that {model.name} was made with", hint="make both again"
        )
    return chosen


def _beside(model: Path, named: str) -> Path:
    """The library in the model's folder. Raises ModelError when the name leads anywhere else."""
    if named in (".", "..") or any(separator in named for separator in "/\\\0"):
        raise ModelError(
            f"session: {model.name} names a library outside its own folder: {named!r}",
            hint="name it with library= if you trust it",
        )
    return model.parent / named


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def metadata(path: Path) -> dict[str, str]:
    """The metadata of a model file, without reading its graph; empty when the file is no ONNX model."""
    found: dict[str, str] = {}
    try:
        with path.open("rb") as stream:
            for field, size in _fields(stream, path.stat().st_size):
                if field == _METADATA_FIELD:
                    key, value = _entry(stream.read(size))
                    found[key] = value
                else:
                    stream.seek(size, os.SEEK_CUR)
    except (EOFError, UnicodeDecodeError, ValueError):
        return {}
    return found


def _fields(stream: IO[bytes], size: int) -> Iterator[tuple[int, int]]:
    """(number, length) of each length-delimited field of the message in `stream`; the caller consumes its payload.

    Raises EOFError or ValueError where the bytes are no protobuf message.
    """
    fixed = {1: 8, 5: 4}
    while stream.tell() < size:
        tag = _varint(stream)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            _varint(stream)
        elif kind in fixed:
            stream.seek(fixed[kind], os.SEEK_CUR)
        elif kind == 2 and field:
            length = _varint(stream)
            if stream.tell() + length > size:
                raise EOFError
            yield field, length
        else:
            raise ValueError(f"wire type {kind}")


def _varint(stream: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)
        if not byte:
            raise EOFError
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("varint")


def _entry(message: bytes) -> tuple[str, str]:
    """Key and value of one serialized StringStringEntryProto."""
    stream = io.BytesIO(message)
    parts = {1: b"", 2: b""}
    for field, size in _fields(stream, len(message)):
        parts[field] = stream.read(size)
    return parts[1].decode(), parts[2].decode()
