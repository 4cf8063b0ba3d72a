"""Networks with dynamic sizes: one default build at several sizes, against ONNX Runtime and a build for each size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import DYNAMIC, Built, Effort, model_of, optimize, steady
from models.dynamic.networks import FULL_SIZES, SMALL_SIZES
from models.networks import network

MOST = 1.1  # of the time of a build for the size alone: the goal
TINY = "tiny-"


def names_of(models: str) -> list[str]:
    """The networks of one extent: tiny, or full for everything else."""
    return [f"{TINY if models == 'tiny' else ''}{name}{DYNAMIC}" for name in FULL_SIZES]


def sizes_of(name: str) -> tuple[Mapping[str, int], ...]:
    """Every size that a network is measured at."""
    table = SMALL_SIZES if name.startswith(TINY) else FULL_SIZES
    return table[name.removeprefix(TINY).removesuffix(DYNAMIC)][:3]


def measure(
    name: str, folder: Path, cache: Path, effort: Effort, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Latency of ONNX Runtime, of one build for all sizes and of one for this size; builds stay in `folder`."""
    model = model_of(name)
    say(f"{name}: as shipped")
    shipped = optimize(model, folder / "shipped.onnx", cache)
    for number, sizes in enumerate(sizes_of(name)):
        feeds = network(name).sample(**sizes)
        inputs = folder / f"{number}.npz"
        np.savez(inputs, allow_pickle=False, **feeds)
        say(f"{name}: for {_written(sizes)}")
        fixed = optimize(model, folder / f"fixed{number}.onnx", cache, *_shapes(feeds))
        for threads in effort.threads:
            row = {"network": name, "sizes": dict(sizes), "threads": threads}
            row |= _structure("shipped", shipped) | _structure("fixed", fixed)
            row |= _latencies(model, (shipped, fixed), inputs, threads, effort)
            say(f"{name} {_written(sizes)}: {row['speedup']:.2f}x, {row['over_fixed']:.2f} of the build for this size")
            yield row


def _shapes(feeds: Mapping[str, Any]) -> list[str]:
    """Flags that fix the shapes of all inputs."""
    flags = []
    for name, value in feeds.items():
        if value.ndim:
            flags += ["--input-shape", f"{name}:{','.join(map(str, value.shape))}"]
    return flags


def _structure(which: str, built: Built) -> dict[str, Any]:
    """Kernels and nodes left, by build."""
    return {f"{which}_{key}": built.result[key] for key in ("kernels", "nodes_left")} | {f"{which}_s": built.seconds}


def _latencies(model: Path, builds: tuple[Built, Built], inputs: Path, threads: int, effort: Effort) -> dict[str, Any]:
    """Times of the model and both builds, run in turns in processes of their own; ratios are of minima."""
    models = [model, *(built.model for built in builds)]
    profile, _ = steady(models, [None, *(built.library for built in builds)], inputs, threads, effort)
    runtime, shipped, fixed = (each.latency_ms for each in profile.models)
    return {
        "runtime": asdict(runtime), "fused": asdict(shipped), "fixed": asdict(fixed), "spread": profile.spread,
        "speedup": runtime.min / shipped.min, "of_medians": runtime.median / shipped.median,
        "over_fixed": shipped.min / fixed.min,
    }  # fmt: skip


def _written(sizes: Mapping[str, int]) -> str:
    return " x ".join(map(str, sizes.values()))
