"""Other engines in the same race: OpenVINO in fp32 and in bf16 (extra `[peers]`), where it is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.networks import Built, Effort
from onnxfuse import turns
from onnxfuse.profile import latency

_CHILD = "benchmarks.peers_child"
_OURS = "onnxfuse.profile_child"
PEERS = {"OpenVINO fp32": "f32", "OpenVINO bf16": "bf16"}


def installed() -> bool:
    """Whether there is a peer to race with."""
    return find_spec("openvino") is not None


def race(model: Path, fused: Built, inputs: Path, threads: int, effort: Effort) -> dict[str, Any]:
    """Milliseconds of ONNX Runtime, of ours and of the peers in one race; `error` is relative to the runtime's outputs.

    `speedup` is that of ours over each, by minima.
    """
    common = {"threads": threads, "inputs": str(inputs)}
    engines = [
        turns.Engine(_OURS, {"do": "engine", "model": str(model), "libraries": [], **common}),
        turns.Engine(_OURS, {"do": "engine", "model": str(fused.model), "libraries": [fused.library], **common}),
        *(
            turns.Engine(_CHILD, {"model": str(model), "precision": precision, **common})
            for precision in PEERS.values()
        ),
    ]
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        raced = turns.race(engines, Path(folder), warmup=3, duration=effort.seconds)
    names = ("runtime", "fused", *PEERS)
    ms = {name: asdict(latency(each.times)) for name, each in zip(names, raced, strict=True)}
    least = ms["fused"]["min"]
    return {
        "threads": threads,
        "ms": ms,
        "speedup": {name: each["min"] / least for name, each in ms.items()},
        "of_medians": {name: each["median"] / ms["fused"]["median"] for name, each in ms.items()},
        "error": {name: each.facts["error"] for name, each in zip(names, raced, strict=True) if "error" in each.facts},
        "versions": versions(raced),
    }


def versions(raced: Sequence[turns.Raced]) -> list[str]:
    """What the engines call themselves."""
    return sorted({str(each.facts["runtime"]) for each in raced})
