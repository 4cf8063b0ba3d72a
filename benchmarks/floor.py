"""Lower bounds of kernel times: arithmetic at the measured peak, or bytes at the measured bandwidth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from benchmarks.machine import Limits

_CONTRACTIONS = {"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"}
_LOOKUPS = {"Gather", "GatherElements", "GatherND"}


@dataclass(frozen=True, slots=True)
class Floor:
    """A kernel: the operations and bytes that it needs at least, and the milliseconds that these take at least."""

    name: str
    kernel: str
    ops: tuple[str, ...]
    flops: int
    weight_bytes: int
    other_bytes: int
    compute_ms: float
    memory_ms: float

    @property
    def ms(self) -> float:
        """The floor: the larger of the two."""
        return max(self.compute_ms, self.memory_ms)


def floors(groups: Sequence[Mapping[str, Any]], fused: Path, limits: Limits) -> tuple[Floor, ...] | None:
    """Floors of all kernels of a build; None where extents are symbols.

    `groups` are those of the JSON result of optimize. Weights are read once per run, at the bandwidth of the cache
    level that holds all of them; inputs and outputs at that of the level that holds the kernel's own. A lookup table
    counts at most as many bytes as the kernel's other values. Values between phases of a kernel are not counted.
    """
    if any(group["flops"] is None or group["bytes"] is None for group in groups):
        return None
    weights = _weights(fused)
    split = [_split(group, weights) for group in groups]
    footprint = sum(own for own, _ in split)
    made = []
    for group, (own, others) in zip(groups, split, strict=True):
        memory = own / limits.bandwidth(footprint) + others / limits.bandwidth(others)
        compute = group["flops"] / limits.gflops / 1e9
        ops = tuple(group["ops"])
        name, kernel = group["name"], group["kernel"]
        made.append(Floor(name, kernel, ops, group["flops"], own, others, compute * 1e3, memory * 1e3))
    return tuple(made)


def _split(group: Mapping[str, Any], weights: Mapping[str, int]) -> tuple[int, int]:
    """Bytes of weights that a kernel reads, and all its other bytes."""
    own = weights.get(group["name"], 0)
    others = max(0, group["bytes"] - own)
    looked_up = not _LOOKUPS.isdisjoint(group["ops"]) and _CONTRACTIONS.isdisjoint(group["ops"])
    return (min(own, others) if looked_up else own), others


def _weights(fused: Path) -> dict[str, int]:
    """By node of the main graph, the bytes of initializers among its inputs."""
    graph = onnx.load(str(fused), load_external_data=False).graph
    sizes = {
        t.name: math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in graph.initializer
    }
    return {node.name: sum(sizes.get(i, 0) for i in dict.fromkeys(node.input)) for node in graph.node}


def by_kernel(floors: Iterable[Floor], times: Mapping[str, float]) -> list[dict[str, Any]]:
    """Rows of equal kernels combined, by descending loss; `times` are milliseconds by node."""
    rows: dict[str, dict[str, Any]] = {}
    for floor in floors:
        row = rows.setdefault(floor.kernel, asdict(floor) | {"nodes": 0, "floor_ms": 0.0, "time_ms": 0.0})
        row["nodes"] += 1
        row["floor_ms"] += floor.ms
        row["time_ms"] += times.get(floor.name, 0.0)
    for row in rows.values():
        del row["name"], row["compute_ms"], row["memory_ms"]
    return sorted(rows.values(), key=lambda row: row["floor_ms"] - row["time_ms"])
