"""Comparison with other engines, if installed (extra `[peers]`): OpenVINO, torch.compile."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.networks import Built, Effort
from models.networks import NETWORKS
from onnxfuse.measure import interleaving
from onnxfuse.measure.profile import latency

_CHILD = "benchmarks.peers_child"
_TORCH = "benchmarks.peers_torch"
_OURS = "onnxfuse.measure.profile_child"
OPENVINO = {"OpenVINO fp32": "f32", "OpenVINO bf16": "bf16"}
COMPILED = "torch.compile"


def installed() -> bool:
    """Whether there is a peer to race with."""
    return find_spec("openvino") is not None


def _has_module(name: str) -> bool:
    """Whether the torch module of a network exists unchanged."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        return False
    row = next((row for row in NETWORKS if row.name == name), None)
    return row is not None and row.full and row.arguments["form"] == "modern"


def race(model: Path, fused: Built, inputs: Path, threads: int, effort: Effort) -> dict[str, Any]:
    """Milliseconds of ONNX Runtime, ours and other engines in turns; `error` is relative to the runtime's outputs.

    `speedup` is that of ours over each, by minima. What ran just before changes a time by 3 to 5 %: the runtime and
    ours each run after an engine that is neither of them, if there are two such.
    """
    common = {"threads": threads, "inputs": str(inputs)}
    runtime = interleaving.Engine(_OURS, {"do": "engine", "model": str(model), "libraries": [], **common})
    libraries = [fused.library]
    ours = interleaving.Engine(_OURS, {"do": "engine", "model": str(fused.model), "libraries": libraries, **common})
    (first, one), *others = (
        (name, interleaving.Engine(_CHILD, {"model": str(model), "precision": precision, **common}))
        for name, precision in OPENVINO.items()
    )
    engines = {"runtime": runtime, first: one, "fused": ours, **dict(others)}
    if _has_module(model.stem):
        engines[COMPILED] = interleaving.Engine(_TORCH, {"model": str(model), "network": model.stem, **common})
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        raced = interleaving.race([*engines.values()], Path(folder), warmup=3, duration=effort.seconds)
    ms = {name: asdict(latency(each.times)) for name, each in zip(engines, raced, strict=True)}
    least = ms["fused"]["min"]
    return {
        "threads": threads,
        "ms": ms,
        "speedup": {name: each["min"] / least for name, each in ms.items()},
        "of_medians": {name: each["median"] / ms["fused"]["median"] for name, each in ms.items()},
        "error": {
            name: each.facts["error"] for name, each in zip(engines, raced, strict=True) if "error" in each.facts
        },
        "versions": versions(raced),
    }


def versions(raced: Sequence[interleaving.RaceResult]) -> list[str]:
    """The versions of the engines."""
    return sorted({str(each.facts["runtime"]) for each in raced})
