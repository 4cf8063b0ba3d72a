"""The half of calibration that runs the measuring kernel: the program that `machine.py` starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.measure.machine import DOMAIN, KERNEL, best
from onnxfuse.render.agreed import MULTIPLY_ADD, NOTHING, READ, WAIT
from onnxfuse.runtime import engine, process

CHAIN = 64  # calls in a row
LARGE = 256 << 20  # bytes that no cache holds


ROUNDS = 3  # that the time is divided into: what else a machine does comes and goes


def measured(request: dict[str, Any]) -> dict[str, float]:
    """The measured fields of `Machine`, each the best of some rounds."""
    cores, library = int(request["cores"]), str(request["library"])
    one, chain = (Clock(_session(library, cores, calls), float(request["seconds"]) / ROUNDS) for calls in (1, CHAIN))
    rounds = [_round(one, chain, cores, int(request["l2_bytes"]), int(request["l3_bytes"])) for _ in range(ROUNDS)]
    return best(rounds)


def _round(one: Clock, chain: Clock, cores: int, l2: int, l3: int) -> dict[str, float]:
    between = max(4 * l2, min(8 * l2, l3 // 4))
    alone, _ = one.least(MULTIPLY_ADD, 1, 0, 20)
    together, flops = one.least(MULTIPLY_ADD, cores, 0, 20)
    empty, _ = one.least(WAIT, 4 * cores, 0, 200)
    return {
        "gflops": flops / together / cores,
        "l2_gbps": one.rate(1, l2 // 2, 64),
        "l3_gbps": one.rate(1, between, 8),
        "bandwidth": one.rate(1, LARGE, 1),
        "memory_gbps": one.rate(cores, LARGE, 1),
        "dispatch_us": max(0.0, chain.call_us() - one.call_us()) / (CHAIN - 1),
        "barrier_us": max(empty, together - alone) * 1e-3,
    }


def _session(library: str, cores: int, calls: int) -> Callable[[Any], Any]:
    """A model that calls the kernel so many times, each with the same input."""
    nodes = [helper.make_node(KERNEL, ["asked"], [f"out{i}"], domain=DOMAIN) for i in range(calls)]
    asked = helper.make_tensor_value_info("asked", TensorProto.INT64, [4])
    outputs = [helper.make_tensor_value_info(f"out{i}", TensorProto.DOUBLE, [2]) for i in range(calls)]
    graph = helper.make_graph(nodes, "machine", [asked], outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = engine.open_session(
        model.SerializeToString(), engine.options(libraries=[library], threads=cores, arena=False)
    )
    return lambda values: session.run(None, {"asked": np.array(values, np.int64)})


@dataclass(frozen=True, slots=True)
class Clock:
    """A session's call, timed again and again for so many seconds; the least time is the one without other work."""

    call: Callable[[Any], Any]
    seconds: float

    def least(self, what: int, tasks: int, size: int, repeats: int) -> tuple[float, float]:
        """Nanoseconds of one repetition, and its operations or bytes."""
        least, start = 0.0, time.perf_counter()
        while least == 0.0 or time.perf_counter() - start < self.seconds:
            ns, amount = self.call([what, tasks, size, repeats])[0]
            least = min(least or float(ns), float(ns))
        return max(least, 1.0) / repeats, float(amount) / repeats

    def rate(self, tasks: int, size: int, repeats: int) -> float:
        """GB/s of reading so many bytes again and again."""
        ns, read = self.least(READ, tasks, size, repeats)
        return read / ns

    def call_us(self) -> float:
        """Microseconds of a run in which no kernel does anything."""
        least, start = 0.0, time.perf_counter()
        while least == 0.0 or time.perf_counter() - start < self.seconds:
            begin = time.perf_counter()
            self.call([NOTHING, 1, 0, 1])
            spent = time.perf_counter() - begin
            least = min(least or spent, spent)
        return least * 1e6


if __name__ == "__main__":
    process.serve(measured)
