"""Evaluates a model in float64: the reference when two evaluations in lower precision are far from each other.

The model is converted, each float to a double, and run by ONNX Runtime where that has kernels for doubles: all of it,
else node by node, those without such a kernel by ONNX's reference evaluator.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    inliner,
    numpy_helper,
)
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine
from onnxfuse.runtime.graphs import graphs
from onnxfuse.verify import codes, compare
from onnxfuse.verify.compare import Array, Results

RUNTIME = "ONNX Runtime in float64"
REFERENCE = "ONNX Runtime in float64, ONNX's reference evaluator for operators that it has not"
SECONDS = 60  # of all cores together that it may take: other work of a machine does not count
_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SINGLE = {"NonMaxSuppression": (0, 1, 3, 4), "Resize": (1, 2), "Upsample": (1,)}  # inputs, single by definition
_TYPED = ("to", "dtype")  # attributes that name an element type


def truth(model: ModelProto, sets: Sequence[Mapping[str, Array]], names: Sequence[str]) -> tuple[str, Results]:
    """The evaluator's name, and by set of inputs the outputs `names`, floats as float64.

    External data must have been loaded. Raises DeviceError where no evaluator takes the model, or not in time.
    """
    wide = widened(model)
    given = [{name: _wide(value) for name, value in each.items()} for each in sets]
    with _limited():
        with suppress(DeviceError, ValueError):  # ValueError: more than two gigabytes
            session = engine.open_session(wide.SerializeToString(), _options(wide.graph))
            return RUNTIME, [engine.run(session, each, names) for each in given]
        return REFERENCE, [_by_node(wide, each, names) for each in given]


def _options(graph: GraphProto) -> ort.SessionOptions:
    """Without optimizations, but where the runtime saturates without them (decision 0202)."""
    return engine.options(optimize=codes.saturates(graph), lean=True)


def _by_node(wide: ModelProto, feeds: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """The values of `names`. Raises DeviceError for an operator that no evaluator takes."""
    known: dict[str, Array] = {tensor.name: numpy_helper.to_array(tensor) for tensor in wide.graph.initializer} | {
        **feeds
    }
    for node in wide.graph.node:
        model, given = _alone(wide, node, known)
        try:
            made = engine.run(engine.open_session(model.SerializeToString(), _options(model.graph)), given)
        except (DeviceError, ValueError):
            try:
                made = list(map(np.asarray, ReferenceEvaluator(model, new_ops=_OWN).run(None, given)))
            except Exception as problem:  # an operator that it does not know, or knows otherwise
                raise DeviceError(f"verify: no evaluation of {node.op_type} in float64: {problem}") from None
        known |= zip((name for name in node.output if name), made, strict=True)
    return [known[name] for name in names]


def _alone(wide: ModelProto, node: NodeProto, known: Mapping[str, Array]) -> tuple[ModelProto, dict[str, Array]]:
    """A model of one node, and what it reads, also in graphs that it holds."""
    read = [*node.input]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
            read += [name for inner in graphs(graph) for each in inner.node for name in each.input]
            read += [each.name for inner in graphs(graph) for each in inner.output]
    given = {name: known[name] for name in dict.fromkeys(read) if name in known}
    graph = GraphProto(name="one", node=[node], output=[ValueInfoProto(name=name) for name in node.output if name])
    if node.op_type in codes.PRODUCTS:  # optimizations make products with constants exact
        signed = [name for name, value in given.items() if value.dtype == np.int8]
        graph.initializer.extend(numpy_helper.from_array(given.pop(name), name) for name in signed)
    for name, value in given.items():
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, [None] * value.ndim))
    return ModelProto(ir_version=wide.ir_version, graph=graph, opset_import=wide.opset_import), given


def errors(true: Results, found: Results, scales: Sequence[float] = ()) -> list[float]:
    """By output, the largest distance of found floats from the true ones over all sets; 0 for other dtypes."""
    wide = [
        [_wide(f) if compare.is_float(f.dtype) else t for t, f in zip(a, b, strict=True)]
        for a, b in zip(true, found, strict=True)
    ]
    return [each.error for each in compare.distances(true, wide, scales)]


@contextmanager
def _limited() -> Iterator[None]:
    """Raises DeviceError when the process has worked for some time."""

    def late(number: int, frame: FrameType | None) -> None:
        raise DeviceError("verify: the evaluation in float64 takes too long")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _wide(value: Array) -> Array:
    return value.astype(np.float64) if compare.is_float(value.dtype) else value


# ---- the model in float64 ----


def widened(model: ModelProto) -> ModelProto:
    """The model with functions inlined and each type of floats replaced by float64."""
    made = ModelProto()
    made.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    _widen_graph(made.graph)
    return made


def _widen_graph(graph: GraphProto) -> None:
    del graph.value_info[:]
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        kind = value.type.tensor_type
        if kind.elem_type in _NARROW:
            kind.elem_type = TensorProto.DOUBLE
    nodes = [each for node in graph.node for each in _widened(node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _widened(node: NodeProto) -> Iterator[NodeProto]:
    """The node on doubles, behind casts of what it takes as float32 only."""
    for attribute in node.attribute:
        if attribute.name in _TYPED and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
            _widen_graph(graph)
    if node.op_type == "Constant":
        _plain_constant(node)
    if node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for place in _SINGLE.get(node.op_type, ()):
        if place < len(node.input) and node.input[place]:
            single = f"{node.output[0]}/single{place}"
            yield helper.make_node("Cast", [node.input[place]], [single], to=TensorProto.FLOAT)
            node.input[place] = single
    yield node


def _plain_constant(node: NodeProto) -> None:
    """Floats of a Constant as a tensor of doubles."""
    for attribute in node.attribute:
        if attribute.type in (AttributeProto.FLOAT, AttributeProto.FLOATS):
            value = np.asarray(helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


# ---- operators that the reference evaluator is slow at, or gets wrong ----


class Erf(OpRun):
    """The error function."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Conv(OpRun):
    """A convolution as a product with all windows."""

    op_domain = ""

    def _run(self, x: Array, w: Array, b: Array | None = None, **attributes: Any) -> tuple[Array]:
        rank = x.ndim - 2
        group, strides, dilations = (
            attributes.get("group") or 1,
            attributes.get("strides") or [1] * rank,
            attributes.get("dilations") or [1] * rank,
        )
        reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
        x = np.pad(x, [(0, 0), (0, 0), *_pads(attributes, x.shape[2:], reach, strides)])
        windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
        steps = tuple(slice(None, None, s) for s in strides)
        taps = tuple(slice(None, None, d) for d in dilations)
        windows = windows[(slice(None), slice(None), *steps, *taps)]
        axes = [1, *range(2 + rank, 2 + 2 * rank)]
        parts = [
            np.tensordot(part, weights, (axes, list(range(1, 2 + rank))))
            for part, weights in zip(np.split(windows, group, 1), np.split(w, group, 0), strict=True)
        ]
        made = np.moveaxis(np.concatenate(parts, -1), -1, 1)
        return (made if b is None else made + b.reshape(-1, *[1] * rank),)


class GlobalMaxPool(OpRun):
    """The largest element of each channel."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalAveragePool(OpRun):
    """The mean of each channel."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)


_OWN: list[Any] = [Conv, Erf, GlobalAveragePool, GlobalMaxPool]


def _pads(
    attributes: Mapping[str, Any], extents: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """The padding at both ends of each axis of an image."""
    rank, auto = len(extents), attributes.get("auto_pad") or "NOTSET"
    if auto == "NOTSET":
        pads = attributes.get("pads") or [0] * (2 * rank)
        return [(pads[i], pads[rank + i]) for i in range(rank)]
    if auto == "VALID":
        return [(0, 0)] * rank
    totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in zip(extents, strides, reach, strict=True)]
    small = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
    return [(s, t - s) for s, t in zip(small, totals, strict=True)]
