"""How long ONNX Runtime's own nodes take: the rows of `onnxfuse/cost/runtime.py`, and how far they are off on networks.

    python -m benchmarks.runtime_nodes rows [--threads 1 2] [--seconds 0.2]
    python -m benchmarks.runtime_nodes networks MODEL.onnx ... [--threads 1 2]

Every node is timed by the runtime's own profiler with all optimizations on, and counts with a low quantile of its runs:
other work on a machine only adds time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from onnxfuse.config import Target, targets_of
from onnxfuse.cost.runtime import Call, Tensor, node_seconds, work_of
from onnxfuse.ir.dtype import DType, dtype_of

QUANTILE = 0.0
LEAST = 30.0  # microseconds of nodes that are compared: the profiler itself takes some around each
_SUFFIX = "_kernel_time"
_ELEMENTS = {"float": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "double": 11}


@dataclass(frozen=True, slots=True)
class Timed:
    """A node of the runtime's own graph with its microseconds."""

    call: Call
    us: float
    name: str = ""


def profiled(model: onnx.ModelProto | Path, feeds: Mapping[str, Any], threads: int, seconds: float) -> list[Timed]:
    """Every node that the runtime ran, in its own optimized form."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "run"))
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        options.add_session_config_entry("session.force_spinning_stop", "1")
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        until, runs = time.monotonic() + seconds, 0
        while runs < 5 or time.monotonic() < until:
            session.run(None, dict(feeds))
            runs += 1
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        optimized = onnx.load(str(Path(folder, "optimized.onnx")), load_external_data=False)
    return list(_timed(events, optimized))


def _timed(events: Sequence[Mapping[str, Any]], optimized: onnx.ModelProto) -> Iterator[Timed]:
    nodes = {node.name: node for node in optimized.graph.node}
    weights = {each.name: Tensor(t, tuple(each.dims), constant=True) for each in optimized.graph.initializer
               if (t := dtype_of(each.data_type)) is not None}  # fmt: skip
    times: defaultdict[str, list[float]] = defaultdict(list)
    seen: dict[str, Any] = {}
    for each in events:
        name = each.get("name", "").removesuffix(_SUFFIX)
        if each.get("cat") == "Node" and each["name"].endswith(_SUFFIX) and name in nodes:
            times[name].append(each["dur"])
            seen[name] = each["args"]
    for name, args in seen.items():
        node = nodes[name]
        inputs = _inputs(node.input, list(_tensors(args["input_type_shape"])), weights)
        outputs = tuple(_tensors(args["output_type_shape"]))
        if outputs and inputs is not None:
            call = Call(node.op_type, inputs, outputs, _attributes(node))
            yield Timed(call, float(np.quantile(times[name], QUANTILE)), name)


def _inputs(
    names: Sequence[str], there: list[Tensor], weights: Mapping[str, Tensor]
) -> tuple[Tensor | None, ...] | None:
    """The inputs of a node; the profiler leaves out weights that the runtime has packed. None: it said too little."""
    found: list[Tensor | None] = []
    for name in names:
        weight = weights.get(name)
        if weight is not None and (not there or (there[0].dtype, there[0].shape) != (weight.dtype, weight.shape)):
            found.append(weight)
        elif name and not there:
            return None
        elif name:
            first = there.pop(0)
            found.append(weight or first)
        else:
            found.append(None)
    return tuple(found)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.HasField("g")}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _tensors(shapes: Sequence[Mapping[str, Sequence[int]]]) -> Iterator[Tensor]:
    for each in shapes:
        for name, shape in each.items():
            dtype: DType | None = dtype_of(_ELEMENTS.get(name, 0))
            if dtype is not None:
                yield Tensor(dtype, tuple(shape))


def say(line: str) -> None:
    """A line of the answer."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# Models of one operator -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One node: shapes of activations (of a type other than float32 where a letter says so) and arrays of constants."""

    op: str
    inputs: tuple[Any, ...]
    attrs: Mapping[str, Any]
    outputs: int = 1
    domain: str = ""

    @property
    def label(self) -> str:
        """For people."""
        shown = [str(list(each.shape)) + "c" if isinstance(each, np.ndarray) else str(each) for each in self.inputs]
        attrs = " ".join(f"{k}={v}" for k, v in self.attrs.items())
        return f"{self.op} {' '.join(shown)} {attrs}".strip()

    def model(self) -> tuple[onnx.ModelProto, dict[str, Any]]:
        """The model and inputs to run it with."""
        rng = np.random.default_rng(0)
        names, given, feeds, weights = [], [], {}, []
        for at, each in enumerate(self.inputs):
            name = f"x{at}" if each is not None else ""
            names.append(name)
            if isinstance(each, np.ndarray):
                weights.append(numpy_helper.from_array(each, name))
            elif each is not None:
                shape, dtype = (each[1:], each[0]) if isinstance(each[0], str) else (each, "float32")
                feeds[name] = _random(rng, shape, dtype)
                onnx_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                given.append(helper.make_tensor_value_info(name, onnx_type, shape))
        outs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outs, name="node", domain=self.domain, **self.attrs)
        made = [onnx.ValueInfoProto(name=out) for out in outs]
        graph = helper.make_graph([node], "g", given, made, weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9), feeds


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Any:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in ("int64", "int32", "uint8", "int8"):
        return rng.integers(0, 2, shape).astype(dtype)
    return (rng.random(shape) + 0.1).astype(dtype)


def _weights(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(1)
    if dtype != "float32":
        return rng.integers(-7, 7, shape).astype(dtype)
    return (rng.standard_normal(shape) / math.sqrt(max(math.prod(shape[1:]), 1))).astype(np.float32)


def _ints(*values: int) -> Any:
    return np.array(values, np.int64)


_SIZES = ((64, 256), (128, 768), (512, 1024))
_IMAGES = ((1, 32, 56, 56), (1, 128, 28, 28), (1, 64, 112, 112), (1, 512, 14, 14))


def cases() -> Iterator[Case]:
    """Every measured node."""
    yield from _elementwise()
    yield from _rows()
    yield from _products()
    yield from _convolutions()
    yield from _moves()
    yield from _codes()


def _elementwise() -> Iterator[Case]:
    row = _weights(1024)
    for s in _SIZES:
        for op in ("Add", "Mul", "Max"):
            yield Case(op, (s, s), {})
        yield Case("Div", (s, s), {})
        for op in ("Relu", "Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "LeakyRelu", "HardSigmoid", "HardSwish"):
            yield Case(op, (s,), {})
        yield Case("Clip", (s, np.array(0, np.float32), np.array(6, np.float32)), {})
        for op in ("Exp", "Sigmoid", "Tanh", "Erf", "Gelu"):
            yield Case(op, (s,), {})
        for op in ("Log", "Sin", "Cos", "Softplus", "Elu", "Mish"):
            yield Case(op, (s,), {})
        yield Case("Pow", (s, np.array(2.5, np.float32)), {})
        for op in ("Greater", "Equal", "LessOrEqual"):
            yield Case(op, (s, s), {})
        yield Case("Where", (("bool", *s), s, s), {})
        yield Case("And", (("bool", *s), ("bool", *s)), {})
        yield Case("Add", (("int64", *s), ("int64", *s)), {})
        yield Case("Mul", (("int64", *s), ("int64", *s)), {})
        for to in (7, 9, 10):
            yield Case("Cast", (s,), {"to": to})
        yield Case("Cast", (("int64", *s),), {"to": 1})
        yield Case("Cast", (("bool", *s),), {"to": 1})
    for op in ("Add", "Mul"):
        yield Case(op, ((512, 1024), row), {})
        yield Case(op, ((1, 64, 56, 56), _weights(64, 1, 1)), {})


def _rows() -> Iterator[Case]:
    for s in (*_SIZES, (8192, 32)):
        for op in ("ReduceMean", "ReduceMax"):
            yield Case(op, (s, _ints(1)), {})
            yield Case(op, (s, _ints(0)), {})
        yield Case("ReduceSum", (s, _ints(1)), {})
        yield Case("ReduceL2", (s, _ints(1)), {})
        yield Case("ArgMax", (s,), {"axis": 1})
        yield Case("CumSum", (s, np.array(1, np.int64)), {})
        yield Case("Softmax", (s,), {"axis": -1})
        yield Case("LogSoftmax", (s,), {"axis": -1})
        yield Case("LayerNormalization", (s, _weights(s[1]), _weights(s[1])), {})
        yield Case("SimplifiedLayerNormalization", (s, _weights(s[1])), {})
    for s in _IMAGES:
        yield Case("Softmax", (s,), {"axis": 1})
        yield Case("InstanceNormalization", (s, _weights(s[1]), _weights(s[1])), {})
        yield Case("ReduceMean", (s, _ints(2, 3)), {})
        yield Case("GlobalAveragePool", (s,), {})
        for op, size, stride in (("MaxPool", 2, 2), ("MaxPool", 3, 2), ("AveragePool", 3, 1), ("MaxPool", 5, 1)):
            around = {"pads": [size // 2] * 4} if size % 2 else {}
            yield Case(op, (s,), {"kernel_shape": [size, size], "strides": [stride, stride], **around})
        for mode in ("nearest", "linear", "cubic"):
            sizes = _ints(s[0], s[1], 2 * s[2], 2 * s[3])
            yield Case("Resize", (s, None, None, sizes), {"mode": mode})


def _products() -> Iterator[Case]:
    for m, k, n in ((128, 768, 768), (128, 768, 3072), (512, 256, 256), (196, 384, 384), (64, 64, 64), (1024, 64, 128)):
        yield Case("MatMul", ((1, m, k), _weights(k, n)), {})
        yield Case("Gemm", ((m, k), _weights(k, n), _weights(n)), {})
    for m, k, n in ((1, 256, 256), (1, 512, 1024), (4, 512, 512), (8, 256, 1024), (1, 768, 768)):
        yield Case("MatMul", ((1, m, k), _weights(k, n)), {})
        yield Case("Gemm", ((m, k), _weights(k, n), _weights(n)), {})
    for b, m, k, n in ((12, 128, 64, 128), (12, 128, 128, 64), (8, 64, 32, 64), (64, 49, 32, 49), (12, 512, 64, 512)):
        yield Case("MatMul", ((1, b, m, k), (1, b, k, n)), {})
    for m, k, n in ((128, 768, 768), (16, 384, 384)):
        zero, scale = np.array(3, np.uint8), np.array(0.1, np.float32)
        left, right = ("uint8", m, k), _weights(k, n, dtype="int8")
        yield Case("MatMulInteger", (left, right, zero), {})
        yield Case("QLinearMatMul", (left, scale, zero, right, scale, np.array(0, np.int8), scale, zero), {})


_WINDOWS = (  # channels, image, filters, window, stride, groups
    (64, 56, 256, 1, 1, 1), (256, 28, 128, 1, 1, 1), (512, 14, 512, 1, 1, 1), (16, 80, 16, 1, 1, 1),
    (64, 56, 64, 3, 1, 1), (128, 28, 128, 3, 1, 1), (256, 14, 256, 3, 1, 1), (64, 56, 128, 3, 2, 1),
    (32, 80, 32, 3, 1, 1), (16, 96, 16, 3, 1, 1), (64, 28, 64, 5, 1, 1), (32, 28, 64, 7, 1, 1),
    (3, 224, 64, 7, 2, 1), (3, 224, 32, 3, 2, 1), (1, 96, 16, 3, 1, 1), (3, 160, 16, 3, 2, 1),
    (64, 56, 64, 3, 1, 64), (128, 28, 128, 7, 1, 128), (96, 56, 96, 5, 2, 96), (512, 14, 512, 3, 1, 512),
    (64, 40, 64, 7, 1, 64), (128, 28, 128, 3, 1, 4), (64, 56, 64, 3, 1, 8),
)  # fmt: skip


def _convolutions() -> Iterator[Case]:
    for c, image, filters, window, stride, groups in _WINDOWS:
        weights = _weights(filters, c // groups, window, window)
        around = {"pads": [window // 2] * 4, "strides": [stride, stride], "group": groups}
        yield Case("Conv", ((1, c, image, image), weights, _weights(filters)), around)
    for c, length, filters, window in ((128, 200, 128, 3), (256, 500, 256, 1), (1, 4000, 258, 256), (64, 1000, 64, 5)):
        yield Case("Conv", ((1, c, length), _weights(filters, c, window), _weights(filters)), {})
    for c, image, filters, window in ((64, 28, 32, 2), (128, 14, 64, 4), (24, 80, 24, 2)):
        around = {"strides": [2, 2], "pads": [(window - 2) // 2] * 4}
        yield Case("ConvTranspose", ((1, c, image, image), _weights(c, filters, window, window)), around)
    zero, scale = np.array(3, np.uint8), np.array(0.1, np.float32)
    for c, image, filters, window in ((64, 56, 64, 3), (256, 14, 256, 1)):
        weights = _weights(filters, c, window, window, dtype="int8")
        inputs = (("uint8", 1, c, image, image), scale, zero, weights, scale, np.array(0, np.int8), scale, zero)
        yield Case("QLinearConv", inputs, {"pads": [window // 2] * 4})


def _moves() -> Iterator[Case]:
    for s in _IMAGES:
        yield Case("Transpose", (s,), {"perm": [0, 2, 3, 1]})
        yield Case("Concat", (s, s), {"axis": 1})
        yield Case("Pad", (s, _ints(0, 0, 1, 1, 0, 0, 1, 1)), {})
        yield Case("Pad", (s, _ints(0, 0, 3, 3, 0, 0, 3, 3)), {"mode": "reflect"})
        yield Case("Slice", (s, _ints(1, 1), _ints(-1, -1), _ints(2, 3)), {})
        yield Case("Slice", (s, _ints(0), _ints(s[1] // 2), _ints(1)), {})
        yield Case("Split", (s,), {"axis": 1, "num_outputs": 2}, outputs=2)
        yield Case("DepthToSpace", (s,), {"blocksize": 2})
        yield Case("Expand", ((1, s[1], 1, 1), _ints(*s)), {})
    for s in _SIZES:
        yield Case("Transpose", (s,), {"perm": [1, 0]})
        yield Case("Transpose", ((1, s[0], s[1] // 32, 32),), {"perm": [0, 2, 1, 3]})
        yield Case("Concat", (s, s), {"axis": 1})
        yield Case("Slice", (s, _ints(0), _ints(s[1] // 2), _ints(1)), {})
        yield Case("Gather", (_weights(3000, s[1]), ("int64", s[0])), {})
        yield Case("Gather", (s, ("int64", s[1] // 2)), {"axis": 1})
        yield Case("GatherElements", (s, ("int64", *s)), {"axis": 1})
        yield Case("Tile", (s, _ints(2, 1)), {})
        yield Case("ScatterElements", (s, ("int64", *s), s), {"axis": 0})
        yield Case("Trilu", (s,), {})


def _codes() -> Iterator[Case]:
    zero, scale = np.array(3, np.uint8), np.array(0.1, np.float32)
    for s in _SIZES:
        yield Case("QuantizeLinear", (s, scale, zero), {})
        yield Case("DequantizeLinear", (("uint8", *s), scale, zero), {})
        yield Case("DynamicQuantizeLinear", (s,), {}, outputs=3)
        codes = (("uint8", *s), scale, zero)
        yield Case("QLinearAdd", (*codes, *codes, scale, zero), {}, domain="com.microsoft")


# Tables ---------------------------------------------------------------------------------------------------------------


def rows(threads: Sequence[int], seconds: float, target: Target, only: str) -> list[dict[str, Any]]:
    """A row for each case and number of threads."""
    found = []
    for case in cases():
        if only and only not in case.label:
            continue
        model, feeds = case.model()
        for count in threads:
            try:
                nodes = profiled(model, feeds, count, seconds)
            except Exception as problem:
                say(f"{case.label}: {problem}")
                break
            mine = [each for each in nodes if each.call.op == case.op or len(nodes) == 1]
            for each in mine[:1]:
                found.append(_row(case.label, count, each, target))
                say(json.dumps(found[-1]))
    return found


def _row(label: str, threads: int, timed: Timed, target: Target) -> dict[str, Any]:
    work = work_of(timed.call)
    seconds = max((timed.us - target.dispatch_us) * 1e-6, 1e-7)
    share = work.operations / seconds / (target.gflops * 1e9)
    one = Target(**{f: getattr(target, f) for f in target.__dataclass_fields__} | {"cores": threads})
    return {
        "case": label, "kind": work.kind, "threads": threads, "us": round(timed.us, 2), "share": float(f"{share:.3g}"),
        "predicted": round(node_seconds(timed.call, one) * 1e6, 2),
    }  # fmt: skip


def network_rows(path: Path, threads: int, seconds: float, target: Target, dims: Mapping[str, int]) -> list[Any]:
    """Every node of a network with what is predicted for it."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    types = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(uint8)": "uint8"}
    feeds = {
        each.name: _random(rng, [d if isinstance(d, int) else dims.get(d, 1) for d in each.shape], types[each.type])
        for each in session.get_inputs()
    }
    one = replace(target, cores=threads)
    found = []
    for each in profiled(path, feeds, threads, seconds):
        found.append((each, node_seconds(each.call, one, weights_of(path)) * 1e6))
    return found


def weights_of(path: Path) -> float:
    """Bytes of the weights of a model, which come round once in a run."""
    return float(path.stat().st_size)


def off(found: Sequence[tuple[Timed, float]], least: float) -> str:
    """How far predictions are from measurement, of nodes that take so many microseconds at least."""
    ratios = np.array([predicted / each.us for each, predicted in found if each.us >= least])
    if not len(ratios):
        return "none"
    spread = np.exp(np.quantile(np.abs(np.log(ratios)), [0.5, 0.9]))
    total = sum(p for _, p in found) / sum(each.us for each, _ in found)
    return (
        f"{len(ratios)} nodes, median {np.median(ratios):.2f}, half within {spread[0]:.2f}x, 90 % within "
        f"{spread[1]:.2f}x; of the total {total:.2f}x"
    )


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rows", "networks"))
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--only", default="")
    parser.add_argument("--dim", nargs="*", default=[], metavar="NAME=N")
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args(arguments)
    target = targets_of(())[0]
    if asked.what == "rows":
        rows(asked.threads, asked.seconds, target, asked.only)
        return
    every: defaultdict[int, list[tuple[Timed, float]]] = defaultdict(list)
    dims = {name: int(value) for name, value in (each.split("=") for each in asked.dim)}
    for path in asked.models:
        for count in asked.threads:
            found = network_rows(path, count, asked.seconds, target, dims)
            every[count] += found
            say(f"{path.stem}, {count} threads: {off(found, LEAST)}")
            if asked.verbose:
                for each, predicted in sorted(found, key=lambda pair: -abs(math.log(pair[1] / max(pair[0].us, 1e-9)))):
                    shapes = [list(t.shape) if t else None for t in each.call.inputs]
                    say(f"  {each.call.op:24} {work_of(each.call).kind:24} {each.us:9.1f} {predicted:9.1f} {shapes}")
    for count, found in every.items():
        say(f"all, {count} threads: {off(found, LEAST)}")


if __name__ == "__main__":
    main(sys.argv[1:])
