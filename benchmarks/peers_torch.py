"""The half of `peers.py` that runs `torch.compile` on the module that a network was exported from."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch._inductor import config

from models.networks import network
from models.weights import calibrate
from onnxfuse import process, turns


def main(request: dict[str, Any]) -> Any:
    """Compile with frozen weights for so many threads, then run whenever the race asks."""
    torch.set_num_threads(request["threads"])
    row = network(request["network"])
    architecture = importlib.import_module(row.module).ARCHITECTURES[row.arguments["name"]]
    module = architecture.make().eval()
    calibrate(module, architecture.sample(architecture.calibration), architecture.gains)
    with np.load(request["inputs"]) as archive:
        inputs = {name: archive[name] for name in architecture.inputs}
    given = tuple(map(torch.from_numpy, inputs.values()))
    config.freezing = True
    compiled = torch.compile(module, dynamic=False)
    with torch.inference_mode():
        found = _flat(compiled(*given))
        session = onnxruntime.InferenceSession(request["model"], providers=["CPUExecutionProvider"])
        wanted = session.run(None, inputs)
        del session
        error = max(_distance(each.numpy(), want) for each, want in zip(found[: len(wanted)], wanted, strict=True))
        facts = {"runtime": f"torch {torch.__version__}", "error": error}
        turns.serve(request["address"], lambda: compiled(*given), facts)
    return {}


def _flat(outputs: Any) -> list[torch.Tensor]:
    """The outputs that are tensors, in order: of one, several, or a record of them."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    values = outputs.values() if hasattr(outputs, "values") else outputs
    return [each for each in values if isinstance(each, torch.Tensor)]


def _distance(found: Any, wanted: Any) -> float:
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


if __name__ == "__main__":
    process.serve(main)
