"""One build with symbols at several sizes beside ONNX Runtime: batches of 1 and 8, sequences of 16, 128 and 512."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import DYNAMIC, NETWORKS, Effort, model_of, optimize, steady
from models.networks import network

VALUES = {"batch": (1, 8), "sequence": (16, 128, 512)}  # of the symbols that networks have
SMALL = {"batch": (1, 8), "sequence": (16, 64)}  # of networks with short tables of positions


def names_of(models: str) -> list[str]:
    """The networks with symbols whose static form is among `models`: tiny, demo or full."""
    return [f"{name}{DYNAMIC}" for name in NETWORKS[models] if "." not in name and _there(f"{name}{DYNAMIC}")]


def _there(name: str) -> bool:
    try:
        return bool(network(name))
    except KeyError:
        return False


def sizes_of(name: str) -> list[dict[str, int]]:
    """Every size that a network is measured at."""
    row = network(name)
    here = {extent for entry in row.inputs for extent in entry.shape}
    values = {symbol: found for symbol, found in (VALUES if row.full else SMALL).items() if symbol in here}
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def measure(
    name: str, folder: Path, cache: Path, effort: Effort, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Latency of ONNX Runtime and of ours at each size; what is built stays in `folder`."""
    model = model_of(name)
    built = optimize(model, folder / "fused.onnx", cache)
    for sizes, threads in itertools.product(sizes_of(name), effort.threads):
        inputs = folder / "inputs.npz"
        np.savez(inputs, allow_pickle=False, **network(name).sample(**sizes))
        profile, _ = steady([model, built.model], [None, built.library], inputs, threads, effort)
        ours, theirs = (m.latency_ms for m in reversed(profile.models))
        row = {
            "network": name, "sizes": sizes, "threads": threads, "runtime": asdict(theirs), "fused": asdict(ours),
            "spread": profile.spread, "speedup": theirs.min / ours.min, "of_medians": theirs.median / ours.median,
        }  # fmt: skip
        say(f"{name} {sizes}: {row['speedup']:.2f}x on {threads} threads (A/A {profile.spread or 0.0:.3f})")
        yield row
