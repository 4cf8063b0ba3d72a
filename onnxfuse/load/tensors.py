"""TensorProto to `Constant`: arrays are views of the mapped file wherever the element type allows."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Callable
from contextlib import suppress
from errno import EINVAL
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any
from weakref import WeakSet

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.errors import ModelError
from onnxfuse.ir.dtype import DType, dtype_of
from onnxfuse.ir.graph import Constant
from onnxfuse.runtime.wire import key_of, slice_of

Array = np.ndarray[Any, Any]
_DAMAGED = "the file is damaged; export or download it again"
_SMALL = 1 << 16  # largest tensor, in bytes, whose array is cached
# Fields that hold elements when `raw_data` does not, by the kind and width of the element type.
_FIELDS = {
    **dict.fromkeys(("bool", "int8", "uint8", "int16", "uint16", "int32", "float16", "bfloat16"), "int32_data"),
    "float32": "float_data",
    "float64": "double_data",
    "int64": "int64_data",
    "uint32": "uint64_data",
    "uint64": "uint64_data",
}


class Payloads:
    """The bytes of tensors: in the mapped model file, in mapped external files, or in the proto itself."""

    def __init__(self, data: memoryview, path: Path | None) -> None:
        self.data = data
        self.path = path
        self.files: dict[Path, memoryview] = {}

    def of(self, tensor: onnx.TensorProto) -> memoryview | None:
        """The bytes of a tensor, from a file or its raw_data; None if its elements are in a typed field."""
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            key = key_of(tensor)
            return slice_of(key, self.data) if key is not None else self._external(tensor)
        return memoryview(tensor.raw_data) if tensor.HasField("raw_data") else None

    def _external(self, tensor: onnx.TensorProto) -> memoryview:
        entry = {e.key: e.value for e in tensor.external_data}
        file = self._file(tensor.name, entry.get("location", ""))
        try:
            offset = int(entry.get("offset", 0))
            length = int(entry.get("length", len(file) - offset))
        except ValueError:
            raise ModelError(
                f"load: the external data of {tensor.name} has an offset or length that is not a number", hint=_DAMAGED
            ) from None
        if offset < 0 or length < 0 or offset + length > len(file):
            raise ModelError(
                f"load: {entry['location']} is too short for the external data of {tensor.name}",
                hint="copy or download the data file again",
            )
        return file[offset : offset + length]

    def _file(self, name: str, location: str) -> memoryview:
        if self.path is None:
            raise ModelError(
                f"load: {name} is in the file {location}, but the model was given as bytes",
                hint="name the model's file instead",
            )
        where = Path(location)
        if not location or where.is_absolute() or ".." in where.parts:
            raise ModelError(
                f"load: {name} is in {location!r}, outside the model's folder",
                hint="move the data beside the model and save the model again",
            )
        file = self.path.parent / where
        near = (self.path.parent.resolve(), self.path.resolve().parent)  # as the runtime allows: a model may be a link
        if not any(file.resolve().is_relative_to(folder) for folder in near):
            raise ModelError(
                f"load: {name} is in {location!r}, a link that leads out of the model's folder",
                hint="put the data itself beside the model",
            )
        if file not in self.files:
            try:
                self.files[file] = mapped(file)
            except OSError as e:
                raise ModelError(
                    f"load: the external data {file} of {name} cannot be read: {e.strerror or e}",
                    hint="copy the data file beside the model",
                ) from None
        return self.files[file]


_mappings: WeakSet[mmap.mmap] = WeakSet()


def mapped(path: Path) -> memoryview:
    """A file's bytes, mapped where it can be. OSError for pipes and devices, which may have no end."""
    if not S_ISREG(path.stat().st_mode):
        raise OSError(EINVAL, "it is not a regular file")
    with path.open("rb") as f:
        try:
            mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return memoryview(f.read())
    _mappings.add(mapping)
    return memoryview(mapping)


def forget_pages() -> None:
    """Release the resident pages of mapped files, which are read from the file again on the next access."""
    for mapping in tuple(_mappings):
        with suppress(AttributeError, OSError, ValueError):  # another system's mmap, or a file that was closed
            mapping.madvise(mmap.MADV_DONTNEED)


def element_type(tensor: onnx.TensorProto) -> DType:
    """The element type of a tensor; types that kernels do not support get a DType of kind x. Raises ModelError."""
    found = dtype_of(tensor.data_type)
    if found is not None:
        return found
    try:
        name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    except ValueError:
        raise ModelError(
            f"load: the tensor {tensor.name} has the unknown element type {tensor.data_type}",
            hint="the file is damaged, or needs a newer onnx package",
        ) from None
    width = re.match(r"(?:u?int|float|complex)(\d+)", name)
    return DType(name, tensor.data_type, "x", int(width[1]) if width else 8, "")


def constant(tensor: onnx.TensorProto, payloads: Payloads) -> Constant:
    """A tensor as a constant. Raises ModelError if the payload does not have the length of the shape."""
    dtype, shape = element_type(tensor), tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"load: the tensor {tensor.name} has the negative extent {min(shape)}", hint=_DAMAGED)
    payload = payloads.of(tensor)
    if dtype.kind == "x":
        have, need, what = _opaque_size(tensor, dtype, payload)
        if have != need:
            raise ModelError(
                f"load: the tensor {tensor.name} has {have} {what}, its shape {list(shape)} needs {need}", hint=_DAMAGED
            )
        return Constant(dtype, shape, lambda: _decoded(tensor, payload), tensor)
    have = len(payload) if payload is not None else len(getattr(tensor, _FIELDS[dtype.name])) * dtype.bytes
    need = math.prod(shape) * dtype.bytes
    if have != need:
        raise ModelError(
            f"load: the tensor {tensor.name} has {have} bytes, its shape {list(shape)} of {dtype} needs {need}",
            hint=_DAMAGED,
        )
    make = _viewer(payload, dtype, shape) if payload is not None else lambda: _unpacked(tensor, dtype)
    return Constant(dtype, shape, cache(make) if have <= _SMALL else make, tensor)


def _opaque_size(tensor: onnx.TensorProto, dtype: DType, payload: memoryview | None) -> tuple[int, int, str]:
    """How much a tensor of an unsupported element type has, how much its shape needs, and of what."""
    count = math.prod(tensor.dims)
    if dtype.name == "string":
        return len(tensor.string_data), count, "strings"
    size = -(-count * dtype.bits // 8)
    if payload is not None:
        return len(payload), size, "bytes"
    field = {"complex64": tensor.float_data, "complex128": tensor.double_data}.get(dtype.name)
    return (len(tensor.int32_data), size, "entries") if field is None else (len(field), 2 * count, "entries")


def _decoded(tensor: onnx.TensorProto, payload: memoryview | None) -> Array:
    """The array of an unsupported element type, in the NumPy type to which onnx decodes it."""
    if payload is not None and tensor.data_location == onnx.TensorProto.EXTERNAL:
        inline = onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(payload))
        return numpy_helper.to_array(inline)
    return numpy_helper.to_array(tensor)


def _viewer(payload: memoryview, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
    """A function that returns the array of a payload: a read-only view, possibly unaligned; bfloat16 as float32."""
    if not len(payload):
        return lambda: np.empty(shape, dtype.numpy)
    if dtype.name == "bfloat16":

        def widened() -> Array:
            half = np.frombuffer(payload, "<u2").astype("<u4")
            return (half << 16).view("<f4").reshape(shape)

        return widened
    return lambda: np.frombuffer(payload, dtype.numpy.newbyteorder("<")).reshape(shape)


def _unpacked(tensor: onnx.TensorProto, dtype: DType) -> Array:
    """The array of a tensor whose elements are in a typed field."""
    return (
        np.ascontiguousarray(numpy_helper.to_array(tensor)).astype(dtype.numpy, copy=False).reshape(tuple(tensor.dims))
    )


def sparse_constant(tensor: onnx.SparseTensorProto) -> Constant:
    """A sparse initializer as a constant of unsupported type, whose array is dense."""

    def dense() -> Array:
        values, indices = numpy_helper.to_array(tensor.values), numpy_helper.to_array(tensor.indices)
        out = np.zeros(tuple(tensor.dims), values.dtype)
        out.reshape(-1)[indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), out.shape)] = values
        return out

    return Constant(DType("sparse", tensor.values.data_type, "x", 8, ""), tuple(tensor.dims), dense, tensor)
