"""A model of fixed sizes as exporters write it for sizes not known when it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import helper

CHANNELS = 1  # the axis of images whose extent is always known


def opened(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, int]]:
    """`model` with a symbol for each extent of an input that it runs with twice of, and the extents that they had.

    Equal extents at the same axis of inputs of the same rank are one symbol. Channels of images stay known.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    sizes: dict[str, int] = {}
    for symbol, extent, places in _candidates(model):
        old = [d.dim_value for d in places(made)]
        for d in places(made):
            d.dim_param = symbol
        if _runs(made, {**sizes, symbol: 2 * extent}):
            sizes[symbol] = extent
            continue
        for d, value in zip(places(made), old, strict=True):
            d.dim_value = value
    return made, sizes


def _candidates(model: onnx.ModelProto) -> Iterator[tuple[str, int, _Places]]:
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    stored = {tensor.name for tensor in model.graph.initializer}
    for number, value in enumerate(model.graph.input):
        dims = value.type.tensor_type.shape.dim
        for axis, d in enumerate(dims):
            channels = len(dims) == 4 and axis == CHANNELS
            if value.name not in stored and not channels and d.dim_value:
                found.setdefault((len(dims), axis, d.dim_value), []).append((number, axis))
    for (rank, axis, extent), at in found.items():
        yield f"d{axis}_{rank}_{extent}", extent, _Places(at)


class _Places:
    """The dimensions of one symbol in a model."""

    def __init__(self, at: list[tuple[int, int]]) -> None:
        self._at = at

    def __call__(self, model: onnx.ModelProto) -> list[onnx.TensorShapeProto.Dimension]:
        """Them, by input and axis."""
        return [model.graph.input[number].type.tensor_type.shape.dim[axis] for number, axis in self._at]


def _runs(model: onnx.ModelProto, sizes: Mapping[str, int]) -> bool:
    """Whether the runtime computes the model at these values of its symbols."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feeds = {}
        for value in model.graph.input:
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = np.ones(shape, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        session.run(None, feeds)
    except Exception:
        return False
    return True
