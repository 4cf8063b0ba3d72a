"""Data-flow analysis of a model's integer inputs: which are indices, and which are sizes."""

from __future__ import annotations

import math
import mmap
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    inliner,
    numpy_helper,
)

from onnxfuse.errors import ModelError, UsageError
from onnxfuse.runtime import inference, wire
from onnxfuse.runtime.graphs import bounded, graphs

_MOST_WORDS = 1000  # of a model's tables, that are fed to it
_SMALL = 128  # elements of constants that may matter to shapes and are kept in a skeleton

# These tables are about unmodified models, operators without a row included, and do not import the compiler's operator
# table; tests/ops/test_traits.py compares them with it.

# Operators whose outputs are elements of these inputs.
PASSED: dict[str, tuple[int, ...]] = dict.fromkeys(
    ("Identity", "Cast", "CastLike", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Slice",
     "Gather", "Tile", "Split", "Trilu", "Clip", "GatherElements", "GatherND", "Pad", "Crop", "CenterCropPad",
     "ReverseSequence", "DepthToSpace", "SpaceToDepth", "Resize", "Upsample", "Dropout", "ArrayFeatureExtractor"), (0,)
) | {"Where": (1, 2), "Concat": tuple(range(64)), "Max": (0, 1), "Min": (0, 1)}  # fmt: skip

# Operators with an index input: its position, and the position of the data it points into.
INDICES: dict[str, dict[int, int]] = {
    "Gather": {1: 0},
    "GatherElements": {1: 0},
    "ScatterElements": {1: 0},
    "Scatter": {1: 0},
    "GatherND": {1: 0},
    "ArrayFeatureExtractor": {1: 0},
    "ScatterND": {1: 0},
    "EmbedLayerNormalization": {0: 2, 1: 4},
    "RoiAlign": {2: 0},
}
_ALL_AXES = {"GatherND", "ScatterND"}  # an index may be into any leading axis: it stays below the smallest extent

_LAST = {"ArrayFeatureExtractor": -1}  # the axis of operators without an attribute for it

# Operators with inputs that are sizes, positions or counts, for which 1 is most likely valid.
SIZES: dict[str, tuple[int, ...]] = {
    "Reshape": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Slice": (1, 2, 3, 4),
    "Resize": (3,),
    "Pad": (1,),
    "CenterCropPad": (1,),
    "OneHot": (1,),
    "Loop": (0,),
}

_COMPARES = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")

_RANKED = (
    "Conv",
    "ConvTranspose",
    "LSTM",
    "GRU",
    "RNN",
    "Gemm",
    "MatMul",
)  # operators whose data has the rank of their weights


@dataclass(frozen=True, slots=True)
class Use:
    """The use of an integer input: an index below `limit` (extent or symbol), a size, or a value in comparisons."""

    kind: Literal["index", "size", "choice"]
    limit: int | str = 1
    values: tuple[int, ...] = ()  # of a choice: the constants it is compared with


def load_proto(path: Path) -> ModelProto:
    """The model of a file, without loading external data. Raises UsageError and ModelError.

    The file is mapped, so that its weights are in memory once, not twice. A model whose inlined functions would be too
    large is refused before anything inlines them.
    """
    return _read(path, ModelProto.FromString)


def skeleton(path: Path) -> ModelProto:
    """The model without the payloads of its weights, which become external data for shape inference.

    Payloads are not read from disk. Raises as `load_proto` does.
    """
    return _read(path, _without_weights)


def _read(path: Path, parsed: Callable[[memoryview], ModelProto]) -> ModelProto:
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            with memoryview(mapped) as view:
                model = parsed(view)
            if not model.HasField("graph"):
                raise ValueError
    except OSError as problem:
        raise UsageError(f"inputs: {path} cannot be read: {problem.strerror or problem}") from None
    except (DecodeError, ValueError):
        raise ModelError(f"inputs: {path} is not an ONNX model") from None
    bounded(model, "inputs")
    return model


def _without_weights(view: memoryview) -> ModelProto:
    model: ModelProto = ModelProto.FromString(wire.slim(view))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) > _SMALL:
            bare = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
            bare.data_location = TensorProto.EXTERNAL
            tensor.CopyFrom(bare)
    whole = wire.expand(model.SerializeToString(), lambda key: wire.slice_of(key, view))
    found: ModelProto = ModelProto.FromString(b"".join(map(bytes, whole)))
    return found


def uses(bare: ModelProto) -> dict[str, Use]:
    """The uses of a skeleton's integer inputs; unknown ones are left out. An index takes precedence over a size."""
    names = [v.name for v in bare.graph.input if v.type.tensor_type.elem_type in (TensorProto.INT32, TensorProto.INT64)]
    if not names:
        return {}
    graph = _inferred(bare).graph
    consumers = _consumers(graph)
    shapes = shapes_of(graph)
    found = {name: _use(name, consumers, shapes, _numbers(graph)) for name in names}
    return {name: use for name, use in found.items() if use is not None}


def _inferred(bare: ModelProto) -> ModelProto:
    """The model with functions inlined and shapes inferred, as far as possible."""
    try:
        inlined = inliner.inline_local_functions(bare) if bare.functions else bare
        return inference.of_model(inlined) or bare
    except Exception:  # a model that the tools reject may still run; its uses are then guessed
        return bare


def rank_of(name: str, graph: GraphProto) -> int:
    """The rank of an input of unknown shape: that required by its first consumer with weights, else 0."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if name in node.input[:1] and node.op_type in _RANKED and len(node.input) > 1:
            return len(shapes.get(node.input[1], ()))
    return 0


def words_of(graph: GraphProto) -> tuple[str, ...]:
    """Strings that a model with inputs of strings knows: those of its tables, and one that is in none of them."""
    nodes = [node for each in graphs(graph) for node in each.node]
    listed = [s for node in nodes for a in node.attribute for s in (*a.strings, *a.t.string_data)]
    known = dict.fromkeys(s.decode(errors="replace") for s in listed[:_MOST_WORDS])
    return (*filter(None, known), "?")


def _consumers(graph: GraphProto) -> Mapping[str, list[tuple[NodeProto, int]]]:
    """Consumers of each value by name, including those in subgraphs, whose names do not shadow outer ones."""
    found: defaultdict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
    for each in graphs(graph):
        for node in each.node:
            for position, name in enumerate(node.input):
                found[name].append((node, position))
    return found


def shapes_of(graph: GraphProto) -> dict[str, tuple[int | str | None, ...]]:
    """The shape of every value of known rank."""
    found: dict[str, tuple[int | str | None, ...]] = {}
    for each in graphs(graph):
        for tensor in each.initializer:
            found[tensor.name] = tuple(tensor.dims)
        for value in (*each.input, *each.value_info, *each.output):
            if value.type.tensor_type.HasField("shape"):
                found[value.name] = _extents(value)
    return found


def _extents(value: ValueInfoProto) -> tuple[int | str | None, ...]:
    dims = value.type.tensor_type.shape.dim
    return tuple(int(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or None for dim in dims)


def _use(
    name: str,
    consumers: Mapping[str, list[tuple[NodeProto, int]]],
    shapes: Mapping[str, tuple[int | str | None, ...]],
    numbers: Mapping[str, int],
) -> Use | None:
    """The most restrictive use of `name` and of all values that hold its elements."""
    limits: list[int | str] = []
    compared: dict[int, None] = {}
    sized = False
    seen, front = {name}, [name]
    while front:
        for node, position in consumers.get(front.pop(), ()):
            if (data := INDICES.get(node.op_type, {}).get(position)) is not None:
                limits.append(_limit(node, shapes.get(node.input[data])))
            if node.op_type in _COMPARES:
                compared |= {numbers[other]: None for other in node.input if other in numbers}
            sized = sized or position in SIZES.get(node.op_type, ())
            reached = [*node.output] if position in PASSED.get(node.op_type, ()) else _inner_names(node, position)
            front += [each for each in reached if each and each not in seen]
            seen.update(reached)
    if limits:
        return Use("index", min(limits, key=lambda limit: limit if isinstance(limit, int) else 1 << 40))
    if compared and not sized:
        return Use("choice", values=tuple(compared))
    return Use("size") if sized else None


def _numbers(graph: GraphProto) -> dict[str, int]:
    """The values of constants of one integer element."""
    tensors = [(t.name, t) for each in graphs(graph) for t in each.initializer]
    for node in (n for each in graphs(graph) for n in each.node if n.op_type == "Constant"):
        tensors += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    whole = (TensorProto.INT32, TensorProto.INT64)
    held = [(name, t) for name, t in tensors if t.data_type in whole and math.prod(t.dims) == 1]
    return {name: int(numpy_helper.to_array(t).item()) for name, t in held if t.data_location != TensorProto.EXTERNAL}


def _inner_names(node: NodeProto, position: int) -> list[str]:
    """The formal input of a Loop or Scan body for this input of the node."""
    if node.op_type not in ("Loop", "Scan"):
        return []
    body = next((a.g for a in node.attribute if a.name == "body"), GraphProto())
    return [body.input[position].name] if position < len(body.input) else []


def _limit(node: NodeProto, shape: tuple[int | str | None, ...] | None) -> int | str:
    """The extent that an index of `node` must stay below; 1 where it is unknown."""
    if not shape:
        return 1
    if node.op_type in _ALL_AXES:
        numbers = [extent for extent in shape if isinstance(extent, int)]
        return min(numbers) if len(numbers) == len(shape) else 1
    axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), _LAST.get(node.op_type, 0))
    extent = shape[axis] if -len(shape) <= axis < len(shape) else None
    return 1 if extent is None else extent
