"""ONNX files at the level of protobuf's wire format: large payloads are replaced by stubs, and put back by `expand`.

So payloads stay in the mapped file. A stub's payload is an external location "onnxfuse-blob:KEY". `slim` makes keys
"OFFSET:LENGTH" of the file; writers of models may make stubs with keys of their own, which they resolve in `expand`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import onnx

Buffer = bytes | memoryview
MARK = "onnxfuse-blob:"
THRESHOLD = 1024  # bytes of a payload from which on it becomes a stub; constants of shape arithmetic are smaller

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TENSOR: Any = onnx.TensorProto.DESCRIPTOR
_FIELD: dict[str, int] = {f.name: f.number for f in _TENSOR.fields}
_ATTRIBUTE: Any = onnx.AttributeProto.DESCRIPTOR
_LISTS = frozenset(f.number for f in _ATTRIBUTE.fields if f.name in ("floats", "ints", "strings"))
# Payloads whose bytes are those of `raw_data`, by the element type that must stand beside them (None: any).
_PAYLOADS: dict[int, int | None] = {
    _FIELD["raw_data"]: None,
    _FIELD["float_data"]: onnx.TensorProto.FLOAT,
    _FIELD["double_data"]: onnx.TensorProto.DOUBLE,
}


class Malformed(ValueError):
    """Bytes that are not a protobuf message; `truncated` when they end too early."""

    def __init__(self, reason: str, truncated: bool = False) -> None:
        super().__init__(reason)
        self.truncated = truncated


def slim(data: memoryview) -> bytes:
    """A serialized ModelProto with every large tensor payload replaced by a stub."""
    out = bytearray()
    _slim_message(onnx.ModelProto.DESCRIPTOR, data, 0, len(data), out)
    return bytes(out)


def expand(data: bytes, blob: Callable[[str], Buffer], size: Callable[[str], int] | None = None) -> Iterator[Buffer]:
    """The chunks of a serialized ModelProto with every stub replaced by the bytes that `blob` gives for its key.

    Blobs are requested lazily, one by one; `size` gives their lengths in advance.
    """
    sizes = size or (lambda key: memoryview(blob(key)).nbytes)
    chunks: list[Buffer | str] = []
    _expand_message(onnx.ModelProto.DESCRIPTOR, memoryview(data), 0, len(data), _marks(data), sizes, chunks)
    for chunk in chunks:
        yield memoryview(blob(chunk)).cast("B") if isinstance(chunk, str) else chunk


def key_of(tensor: onnx.TensorProto) -> str | None:
    """The key of a stub; None for other tensors."""
    for entry in tensor.external_data:
        if entry.key == "location" and entry.value.startswith(MARK):
            return str(entry.value)[len(MARK) :]
    return None


def make_stub(tensor: onnx.TensorProto, key: str) -> None:
    """Replace the payload of a tensor by a stub."""
    for name in ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "external_data"):
        tensor.ClearField(name)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", MARK + key
    tensor.data_location = onnx.TensorProto.EXTERNAL


def slice_of(key: str, data: memoryview) -> memoryview:
    """The bytes of a stub that `slim` made."""
    offset, length = map(int, key.split(":"))
    return data[offset : offset + length]


# Reading the wire -----------------------------------------------------------------------------------------------------


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The integer at `at` and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise Malformed("it ends inside a field", truncated=True)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise Malformed("a number is too long")


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, kind, where the field begins, where its value begins, where it ends) of each field of a message."""
    while at < end:
        begin = at
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, at = _varint(data, at)
            stop = at + length
        elif kind == _VARINT:
            stop = _varint(data, at)[1]
        elif kind in (_FIXED32, _FIXED64):
            stop = at + (4 if kind == _FIXED32 else 8)
        else:
            raise Malformed(f"field {number} has the unknown kind {kind}")
        if not number:
            raise Malformed("a field has no number")
        if stop > end:
            raise Malformed("it ends inside a field", truncated=True)
        yield number, kind, begin, at, stop
        at = stop


@cache
def _children(descriptor: Any) -> dict[int, Any]:
    return {f.number: f.message_type for f in descriptor.fields if f.message_type is not None}


def _slim_message(descriptor: Any, data: memoryview, start: int, end: int, out: bytearray) -> None:
    if descriptor is _TENSOR:
        _slim_tensor(data, start, end, out)
        return
    children, keep = _children(descriptor), start
    for number, kind, begin, at, stop in _fields(data, start, end):
        if descriptor is _ATTRIBUTE and number in _LISTS:
            break  # an attribute with a list has no tensor, and lists may have millions of elements (tree ensembles)
        if kind == _BYTES and stop - at > THRESHOLD and number in children:
            out += data[keep:begin]
            body = bytearray()
            _slim_message(children[number], data, at, stop, body)
            out += _tag(number, len(body)) + body
            keep = stop
    out += data[keep:end]


def _slim_tensor(data: memoryview, start: int, end: int, out: bytearray) -> None:
    fields = list(_fields(data, start, end))
    kinds = [_varint(data, at)[0] for number, _, _, at, _ in fields if number == _FIELD["data_type"]]
    payloads = [f for f in fields if f[0] in _PAYLOADS]
    one = payloads[0] if len(payloads) == 1 else None
    wanted = _PAYLOADS[one[0]] if one else None
    if one is None or one[4] - one[3] <= THRESHOLD or (wanted is not None and kinds[-1:] != [wanted]):
        out += data[start:end]
        return
    stub = onnx.TensorProto()
    make_stub(stub, f"{one[3]}:{one[4] - one[3]}")
    out += data[start : one[2]]
    out += data[one[4] : end]
    out += stub.SerializeToString()


# Writing the wire -----------------------------------------------------------------------------------------------------


def _tag(number: int, length: int) -> bytes:
    """The tag and length of a length-delimited field."""
    out = bytearray()
    for value in (number << 3 | _BYTES, length):
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def _marks(data: bytes) -> list[int]:
    found: list[int] = []
    at = data.find(MARK.encode())
    while at >= 0:
        found.append(at)
        at = data.find(MARK.encode(), at + 1)
    return found


def _expand_message(
    descriptor: Any,
    data: memoryview,
    start: int,
    end: int,
    marks: list[int],
    size: Callable[[str], int],
    out: list[Buffer | str],
) -> int:
    """Append the chunks of one message, or the keys of blobs, and return their length.

    Messages without stubs are copied as one slice.
    """
    if descriptor is _TENSOR:
        return _expand_tensor(data[start:end], size, out)
    children, keep, total = _children(descriptor), start, 0
    for number, kind, begin, at, stop in _fields(data, start, end):
        if kind != _BYTES or number not in children or bisect_left(marks, at) == bisect_left(marks, stop):
            continue
        body: list[Buffer | str] = []
        length = _expand_message(children[number], data, at, stop, marks, size, body)
        head = _tag(number, length)
        out += [data[keep:begin], head, *body]
        total += begin - keep + len(head) + length
        keep = stop
    out.append(data[keep:end])
    return total + end - keep


def _expand_tensor(data: memoryview, size: Callable[[str], int], out: list[Buffer | str]) -> int:
    tensor = onnx.TensorProto.FromString(bytes(data))
    key = key_of(tensor)
    if key is None:
        out.append(data)
        return len(data)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    length = size(key)
    head = tensor.SerializeToString() + _tag(_FIELD["raw_data"], length)
    out += [head, key]
    return len(head) + length
