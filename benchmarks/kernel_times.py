"""The time of every kernel of a build while the whole network runs, with a clock in the library's own entry points.

ONNX Runtime's profiler adds up to 20 us to a kernel that starts tasks, which is as long as some kernels take.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.twins.run import CACHE
from onnxfuse.runtime import engine, process
from tests.kernels.pool_host import compile_library

HERE = Path(__file__).resolve().parent
WARMUP, LEAST_RUNS = 0.5, 20  # seconds, runs


def kernel_times(model: Path, library: str, inputs: Path, threads: int, seconds: float) -> dict[str, float]:
    """Median microseconds of each kernel by node, over about `seconds` of runs in a process of their own."""
    shim = compile_library([HERE / "timed.cpp"], CACHE, ("-ldl",))
    asked = {"model": str(model), "shim": str(shim), "inputs": str(inputs), "threads": threads, "seconds": seconds}
    env = {
        "TIMED_LIBRARY": library,
        "PYTHONPATH": os.pathsep.join((str(HERE.parent), os.environ.get("PYTHONPATH", ""))),
    }
    answer: dict[str, float] = process.python_child("benchmarks.kernel_times", asked, stage="bench", env=env)
    return answer


def measured(request: dict[str, Any]) -> dict[str, float]:
    """The child's half."""
    session = engine.open_session(
        request["model"], engine.options(libraries=[request["shim"]], threads=request["threads"])
    )
    with np.load(request["inputs"]) as archive:
        call = engine.prepared(session, dict(archive))
    shim = ctypes.CDLL(request["shim"])
    shim.timed_name.restype = ctypes.c_char_p
    shim.timed_ns.restype = ctypes.POINTER(ctypes.c_double)
    _run(call, WARMUP, 3)
    shim.timed_forget()
    _run(call, request["seconds"], LEAST_RUNS)
    found = {}
    for i in range(shim.timed_nodes()):
        times = np.ctypeslib.as_array(shim.timed_ns(i), (shim.timed_calls(i),))
        found[shim.timed_name(i).decode()] = float(np.median(times)) / 1e3
    return found


def _run(call: Any, seconds: float, least: int) -> None:
    start, runs = time.perf_counter(), 0
    while runs < least or time.perf_counter() - start < seconds:
        call()
        runs += 1


if __name__ == "__main__":
    process.serve(measured)
