"""The initializers of the rewritten model: packed once per layout, lazily while they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.emit.coded import OPSET, PARTS, coding, decoding
from onnxfuse.emit.names import unique
from onnxfuse.emit.proto import tensors_in, without
from onnxfuse.emit.spell import stored
from onnxfuse.ir.dtype import F32, I8, U8, DType
from onnxfuse.ir.graph import Constant, Graph
from onnxfuse.ir.kernel import Param
from onnxfuse.ir.layout import PLAIN, Layout
from onnxfuse.load.source import ModelSource
from onnxfuse.load.tensors import Payloads
from onnxfuse.runtime.graphs import put_nodes
from onnxfuse.runtime.wire import THRESHOLD, Buffer, key_of, make_stub

_KEY = "weight:"
_CODED = 16 << 10  # bytes of weights from which on they are stored as the codes that they were made of
_PIECE = 1 << 16  # elements that are looked at at a time: they stay in a cache
_SIGNIFICANT = 2.0**-100
# Identifies a stored tensor: a value in plain layout, or a constant (or the digest of its payload) in a packed layout.
# That of a transposed copy is one of what was copied.
_Key = tuple[str | Constant, Layout, DType | None]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A payload that may be stored outside the model file; each call of `payload` packs or maps its bytes again."""

    key: str  # identifies its stub
    bytes: int
    payload: Callable[[], Buffer]


class Weights:
    """Collects the constants that a graph's nodes read, in the order of first use, and stores them in the graph.

    The weights of a subgraph (`inner`) are its own initializers; packed ones are stored in the main graph, once for all
    subgraphs. `shared`: constants made by rewrites are deduplicated by digest, since two subgraphs may make the same.
    """

    def __init__(
        self, source: ModelSource, taken: set[str], *, shared: bool = False, main: Weights | None = None
    ) -> None:
        self.source = source
        self.moved = False  # whether some tensor was in an external data file
        self.decoding: list[onnx.NodeProto] = []  # nodes of the main graph that make weights of codes
        self._main = main or self
        self._taken = taken  # names of values in use
        self._shared = shared
        self._captured: Mapping[str, Constant] = {}  # constants of enclosing graphs
        self._payloads = Payloads(source.data, source.path)
        self._large: dict[str, Weight] = {} if main is None else main._large
        self._coded = main is None and source.opsets.get("", 0) >= OPSET and _has_codes(source.proto)
        self._names: dict[_Key, str] = {}  # of packed constants
        self._tensors: dict[_Key, onnx.TensorProto | onnx.SparseTensorProto] = {}

    def inner(self, captured: Mapping[str, Constant]) -> Weights:
        """The weights of a subgraph with these captured constants."""
        made = Weights(self.source, self._taken, main=self._main)
        made._captured = captured
        return made

    @property
    def large(self) -> tuple[Weight, ...]:
        """The weights that have stubs in the model."""
        return tuple(self._large.values())

    def blob(self, key: str) -> Buffer:
        """The payload of a stub, which emit or the loader made."""
        return self._large[key].payload() if key in self._large else self.source.blob(key)

    # Reading ----------------------------------------------------------------------------------------------------------

    def plain(self, values: Iterable[str], graph: Graph) -> None:
        """Store the constants among `values` in plain layout."""
        for value in values:
            constant = graph.constants.get(value)
            outside = constant is None or self._captured.get(value) is constant
            if constant is not None and not outside and (value, PLAIN, None) not in self._names:
                self._names[value, PLAIN, None] = value
                self._put_plain(constant, value)

    def packed(self, p: Param, graph: Graph) -> str:
        """The name of a constant in the layout and element type of a kernel's input."""
        constant = graph.constants[p.value]
        assert constant.shape == tuple(e.constant for e in p.shape), f"emit: {p.value} is not of the shape {p.shape}"
        if not p.layout.steps and p.dtype == constant.dtype:
            self.plain([p.value], graph)
            return p.value
        return self._main._packed(constant, p)

    def _packed(self, constant: Constant, p: Param) -> str:
        make = _maker(constant, p.layout, p.dtype)
        key: _Key = (*constant.stored(p.layout), p.dtype)
        if self._shared and constant.raw is None:
            key = (hashlib.sha256(make()).hexdigest(), p.layout, p.dtype)
        if key not in self._names:
            self._names[key] = unique(f"{p.value}.packed", self._taken)
            self._put_made(key, self._names[key], p.dtype, tuple(e.constant or 0 for e in p.storage), make)
        return self._names[key]

    def _put_plain(self, constant: Constant, name: str) -> None:
        raw, key = constant.raw, (name, PLAIN, None)
        if isinstance(raw, onnx.SparseTensorProto):
            self._tensors[key] = raw
        elif isinstance(raw, onnx.TensorProto):
            self._tensors[key] = self._copy(raw, name, constant)
        else:
            make = _maker(constant, PLAIN, constant.dtype)
            self._put_made(key, name, constant.dtype, constant.shape, make)

    def _put_made(self, key: _Key, name: str, dtype: DType, shape: tuple[int, ...], make: Callable[[], Buffer]) -> None:
        """Store what rewriting or packing made, as codes if it can be."""
        if not self._coded or dtype != F32 or not self._put_codes(name, shape, make):
            tensor = onnx.TensorProto(name=name, data_type=dtype.onnx, dims=shape)
            self._tensors[key] = self._put(tensor, prod(shape) * dtype.bytes, make)

    # Storing ----------------------------------------------------------------------------------------------------------

    def _copy(self, raw: onnx.TensorProto, name: str, constant: Constant | None = None) -> onnx.TensorProto:
        """A copy of a loaded tensor with a new name; external data becomes a `Weight`."""
        tensor = onnx.TensorProto()
        tensor.CopyFrom(raw)
        tensor.name = name
        payload = self._payloads.of(raw)
        self.moved |= raw.data_location == onnx.TensorProto.EXTERNAL and key_of(raw) is None
        if payload is not None:
            return self._put(tensor, len(payload), lambda: payload)
        if constant is not None and constant.dtype.kind != "x" and constant.bytes > THRESHOLD:
            return self._put(tensor, constant.bytes, _maker(constant, PLAIN, constant.dtype))
        return tensor

    def _put(self, tensor: onnx.TensorProto, size: int, payload: Callable[[], Buffer]) -> onnx.TensorProto:
        key = f"{_KEY}{len(self._large)}"
        make_stub(tensor, key)
        if size > THRESHOLD:
            self._large[key] = Weight(key, size, payload)
            return tensor
        without(tensor, "external_data", "data_location")
        tensor.raw_data = bytes(payload())
        return tensor

    def _put_codes(self, name: str, shape: tuple[int, ...], payload: Callable[[], Buffer]) -> bool:
        """Store float32 weights as 8-bit codes, from which nodes make them, if they were that; whether they were."""

        def weights() -> np.ndarray[Any, np.dtype[np.float32]]:
            return np.frombuffer(payload(), np.float32).reshape(shape)

        found = coding(weights()) if prod(shape) * F32.bytes >= _CODED else None
        if found is None:
            return False
        names = {part: unique(f"{name}.{part}", self._taken) for part in PARTS}
        codes = onnx.TensorProto(name=names["codes"], data_type=U8.onnx, dims=shape)
        tensors = [self._put(codes, prod(shape), lambda: found.codes(weights()).reshape(-1).data)]
        tensors.append(numpy_helper.from_array(found.offset, names["offset"]))
        tensors.append(numpy_helper.from_array(found.scale, names["scale"]))
        self._tensors |= {(t.name, PLAIN, None): t for t in tensors}
        self.decoding += decoding(name, names)
        return True

    def store(self, graph: onnx.GraphProto) -> None:
        """Append all collected constants to the graph's initializers, and put nodes that make others before its own."""
        self.take(graph)
        if self.decoding:
            put_nodes(graph, [*self.decoding, *graph.node])
        for tensor in self._tensors.values():
            if isinstance(tensor, onnx.SparseTensorProto):
                graph.sparse_initializer.append(tensor)
            else:
                graph.initializer.append(tensor)

    def take(self, graph: onnx.GraphProto | onnx.FunctionProto) -> None:
        """Detach all tensors of a loaded graph from external data files."""
        for tensor in graph.initializer if isinstance(graph, onnx.GraphProto) else ():
            tensor.CopyFrom(self._copy(tensor, tensor.name))
        for tensor in tensors_in(graph):
            if tensor.data_location == onnx.TensorProto.EXTERNAL and key_of(tensor) is None:
                tensor.CopyFrom(self._copy(tensor, tensor.name))


def _has_codes(model: onnx.ModelProto) -> bool:
    """Whether a model has tensors of 8-bit integers that are as large as weights."""
    tensors = chain(model.graph.initializer, tensors_in(model.graph), *map(tensors_in, model.functions))
    return any(t.data_type in (I8.onnx, U8.onnx) and prod(t.dims) * F32.bytes >= _CODED for t in tensors)


def _maker(constant: Constant, layout: Layout, dtype: DType) -> Callable[[], Buffer]:
    """A function that packs a constant. In weights that have a layout of their own, subnormals become zeros."""
    table = bool(layout.steps) and sum(n > 1 for n in constant.shape) > 1

    def make() -> Buffer:
        packed = stored(layout.pack(constant.load()), dtype)
        if table and packed.dtype == np.float32:
            packed = without_subnormals(packed)
        return packed.reshape(-1).view(np.uint8).data

    return make


def without_subnormals(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 weights of any shape, subnormals replaced by zeros if the largest weight is at least 2**-100.

    Processors multiply subnormals up to a hundred times more slowly. A sum of K products changes by at most
    K * 2**-126 times the largest input: an eighth of what rounding may change, K * 2**-24 * 2**-100 times that input.
    """
    bits = weights.reshape(-1).view(np.uint32)
    found = [at for at in range(0, bits.size, _PIECE) if np.any(_subnormal(bits[at : at + _PIECE]))]
    if not found or not np.nanmax(np.abs(weights)) >= _SIGNIFICANT:
        return weights
    kept = bits.copy()
    for at in found:
        piece = kept[at : at + _PIECE]
        piece[_subnormal(piece)] = 0
    return kept.view(np.float32).reshape(weights.shape)


def _subnormal(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which float32 are subnormal, by their bits: neither zero nor normal."""
    return (bits << 1) - 2 < (1 << 24) - 2
