"""A model of fixed sizes as exporters write it for sizes not known when it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import helper

IMAGE = 4  # axes of an image
CHANNELS = 1  # that of an image whose extent is always known


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
    for symbol, extent, at in _candidates(model):
        dims = [made.graph.input[number].type.tensor_type.shape.dim[axis] for number, axis in at]
        for d in dims:
            d.dim_param = symbol
        if _runs(made, {**sizes, symbol: 2 * extent}):
            sizes[symbol] = extent
            continue
        for d in dims:
            d.dim_value = extent
    return made, sizes


def _candidates(model: onnx.ModelProto) -> Iterator[tuple[str, int, list[tuple[int, int]]]]:
    """Names for extents, with these and the inputs and axes that have them."""
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    stored = {tensor.name for tensor in model.graph.initializer}
    for number, value in enumerate(model.graph.input):
        dims = value.type.tensor_type.shape.dim
        for axis, d in enumerate(dims):
            channels = len(dims) == IMAGE and axis == CHANNELS
            if value.name not in stored and not channels and d.dim_value:
                found.setdefault((len(dims), axis, d.dim_value), []).append((number, axis))
    for (rank, axis, extent), at in found.items():
        yield f"d{axis}_{rank}_{extent}", extent, at


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
