"""The half of `peers.py` that runs `torch.compile` on the module that a network was exported from."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch._inductor import config

from benchmarks.peers_error import error_of
from models.full.weights import calibrate
from models.networks import network
from onnxfuse.measure import interleaving
from onnxfuse.runtime import process


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
        found = _flat(compiled(*given))[: len(architecture.outputs)]
        error = error_of(request["model"], inputs, [each.numpy() for each in found])
        facts = {"runtime": f"torch {torch.__version__}", "error": error}
        interleaving.serve(request["address"], lambda: compiled(*given), facts)
    return {}


def _flat(outputs: Any) -> list[torch.Tensor]:
    """The outputs that are tensors, in order: of one, several, or a record of them."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    values = outputs.values() if hasattr(outputs, "values") else outputs
    return [each for each in values if isinstance(each, torch.Tensor)]


if __name__ == "__main__":
    process.serve(main)
