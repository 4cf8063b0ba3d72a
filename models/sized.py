"""Rescaling of random weights by measurement, so that each contraction has the wanted deviation in ONNX Runtime.

As in layer-sequential unit-variance initialization (Mishkin and Matas, "All you need is a good init", 2016), layers are
taken in order. Factors are rounded, so that the last bits of a sum, which differ between machines, change no weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array: TypeAlias = npt.NDArray[Any]
CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def sized(
    model: onnx.ModelProto, feed: Mapping[str, Array], gains: Mapping[str, float] | None = None
) -> onnx.ModelProto:
    """`model`, its weights rescaled so that each contraction has deviation 1, or that of the first pattern found.

    `gains` maps patterns of weights' names to deviations; 0 keeps the weight. A BatchNormalization gets the statistics
    of what it reads.
    """
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = dict(weights)
    measure = _measure(model, feed, values)
    done: set[str] = set()
    for node in model.graph.node:
        if node.op_type in CONTRACTIONS and node.input[1] in weights and node.input[1] not in done:
            done.add(node.input[1])
            gain = _gain(node.input[1], gains or {})
            if gain:
                values[node.input[1]] = values[node.input[1]] * _rounded(gain / float(np.std(measure(node.output[0]))))
        elif node.op_type == "BatchNormalization":
            x = measure(node.input[0])
            others = tuple(axis for axis in range(x.ndim) if axis != 1)
            for name, found in zip(node.input[3:], (x.mean(axis=others), x.var(axis=others)), strict=True):
                values[name] = np.array([_rounded(float(each)) for each in found], np.float32)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(values[tensor.name].astype(weights[tensor.name].dtype), tensor.name))
    return model


def _gain(name: str, gains: Mapping[str, float]) -> float:
    return next((size for pattern, size in gains.items() if re.search(pattern, name)), 1.0)


def _measure(model: onnx.ModelProto, feed: Mapping[str, Array], values: Mapping[str, Array]) -> Callable[[str], Array]:
    """A function that returns a value under the current weights; one session serves all calls."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    names = list(dict.fromkeys(_questions(probe)))
    weights = {name for node in probe.graph.node for name in node.input if name in values and _is_float(values[name])}
    kept = [tensor for tensor in probe.graph.initializer if tensor.name not in weights]
    for tensor in probe.graph.initializer:
        if tensor.name in weights:
            probe.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    probe.graph.ClearField("initializer")
    probe.graph.initializer.extend(kept)
    there = {output.name for output in probe.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def measure(name: str) -> Array:
        return np.asarray(session.run([name], {**feed, **{each: values[each] for each in weights}})[0])

    return measure


def _questions(model: onnx.ModelProto) -> Iterator[str]:
    for node in model.graph.node:
        if node.op_type in CONTRACTIONS:
            yield node.output[0]
        elif node.op_type == "BatchNormalization":
            yield node.input[0]


def _is_float(values: Array) -> bool:
    return values.dtype == np.float32


def _rounded(value: float) -> np.float32:
    """Three significant decimal digits."""
    if value == 0:
        return np.float32(0)
    digits = 10.0 ** (2 - math.floor(math.log10(abs(value))))
    return np.float32(round(value * digits) / digits)
