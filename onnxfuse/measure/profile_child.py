"""The half of profiling that runs models: the program that `profile.py` starts once for each engine."""

from __future__ import annotations

import json
import os
import statistics
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from onnxfuse.measure import turns
from onnxfuse.runtime import engine, entries, feed_limits, feeds, process
from onnxfuse.runtime.folders import work_folder
from onnxfuse.runtime.graphs import graphs
from onnxfuse.verify import trial

ORIGIN = "onnxfuse.origin"  # metadata of a fused node or its function: a JSON list of the original nodes' names
DOMAIN = "onnxfuse."  # what the domains of kernels begin with
KERNEL_TIME = "_kernel_time"  # what the names of the profiler's events of nodes end with
WARM_S = 0.5


def main(request: dict[str, Any]) -> Any:
    """Answer one request of `profile.py`: `do` names the function, the rest are its arguments."""
    table: dict[str, Callable[..., Any]] = {"inputs": write_inputs, "engine": serve_turns, "ops": op_times}
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
    """Write one set of inputs that the model can take to the .npz file `out`; returns their shapes.

    Raises ModelError where one of `models`, which are to be measured, is no model.
    """
    for each in models:
        feed_limits.load_proto(Path(each))
    session = engine.open_session(model, engine.options(libraries=libraries))
    found = typical_inputs(session, model, inputs=inputs, seed=seed, dims=dims)
    # Types that NumPy has not are written as their bits; the session that reads them knows what they are.
    bits = {name: v.view(f"u{v.dtype.itemsize}") if v.dtype.kind == "V" else v for name, v in found.items()}
    with Path(out).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **bits)
    return {name: list(value.shape) for name, value in found.items()}


def typical_inputs(
    session: ort.InferenceSession, model: str, *, inputs: str | None, seed: int, dims: Mapping[str, int]
) -> dict[str, engine.Array]:
    """Inputs that the model can take, of sizes worth measuring; the first of a file's, where one is named."""
    recipes = (feeds.TYPICAL, *feeds.RECIPES)
    wish = trial.Wish(feed_limits.skeleton(Path(model)), inputs, seed, dims, recipes, larger=False)
    return trial.input_sets(session, wish).values[0]


def _read(path: str) -> dict[str, Any]:
    with np.load(path) as archive:
        return dict(archive)


def serve_turns(
    model: str, libraries: Sequence[str], threads: int, inputs: str, address: str, disabled: Sequence[str] = ()
) -> dict[str, Any]:
    """Load once, then run whenever the race at `address` asks for it."""
    begin = time.perf_counter()
    options = engine.options(libraries=libraries, threads=threads, disabled=disabled)
    session = engine.open_session(model, options)
    load_ms = (time.perf_counter() - begin) * 1e3
    call = engine.prepared(session, _read(inputs))
    note = _aside(feed_limits.load_proto(Path(model)), options) if libraries else ""
    turns.serve(address, call, {"load_ms": load_ms, "runtime": ort.__version__, "note": note})
    return {}


def _aside(proto: ModelProto, options: ort.SessionOptions) -> str:
    """Why kernels of a model do not run, though libraries were given; empty where they run."""
    domains = [each.domain for each in proto.opset_import if each.domain.startswith(DOMAIN)]
    found = [engine.status(options, each) for each in domains]
    if found and not any(found):
        return f"function bodies run: no library has kernels of {domains[0]}"
    return next((said for said in found if said and not said.startswith(entries.REGISTERED)), "")


def op_times(
    model: str,
    libraries: Sequence[str],
    threads: int,
    inputs: str,
    warmup: int,
    repeats: int,
    disabled: Sequence[str] = (),
) -> dict[str, Any]:
    """By the runtime's own profiler the median time of each node over all runs, in ms, slowest first, and one run."""
    values = _read(inputs)
    with work_folder() as folder:
        options = engine.options(libraries=libraries, threads=threads, disabled=disabled)
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, "run")
        session = engine.open_session(model, options)
        warm = _warmed(lambda: engine.run(session, values), warmup)
        for _ in range(repeats):
            engine.run(session, values)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    proto = feed_limits.load_proto(Path(model))
    origins = node_origins(proto)
    kernels = {each.name for each in proto.functions if each.domain.startswith(DOMAIN)} if libraries else set()
    ops = _by_node(events, warm, repeats, origins)
    return {"ops": [each | {"kernel": each["op_type"] in kernels} for each in ops], "events": _last(events, origins)}


def _warmed(call: Callable[[], Any], least: int) -> int:
    """Runs until there were enough and the pages of a new process are all there, WARM_S seconds; their number."""
    begin, count = time.monotonic(), 0
    while count < least or time.monotonic() - begin < WARM_S:
        call()
        count += 1
    return count


def _last(events: Sequence[Mapping[str, Any]], origins: Mapping[str, tuple[str, ...]]) -> list[dict[str, Any]]:
    """The nodes of the last run, as they went by."""
    start = max(each["ts"] for each in events if each.get("name") == "model_run")
    found = []
    for each in events:
        if each.get("cat") == "Node" and each["name"].endswith(KERNEL_TIME) and each["ts"] >= start:
            name = each["name"].removesuffix(KERNEL_TIME)
            where = {"start_us": each["ts"] - start, "duration_us": each["dur"]}
            found.append({"name": name, "op_type": each["args"]["op_name"], "origin": origins.get(name, ()), **where})
    return sorted(found, key=lambda each: (each["start_us"], each["name"]))


def _by_node(
    events: Sequence[Mapping[str, Any]], warmup: int, repeats: int, origins: Mapping[str, tuple[str, ...]]
) -> list[dict[str, Any]]:
    """Node events summed within each run (bodies of loops run often), then the median over the runs after `warmup`."""
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
    """By node name the original nodes behind it: as its metadata or its function's tell, else itself."""
    functions = {(each.domain, each.name): _origin(each) for each in model.functions}
    return {
        node.name: _origin(node) or functions.get((node.domain, node.op_type), ()) or (node.name,)
        for graph in graphs(model.graph)
        for node in graph.node
        if node.name
    }


def _origin(proto: Any) -> tuple[str, ...]:
    for each in proto.metadata_props:
        if each.key == ORIGIN:
            return tuple(map(str, json.loads(each.value)))
    return ()


if __name__ == "__main__":
    process.serve(main)
