"""The half of `peers.py` that runs OpenVINO: one process for each engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import openvino

from onnxfuse import process, turns


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
    facts = {"runtime": f"openvino {openvino.__version__}", "error": _error(model, inputs, asked)}
    turns.serve(request["address"], asked.infer, facts)
    return {}


def _error(model: str, inputs: dict[str, Any], asked: Any) -> float:
    """The largest relative L2 distance of an output from what ONNX Runtime gives without optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, inputs)
    del session
    asked.infer()
    found = [np.asarray(each.data, np.float64) for each in asked.output_tensors]
    return max(float(np.linalg.norm(f - w) / np.linalg.norm(w)) for f, w in zip(found, wanted, strict=True))


if __name__ == "__main__":
    process.serve(main)
