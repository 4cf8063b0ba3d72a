"""Checks that a network with random weights is not degenerate: the magnitude of every activation in ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

Array: TypeAlias = npt.NDArray[Any]

LOW, HIGH = 0.1, 10.0
HIDDEN = -50.0  # what a mask hides is below this: exp says 0
PEAKED = 1.1  # least root mean square of probabilities, in units of that of equal ones


def dead(model: onnx.ModelProto, feed: Mapping[str, Array], high: float = HIGH) -> list[str]:
    """One line per degenerate activation, whose root mean square lies outside LOW..`high`.

    An activation is a float value that depends on weights or on float inputs. Sums over n terms are measured in units
    of sqrt(n). Masked scores do not count. Probabilities over n elements must have a root mean square of at least
    PEAKED times that of the uniform distribution. Unit vectors, scales and quantized values are exempt.
    """
    lines = []
    coded = set(_coded(model))
    values = {name: value for name, value in activations(model, feed).items() if name not in coded}
    summed = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "ReduceSum"}
    for name, value in values.items():
        if not value.size:
            continue  # of no region
        terms = values[summed[name]].size // value.size if name in summed else 1
        seen = value[~(value <= HIDDEN)]  # what is not a number is seen
        if seen.size < value.size and not seen.any():
            continue  # a mask by itself
        size = rms(seen) / math.sqrt(terms)
        if is_probability(value):
            if size * value.shape[-1] < PEAKED:
                lines.append(f"{name}: probabilities {size * value.shape[-1]:.3f} times those of equal ones")
        elif not is_direction(value) and not LOW <= size <= high:
            lines.append(f"{name}: root mean square {size:.4g}")
    return lines


def activations(model: onnx.ModelProto, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Every float value that depends on weights or on float inputs, from one run without optimization."""
    names = list(_weighted(model, feed))
    values = dict(zip(names, _values(model, feed, names), strict=True))
    return {name: value for name, value in values.items() if value.dtype.kind == "f"}


def rms(value: Array) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))


def is_probability(value: Array) -> bool:
    """Whether the last axis sums to one everywhere, with nothing negative."""
    if value.ndim == 0 or value.shape[-1] < 2 or float(value.min()) < 0:
        return False
    return bool(np.allclose(value.sum(axis=-1, dtype=np.float64), 1.0, atol=1e-4))


def is_direction(value: Array) -> bool:
    """Whether the last axis has length one everywhere."""
    return value.ndim > 0 and bool(np.allclose(np.square(value, dtype=np.float64).sum(axis=-1), 1.0, atol=1e-4))


def difference(one: onnx.ModelProto, other: onnx.ModelProto, feed: Mapping[str, Array]) -> float:
    """The largest difference between outputs of the same name, in units of the output's root mean square."""
    names = [output.name for output in one.graph.output]
    pairs = zip(run(one, feed, names), run(other, feed, names), strict=True)
    return max(float(np.max(np.abs(a - b))) / rms(a) for a, b in pairs)


def responses(model: onnx.ModelProto, feed: Mapping[str, Array], names: list[str]) -> dict[str, float]:
    """The change of the outputs, in units of their root mean square, when one of these values is scaled by 1.01.

    The input of a normalization is invariant to that in any network.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    _insert_factors(probe, names)
    outputs = [output.name for output in model.graph.output]
    session = _session(probe, optimized=False)
    ones = {f"{name}.factor": np.ones((), dtype=np.float32) for name in names}
    right = session.run(outputs, {**feed, **ones})
    moved = {}
    for name in names:
        wrong = session.run(outputs, {**feed, **ones, f"{name}.factor": np.array(1.01, dtype=np.float32)})
        moved[name] = max(rms(b - a) / rms(a) for a, b in zip(right, wrong, strict=True))
    return moved


def _insert_factors(model: onnx.ModelProto, names: list[str]) -> None:
    """Multiply each of these values by a new scalar input, `NAME.factor`."""
    wanted = set(names)
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for position, output in enumerate(node.output):
            if output in wanted:
                node.output[position] = f"{output}.before"
                nodes.append(helper.make_node("Mul", [f"{output}.before", f"{output}.factor"], [output]))
                model.graph.input.append(helper.make_tensor_value_info(f"{output}.factor", TensorProto.FLOAT, ()))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def run(model: onnx.ModelProto, feed: Mapping[str, Array], names: list[str], *, optimized: bool = True) -> list[Array]:
    """The values of these graph outputs."""
    if not names:  # to the runtime this would be all of them
        return []
    session = _session(model, optimized=optimized)
    return [np.asarray(value) for value in session.run(names, dict(feed))]


def _session(model: onnx.ModelProto, *, optimized: bool) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def gflop(model: onnx.ModelProto, feed: Mapping[str, Array]) -> float:
    """Billions of floating-point operations of Conv, MatMul and Gemm at the shapes of `feed`; a multiply-add is 2."""
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("Conv", "MatMul", "Gemm")]
    known = set(weights) | set(feed)
    wanted = list(dict.fromkeys(v for node in nodes for v in (*node.input[:2], node.output[0]) if v not in known))
    shapes = dict(zip(wanted, (value.shape for value in _values(model, feed, wanted)), strict=True))
    shapes |= weights | {name: value.shape for name, value in feed.items()}
    total = 0
    for node in nodes:
        if node.op_type == "Conv":
            inner = math.prod(shapes[node.input[1]][1:])
        else:
            transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
            inner = shapes[node.input[0]][0 if transposed else -1]
        total += 2 * math.prod(shapes[node.output[0]]) * inner
    return total / 1e9


def _values(model: onnx.ModelProto, feed: Mapping[str, Array], names: list[str]) -> list[Array]:
    """The values of any names in the graph, from one run without optimization."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    there = {output.name for output in probe.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    return run(probe, feed, names, optimized=False) if names else []  # the runtime takes none for all


def _weighted(model: onnx.ModelProto, feed: Mapping[str, Array]) -> Iterator[str]:
    """The values that depend on float inputs or on float constants with more than one element, in graph order."""
    reached = {name for name, value in feed.items() if value.dtype.kind == "f"}
    reached |= {tensor.name for tensor in model.graph.initializer if _is_weight(tensor)}
    for node in model.graph.node:
        if any(attribute.name == "value" and _is_weight(attribute.t) for attribute in node.attribute):
            reached.update(node.output)
        elif any(name in reached for name in _read(node)) and node.op_type not in ("Shape", "Identity"):
            outputs = [name for name in node.output if name]
            reached.update(outputs)
            yield from outputs


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, in its bodies too."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _read(inner)


def _coded(model: onnx.ModelProto) -> Iterator[str]:
    """Scales of quantized values, products of scales, and sums of products of codes, whose size says nothing."""
    scales = {node.output[1] for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"}
    sums = {node.output[0] for node in model.graph.node if node.op_type in ("MatMulInteger", "ConvInteger")}
    for node in model.graph.node:
        if (node.op_type == "Mul" and node.input[0] in scales) or (node.op_type == "Cast" and node.input[0] in sums):
            yield node.output[0]
    yield from scales


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == TensorProto.FLOAT and numpy_helper.to_array(tensor).size > 1
