"""The child process of profiling, started by `profile.py` once for each engine: runs models."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import GraphProto, ModelProto, helper

from onnxfuse.measure import interleaving
from onnxfuse.measure.lifetimes import timeline
from onnxfuse.measure.lineage import Wire, lineage
from onnxfuse.runtime import engine, entries, feed_limits, feeds, process
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.graphs import all_nodes
from onnxfuse.runtime.memory import Watch
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import trial

ORIGIN = "onnxfuse.origin"  # metadata of a fused node or its function: a JSON list of the original nodes' names
KERNEL_TIME = "_kernel_time"  # suffix of the names of the profiler's node events
WARM_S = 0.5
WARM_RUNS = 2000  # most that are for warming up: the profiler writes each, and those of half a second take 3 s to read
KEPT = 1 << 30  # largest model, in bytes, whose optimized graph is read: the runtime writes it to a file
# Bytes of an element, by the profiler's names of types.
WIDTHS = {
    "uint8": 1, "int8": 1, "bool": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2, "float": 4, "int32": 4,
    "uint32": 4, "double": 8, "int64": 8, "uint64": 8,
}  # fmt: skip


def main(request: dict[str, Any]) -> object:
    """Answer one request of `profile.py`: `do` names the function, the rest are its arguments."""
    table: dict[str, Callable[..., object]] = {"inputs": write_inputs, "engine": serve_turns, "ops": op_times}
    return table[request.pop("do")](**request)


def write_inputs(
    model: str,
    libraries: Sequence[str],
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    out: str,
    models: Sequence[str],
) -> dict[str, list[int]]:
    """Write one set of valid inputs of the model to the .npz file `out`; returns their shapes.

    Raises ModelError if a file of `models`, which are to be measured, is not a model.
    """
    for each in models:
        feed_limits.skeleton(Path(each))
    session = engine.open_session(model, engine.options(libraries=libraries))
    found = typical_inputs(session, model, inputs=inputs, seed=seed, dims=dims)
    # Types that NumPy lacks are written as their bits; the session knows the types of its inputs.
    bits = {name: v.view(f"u{v.dtype.itemsize}") if v.dtype.kind == "V" else v for name, v in found.items()}
    with Path(out).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **bits)
    return {name: list(value.shape) for name, value in found.items()}


def typical_inputs(
    session: ort.InferenceSession,
    model: str,
    *,
    inputs: str | None,
    seed: int,
    dims: Mapping[str, int],
    provider: Provider = CPU,
) -> dict[str, engine.Array]:
    """Valid inputs of typical sizes, or the first set of the file `inputs`; the session is one of `provider`."""
    recipes = (feeds.TYPICAL, *feeds.RECIPES)
    skeleton = feed_limits.skeleton(Path(model))
    wish = trial.InputRequest(skeleton, inputs, seed, dims, recipes, larger=False, provider=provider)
    return trial.input_sets(session, wish).values[0]


def _read(path: str) -> dict[str, Any]:
    with np.load(path) as archive:
        return dict(archive)


def serve_turns(
    model: str,
    libraries: Sequence[str],
    threads: int,
    inputs: str,
    address: str,
    disabled: Sequence[str] = (),
    *,
    own: bool = False,
    provider: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load the model, then run it whenever the parent at `address` asks; `own` as in `interleaving.times`.

    `provider` has the fields of the `Provider` to run in (default: the CPU's).
    """
    place = Provider(**provider or {})
    begin = time.perf_counter()
    values = _read(inputs)
    with Watch() as watch:
        options = engine.options(libraries=libraries, threads=threads, disabled=disabled)
        session, workers = interleaving.workers_of(lambda: engine.open_session(model, options, place))
        watch.opened()
        load_ms = (time.perf_counter() - begin) * 1e3
        call = engine.prepared(session, values, place)
        call()
    note = engine.why_bodies_run(feed_limits.skeleton(Path(model)), options) if libraries else ""
    said = {"load_ms": load_ms, "peak_bytes": watch.peak, "runtime": ort.__version__, "note": note}
    interleaving.serve(address, call, said, workers, own=own)
    return {}


def op_times(
    model: str,
    libraries: Sequence[str],
    threads: int,
    inputs: str,
    warmup: int,
    repeats: int,
    disabled: Sequence[str] = (),
) -> dict[str, Any]:
    """Median milliseconds of each node over all runs by the runtime's profiler, slowest first, and a trace of one run.

    The original nodes of each are found from the runtime's optimized graph.
    """
    values = _read(inputs)
    proto = feed_limits.load_proto(Path(model))
    with work_folder() as folder:
        options = engine.options(libraries=libraries, threads=threads, disabled=disabled)
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, "run")
        made = Path(folder, "made.onnx")
        if _bytes_of(proto, Path(model)) <= KEPT:
            options.optimized_model_filepath = str(made)
        session = engine.open_session(model, options)
        warm = _warm_up(lambda: engine.run(session, values), warmup)
        for _ in range(repeats):
            engine.run(session, values)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        graph = feed_limits.skeleton(made).graph if made.exists() else None
    origins = node_origins(proto)
    if graph is not None:
        origins |= _optimized_origins(proto, graph, origins)
    kernels = {each.name for each in proto.functions if each.domain.startswith(entries.DOMAIN)} if libraries else set()
    run = _last_run(events)
    last = {each["name"]: each for each in run}
    ops = [
        each | {"kernel": each["op_type"] in kernels, **facts_of(last.get(each["name"]))}
        for each in _by_node(events, warm, repeats, origins)
    ]
    memory = {} if graph is None else memory_of(graph, last)
    return {"ops": ops, "events": _trace_events(run, origins), "memory": memory}


def _bytes_of(proto: ModelProto, path: Path) -> int:
    """Bytes of a model including its external data."""
    named = {e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"}
    return sum(file.stat().st_size for file in (path, *(path.parent / n for n in named)) if file.exists())


def _optimized_origins(
    proto: ModelProto, made: GraphProto, origins: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The original nodes that each node of the runtime's optimized main graph replaces, by name."""
    found = lineage(_wires(proto.graph), _wires(made))
    flat = {name: (o for each in names for o in origins.get(each, (each,))) for name, names in found.items()}
    return {name: tuple(dict.fromkeys(names)) for name, names in flat.items() if found[name]}


def _wires(graph: GraphProto) -> list[Wire]:
    return [
        Wire(n.name or n.output[0], n.op_type, tuple(filter(None, n.input)), tuple(filter(None, n.output)))
        for n in graph.node
    ]


def facts_of(event: Mapping[str, Any] | None) -> dict[str, Any]:
    """Bytes read and written by a node, and the types and shapes of its inputs; empty if it was not in the last run."""
    args = event["args"] if event is not None else {}
    sizes = [int(args[key]) for key in ("activation_size", "parameter_size", "output_size") if key in args]
    return {"bytes": sum(sizes) if sizes else None, "inputs": args.get("input_type_shape", [])}


def memory_of(graph: GraphProto, last: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes of weights, values and arena of a run, and its steps with the bytes alive at each."""
    wires = {each.name: each for each in _wires(graph)}
    begin = min((float(e["ts"]) for e in last.values()), default=0.0)
    ran = sorted((float(e["ts"]), name) for name, e in last.items() if name in wires)
    sizes: dict[str, int] = {}
    for _, name in ran:
        typed = last[name]["args"].get("output_type_shape", [])
        outputs = [(kind, shape) for each in typed for kind, shape in each.items()]
        for value, (kind, shape) in zip(wires[name].makes, outputs, strict=False):
            sizes[value] = math.prod(shape) * WIDTHS.get(kind, 4)
    steps = timeline(
        [(wires[name], (ts - begin) / 1e3) for ts, name in ran], sizes, [each.name for each in graph.output]
    )
    arenas = [int(e["args"]["mem_arena_held"]) for e in last.values() if "mem_arena_held" in e["args"]]
    return {
        "weight_bytes": sum(math.prod(t.dims) * _width(t.data_type) for t in graph.initializer),
        "value_peak_bytes": max((step.bytes for step in steps), default=0),
        "arena_bytes": max(arenas) if arenas else None,
        "steps": [asdict(step) for step in steps],
    }


def _width(data_type: int) -> int:
    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def _warm_up(call: Callable[[], object], least: int) -> int:
    """Warm up until all pages are mapped; returns the number of runs.

    These are at least `least`, and as many as take WARM_S seconds, but no more than WARM_RUNS for that.
    """
    begin, count = time.monotonic(), 0
    while count < least or (count < WARM_RUNS and time.monotonic() - begin < WARM_S):
        call()
        count += 1
    return count


def _last_run(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The node events of the last run, with times from its start."""
    start = max(each["ts"] for each in events if each.get("name") == "model_run")
    return [
        {**each, "name": each["name"].removesuffix(KERNEL_TIME), "ts": each["ts"] - start}
        for each in events
        if each.get("cat") == "Node" and each["name"].endswith(KERNEL_TIME) and each["ts"] >= start
    ]


def _trace_events(last: Sequence[Mapping[str, Any]], origins: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """The trace events of a run."""
    found = [
        {
            "name": each["name"],
            "op_type": each["args"]["op_name"],
            "origin": origins.get(each["name"], ()),
            "start_us": each["ts"],
            "duration_us": each["dur"],
        }
        for each in last
    ]
    return sorted(found, key=lambda each: (each["start_us"], each["name"]))


def _by_node(
    events: Sequence[Mapping[str, Any]], warmup: int, repeats: int, origins: Mapping[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Node times summed within each run (loop bodies run often), then the median over the runs after `warmup`."""
    starts = sorted(each["ts"] for each in events if each.get("name") == "model_run")
    times: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * repeats)
    for each in events:
        run = bisect_right(starts, each["ts"]) - 1 - warmup
        if each.get("cat") == "Node" and each["name"].endswith(KERNEL_TIME) and run >= 0:
            times[each["name"].removesuffix(KERNEL_TIME), each["args"]["op_name"]][run] += each["dur"] / 1e3
    medians = {key: statistics.median(values) for key, values in times.items()}
    total = sum(medians.values()) or 1.0
    return [
        {"name": name, "op_type": kind, "origin": origins.get(name, ()), "time_ms": ms, "share": ms / total}
        for (name, kind), ms in sorted(medians.items(), key=lambda item: (-item[1], item[0]))
    ]


def node_origins(model: ModelProto) -> dict[str, tuple[str, ...]]:
    """The original nodes of each node, by name: from its own metadata or its function's, else the node itself."""
    functions = {(each.domain, each.name): _origin(each) for each in model.functions}
    return {
        node.name: _origin(node) or functions.get((node.domain, node.op_type), ()) or (node.name,)
        for node in all_nodes(model.graph)
        if node.name
    }


def _origin(proto: Any) -> tuple[str, ...]:
    for each in proto.metadata_props:
        if each.key == ORIGIN:
            return tuple(map(str, json.loads(each.value)))
    return ()


if __name__ == "__main__":
    process.serve(main)
