"""The child process of calibration, started by `machine.py`: runs the measuring kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.measure.machine import DOMAIN, KERNEL, best
from onnxfuse.render.agreed import MULTIPLY_ADD, NOTHING, READ, WAIT
from onnxfuse.runtime import engine, process

CHAIN = 64  # kernel calls in the model that measures the time of one call
LARGE = 256 << 20  # bytes, more than any cache


ROUNDS = 3  # of measurements, since other work on the machine comes and goes


def measured(request: dict[str, Any]) -> dict[str, float]:
    """The measured fields of `Machine`, each the best of all rounds."""
    cores, library = int(request["cores"]), str(request["library"])
    one, chain = (
        CallTimer(_session(library, cores, calls), float(request["seconds"]) / ROUNDS) for calls in (1, CHAIN)
    )
    rounds = [_round(one, chain, cores, int(request["l2_bytes"]), int(request["l3_bytes"])) for _ in range(ROUNDS)]
    return best(rounds)


def _round(one: CallTimer, chain: CallTimer, cores: int, l2: int, l3: int) -> dict[str, float]:
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


def _session(library: str, cores: int, calls: int) -> Callable[[Sequence[int]], Any]:
    """A call of a model with `calls` calls of the kernel, all with the same input."""
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
class CallTimer:
    """Times the call of a session repeatedly for `seconds`; the least time is the one without other work."""

    call: Callable[[Sequence[int]], Any]
    seconds: float

    def least(self, what: int, tasks: int, size: int, repeats: int) -> tuple[float, float]:
        """Least nanoseconds of one repetition, and its operations or bytes."""
        least, start = 0.0, time.perf_counter()
        while least == 0.0 or time.perf_counter() - start < self.seconds:
            ns, amount = self.call([what, tasks, size, repeats])[0]
            least = min(least or float(ns), float(ns))
        return max(least, 1.0) / repeats, float(amount) / repeats

    def rate(self, tasks: int, size: int, repeats: int) -> float:
        """GB/s of reading `size` bytes repeatedly."""
        ns, read = self.least(READ, tasks, size, repeats)
        return read / ns

    def call_us(self) -> float:
        """Least microseconds of a run in which kernels do nothing."""
        least, start = 0.0, time.perf_counter()
        while least == 0.0 or time.perf_counter() - start < self.seconds:
            begin = time.perf_counter()
            self.call([NOTHING, 1, 0, 1])
            spent = time.perf_counter() - begin
            least = min(least or spent, spent)
        return least * 1e6


if __name__ == "__main__":
    process.serve(measured)
