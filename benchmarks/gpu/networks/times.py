"""One network before and after in ONNX Runtime's CUDA provider: errors, milliseconds, and its kernels.

    python -m benchmarks.gpu.networks.times PACK RESULT.json LOCK ROUNDS WAY...

A WAY of running is `graph` (runs replayed as CUDA graphs) or `stream`; beside graphs, in the same turns, the library
without dependent launches (`plain`), and the original with the provider's option to have images channels last (`nhwc`).
Ratios are medians of ROUNDS turns, each to the built network. Whoever has the file LOCK has the GPU; what needs only
the CPU is done before. Where torch sees the GPU, its profiler (CUPTI) says which kernels a replay has: `kernels` lists
name, how many, and microseconds, for each side.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.gpu.networks.full import error, prepared, turns_of
from benchmarks.gpu.networks.prepare import REFERENCE
from benchmarks.gpu.wish import Facts
from onnxfuse.errors import DeviceError
from onnxfuse.measure.profile_child import typical_inputs
from onnxfuse.runtime import engine
from onnxfuse.runtime.engine import Array
from onnxfuse.runtime.provider import Provider, gpu_provider

LIMITS = {"f16": 3e-2, "f32": 3e-3}  # relative L2 to float32 on the CPU; more where the original is further itself
FURTHER = 3.0
THREADS = 3  # of the reference
NAMED = 100  # characters of a kernel's name
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
DEPENDENT = "ONNXFUSE_DEPENDENT_LAUNCHES"
CHANNELS_LAST = "prefer_nhwc"  # an option of the runtime's provider
OTHERS = {"plain": "after", "nhwc": "before"}  # without dependent launches; the runtime's images channels last


def main(given: list[str] | None = None) -> None:
    """Writes what was found."""
    arguments = given or sys.argv[1:]
    pack, result, lock = map(Path, arguments[:3])
    precision = pack.name.split(".")[-4]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with tarfile.open(pack) as packed:
            packed.extractall(place, filter="data")
        feeds, wanted = _reference(place)
        if precision == "f16":
            feeds = {key: x.astype(np.float16) if x.dtype == np.float32 else x for key, x in feeds.items()}
        torch = _torch()
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            found = _measured(place, feeds, wanted, torch, int(arguments[3]), arguments[4:])
    errors = [(found["before"].get(k, 0.0), e) for k, e in found["after"].items() if k.endswith("_error")]
    right = all(after <= max(LIMITS[precision], FURTHER * before) for before, after in errors)
    result.write_text(json.dumps(found | {"ok": right and bool(errors)}), encoding="utf-8")


def _reference(place: Path) -> tuple[Mapping[str, Array], list[Array]]:
    """Inputs, and what the network in float32 makes of them on the CPU."""
    path = place / REFERENCE if (place / REFERENCE).exists() else place / "before.onnx"
    session = engine.open_session(str(path), engine.options(threads=THREADS))
    feeds = typical_inputs(session, str(path), inputs=None, seed=0, dims={})
    return feeds, engine.run(session, feeds)


def _measured(
    place: Path, feeds: Mapping[str, Array], wanted: list[Array], torch: Any, rounds: int, ways: Sequence[str]
) -> Facts:
    """Both sides in the provider, each way."""
    sides = {"before": (place / "before.onnx", None), "after": (place / "after.onnx", place / "libafter.so")}
    after = onnx.load(place / "after.onnx", load_external_data=False)
    ours = sum(node.domain.startswith("onnxfuse") for node in after.graph.node)
    found: Facts = {"nodes": ours, "before": {}, "after": {}, "ratio": {}}
    for way in (way for way in ways if way not in OTHERS):
        graph = way == "graph"
        provider = gpu_provider("check", graph=graph)
        try:
            calls = {side: prepared(*files, feeds, provider) for side, files in sides.items()}
            for side, (_, outputs) in calls.items():
                found[side][f"{way}_error"] = error(outputs(), wanted)
            timed = {side: run for side, (run, _) in calls.items()}
            if graph:
                timed |= _others(sides, feeds, provider, ways)
            turns = turns_of([*timed.values()], rounds)
            for name, column in zip(timed, zip(*turns, strict=True), strict=True):
                side = name if name in calls else OTHERS[name]
                found[side][f"{way if name in calls else name}_ms"] = min(column)
                if name != "after":
                    of_turns = [ms / turn[1] for ms, turn in zip(column, turns, strict=True)]
                    found["ratio"][way if name == "before" else name] = statistics.median(of_turns)
            if graph and torch is not None:
                found["kernels"] = {side: _kernels(torch, call, place) for side, (call, _) in calls.items()}
        except Exception as problem:  # such as an original with a node that no graph holds
            found[f"{way}_problem"] = str(problem)[:300]
    return found


def _others(
    sides: Mapping[str, tuple[Path, Path | None]], feeds: Mapping[str, Array], provider: Provider, ways: Sequence[str]
) -> Mapping[str, Callable[[], Any]]:
    """Those of OTHERS that are asked for, as far as they run.

    Whether launches are dependent is decided when a session's nodes are made.
    """
    found = {}
    if "plain" in ways:
        os.environ[DEPENDENT] = "0"
        try:
            found["plain"] = prepared(*sides["after"], feeds, provider)[0]
        finally:
            del os.environ[DEPENDENT]
    if "nhwc" in ways and any(node.op_type == "Conv" for node in onnx.load(sides["before"][0]).graph.node):
        last = replace(provider, options={**provider.options, CHANNELS_LAST: "1"})
        with suppress(DeviceError):  # the runtime may be built without it
            found["nhwc"] = prepared(*sides["before"], feeds, last)[0]
    return found


def _torch() -> Any:
    """PyTorch, where it sees the GPU."""
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return None
    return torch if torch.cuda.is_available() else None


def _kernels(torch: Any, call: Callable[[], Any], place: Path) -> Facts:
    """What the last of three replays ran on the device: each kernel, and the time from first begin to last end."""
    profiler = importlib.import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    seen.export_chrome_trace(str(place / "trace.json"))
    events = json.loads((place / "trace.json").read_text())["traceEvents"]
    events = sorted((e for e in events if e.get("cat") in ON_DEVICE), key=lambda e: e["ts"])
    events = events[len(events) - len(events) // 3 :]
    of: dict[str, list[float]] = {}
    for event in events:
        of.setdefault(event["name"][:NAMED], []).append(event["dur"])
    rows = [(name, len(us), round(sum(us), 2)) for name, us in sorted(of.items(), key=lambda each: -sum(each[1]))]
    span = events[-1]["ts"] + events[-1]["dur"] - events[0]["ts"]
    return {"count": len(events), "us": sum(e["dur"] for e in events), "span_us": span, "list": rows}


if __name__ == "__main__":
    main()
