"""The half of `peers.py` that runs OpenVINO: one process for each engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino

from benchmarks.peers_error import error_of
from onnxfuse.measure import interleaving
from onnxfuse.runtime import process


def main(request: dict[str, Any]) -> Any:
    """Compile for latency with so many threads, then run whenever the race asks."""
    model, threads = request["model"], request["threads"]
    with np.load(request["inputs"]) as archive:
        inputs = dict(archive)
    core = openvino.Core()
    hints = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(model, "CPU", {**hints, "INFERENCE_PRECISION_HINT": request["precision"]})
    asked = compiled.create_infer_request()
    tensors = {port: openvino.Tensor(inputs[port.get_any_name()], shared_memory=True) for port in compiled.inputs}
    asked.set_tensors(tensors)
    asked.infer()
    error = error_of(model, inputs, [each.data for each in asked.output_tensors])
    facts = {"runtime": f"openvino {openvino.__version__}", "error": error}
    interleaving.serve(request["address"], asked.infer, facts)
    return {}


if __name__ == "__main__":
    process.serve(main)
