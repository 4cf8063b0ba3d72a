"""Times of ONNX Runtime's own nodes: the rows of `onnxfuse/cost/runtime.py`, and their errors on networks.

    python -m benchmarks.runtime_nodes rows [--threads 1 2] [--seconds 0.2]
    python -m benchmarks.runtime_nodes networks MODEL.onnx ... [--threads 1 2]

Every node is timed by the runtime's profiler with all optimizations, and counts with a low quantile of its runs, since
other work on the machine only adds time.
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

from benchmarks.runtime_cases import cases, random_values
from onnxfuse.cost.nodes import FEW, Call, Tensor, whole, work_of
from onnxfuse.cost.runtime import node_seconds
from onnxfuse.ir.dtype import DType, dtype_of
from onnxfuse.target import Cpu, targets_of

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
    weights = {each.name: _weight(each, t) for each in optimized.graph.initializer
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


def _weight(made: onnx.TensorProto, dtype: DType) -> Tensor:
    """A constant, with what it holds where that is a few whole numbers."""
    ints = whole(numpy_helper.to_array(made)) if math.prod(made.dims) <= FEW else ()
    return Tensor(dtype, tuple(made.dims), True, ints)


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
    """Print a line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# Tables ---------------------------------------------------------------------------------------------------------------


def rows(threads: Sequence[int], seconds: float, target: Cpu, only: str) -> list[dict[str, Any]]:
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


def _row(label: str, threads: int, timed: Timed, target: Cpu) -> dict[str, Any]:
    work = work_of(timed.call)
    seconds = max((timed.us - target.dispatch_us) * 1e-6, 1e-7)
    share = work.operations / seconds / (target.gflops * 1e9)
    one = replace(target, cores=threads)
    return {
        "case": label, "kind": work.kind, "threads": threads, "us": round(timed.us, 2), "share": float(f"{share:.3g}"),
        "predicted": round(node_seconds(timed.call, one) * 1e6, 2),
    }  # fmt: skip


def network_rows(path: Path, threads: int, seconds: float, target: Cpu, dims: Mapping[str, int]) -> list[Any]:
    """Every node of a network with what is predicted for it."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    types = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(uint8)": "uint8"}
    feeds = {
        each.name: random_values(
            rng, [d if isinstance(d, int) else dims.get(d, 1) for d in each.shape], types[each.type]
        )
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
