"""Operations (flops) of profiled nodes at the measured sizes: of original nodes, and of function bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, inliner

from onnxfuse.config import Options
from onnxfuse.errors import OnnxFuseError
from onnxfuse.ir.graph import Decision, Graph, TensorType
from onnxfuse.load import load
from onnxfuse.load.source import source_of
from onnxfuse.ops.classify import node_facts
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import defined
from onnxfuse.runtime import feed_limits

# ONNX element types by the runtime profiler's names; types without arithmetic are left out.
_TYPES = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
_NARROW = frozenset({"int8", "uint8", "bfloat16"})  # whose products have instructions of their own
Typed = Sequence[tuple[int, Sequence[int]]]  # ONNX element type and shape of each input


def typed(found: Sequence[Mapping[str, Sequence[int]]]) -> Typed:
    """The inputs of a call in the profiler's form, a map from type to shape for each."""
    pairs = [next(iter(each.items()), ("", ())) for each in found]
    return [(_TYPES.get(kind, 0), shape) for kind, shape in pairs]


def narrow(found: Sequence[Mapping[str, Sequence[int]]]) -> bool:
    """Whether a call reads values whose products have a higher peak than float32 (float16 is widened on CPUs).

    >>> narrow([{"float": [2, 3]}, {"uint8": [3]}]), narrow([{"float16": [2, 3]}])
    (True, False)
    """
    return any(kind in _NARROW for each in found for kind in each)


def node_work(path: str | Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Operations of each node of a model's main graph at these input shapes; nodes with unknown counts are left out."""
    given = tuple(f"{name}:{','.join(map(str, shape))}" for name, shape in shapes.items() if len(shape))
    with suppress(OnnxFuseError):
        graph = load(path, Options(input_shape=given))
        named = {n.name: (raw.name or n.outputs[0]) for n in graph.nodes if (raw := source_of(graph).nodes.get(n.name))}
        return {named.get(name, name): count for name, count in _counts(graph)}
    return {}


def _counts(graph: Graph) -> Iterable[tuple[str, int]]:
    for node in graph.nodes:
        found = defined(ROWS, graph, node)
        count = None if isinstance(found, Decision) else node_facts(graph, node, found).flops.constant
        if count is not None:
            yield node.name, count


def inlined_types(path: Path, shapes: Iterable[str]) -> Mapping[str, TensorType | None]:
    """The types of the values of a model with kernels at input shapes `NAME:1,3,224,224`; empty if it cannot be read.

    Shape inference looks into function bodies once they are inlined; large weights count as inputs.
    """
    with suppress(OnnxFuseError):
        model = inliner.inline_local_functions(feed_limits.skeleton(path))
        large = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        for tensor in large:
            model.graph.initializer.remove(tensor)
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        return load(model.SerializeToString(), Options(input_shape=tuple(shapes))).types
    return {}


class Bodies:
    """The function bodies of a model; `work` counts the operations of a call."""

    def __init__(self, functions: Iterable[onnx.FunctionProto]) -> None:
        self._functions = {each.name: each for each in functions}
        self._known: dict[tuple[str, str], int | None] = {}

    def work(self, op_type: str, inputs: Typed) -> int | None:
        """Operations of one call with inputs of these types and shapes; None if unknown."""
        key = (op_type, str(inputs))
        if key not in self._known:
            self._known[key] = self._counted(op_type, inputs)
        return self._known[key]

    def _counted(self, op_type: str, inputs: Typed) -> int | None:
        function = self._functions.get(op_type)
        if function is None or len(inputs) != len(function.input) or not all(kind for kind, _ in inputs):
            return None
        values = [
            helper.make_tensor_value_info(name, kind, list(shape))
            for name, (kind, shape) in zip(function.input, inputs, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in function.output]
        graph = helper.make_graph(list(function.node), "body", values, outputs, value_info=function.value_info)
        model = helper.make_model(graph, opset_imports=list(function.opset_import), ir_version=10)
        with suppress(OnnxFuseError):
            return sum(count for _, count in _counts(load(model.SerializeToString(), Options())))
        return None


def rates(
    flops: int | None, size: int | None, time_ms: float, peaks: Mapping[str, Any], *, narrow: bool = False
) -> dict[str, Any]:
    """Achieved GFLOP/s and GB/s, and the share of the roofline: the larger of both bounds over the measured time.

    `roof` is that bound, "compute" or "memory". The bound of `narrow` products is unknown, since the peak is that of
    float32: no share is given where it would be the larger one.

    >>> rates(4_000_000, 1_000_000, 1.0, {"gflops": 10.0, "memory_gbps": 2.0})
    {'gflops': 4.0, 'gbps': 1.0, 'roof_share': 0.5, 'roof': 'memory'}
    >>> rates(40_000_000, 1_000_000, 1.0, {"gflops": 10.0, "memory_gbps": 2.0}, narrow=True)
    {'gflops': 40.0, 'gbps': 1.0, 'roof_share': None, 'roof': None}
    """
    seconds = time_ms / 1e3
    if seconds <= 0.0:
        return {"gflops": None, "gbps": None, "roof_share": None, "roof": None}
    at_best = {"compute": 0.0, "memory": 0.0}
    if flops and peaks.get("gflops"):
        at_best["compute"] = flops / (float(peaks["gflops"]) * 1e9)
    if size and peaks.get("memory_gbps"):
        at_best["memory"] = size / (float(peaks["memory_gbps"]) * 1e9)
    roof = max(at_best, key=lambda bound: at_best[bound])
    known = at_best[roof] > 0.0 and not (narrow and roof == "compute")
    return {
        "gflops": None if flops is None else flops / seconds / 1e9,
        "gbps": None if size is None else size / seconds / 1e9,
        "roof_share": at_best[roof] / seconds if known else None,
        "roof": roof if known else None,
    }
