"""The cost model against measurement: every kernel of a network, timed while the whole network runs.

The clock is inside of the call, so dispatch is left out of predictions too. Equal kernels count once, with the median
over their nodes, since their predictions are equal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import networks
from benchmarks.kernel_times import kernel_times
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.config import Options
from onnxfuse.cost import Cost, cost_of, weight_bytes
from onnxfuse.measure.machine import Machine, calibrate
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.run import opened, run
from onnxfuse.pipeline.state import Build, have
from onnxfuse.target import Cpu, targets_of

THREADS = 2


def scheduled(model: Path) -> Build:
    """A model up to its kernels."""
    with opened(model, Options(), Calls(), lambda what, facts: None) as context:
        return run(context, Calls(), "schedule", lambda step, b: None)


def costs(b: Build, target: Cpu) -> list[Cost]:
    """The cost of each kernel of the main graph."""
    constants = have(b.plan).graph.constants
    held = weight_bytes([have(part.kernel) for part in b.parts], constants)
    found = [cost_of(have(part.kernel), target, constants, held) for part in b.parts]
    return [have(each) for each in found]


def measure(name: str, machine: Machine, seconds: float, cache: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """The kernels of a network with measured and predicted microseconds, and their agreement."""
    model, row = networks.model_of(name), targets_of(())[0]
    with tempfile.TemporaryDirectory() as folder:
        say(f"{name}: optimize and run")
        built = networks.optimize(model, Path(folder, "fused.onnx"), cache, "--no-verify")
        inputs = networks.inputs_of(name, Path(folder))
        times = kernel_times(built.model, built.library, inputs, THREADS, seconds)
    b = scheduled(model)
    groups = built.result["groups"]
    assert [g["kernel"] for g in groups] == [part.op for part in b.parts], f"{name}: two plans of one model differ"
    kinds = {"class": row, "calibrated": machine.target(row)}
    predicted = {kind: costs(b, target) for kind, target in kinds.items()}
    kernels: dict[str, dict[str, Any]] = {}
    for at, group in enumerate(groups):
        kernel = kernels.setdefault(group["kernel"], {"kernel": group["kernel"], "ops": group["ops"], "us": []})
        kernel["us"].append(times[group["name"]])
        kernel |= {kind: (found[at].seconds - found[at].dispatch) * 1e6 for kind, found in predicted.items()}
        kernel |= {"bound": predicted["calibrated"][at].bound}
    rows = [each | {"nodes": len(each["us"]), "us": float(np.median(each["us"]))} for each in kernels.values()]
    return {"network": name, "kernels": rows, **{kind: agreement(rows, kind) for kind in kinds}}


def agreement(rows: Sequence[Mapping[str, Any]], kind: str) -> dict[str, float]:
    """Spearman's rank correlation, the median and the 90th percentile of relative errors, predicted over measured."""
    measured, predicted = (np.array([row[key] for row in rows]) for key in ("us", kind))
    nodes = np.array([row["nodes"] for row in rows])
    errors = np.abs(predicted / measured - 1.0)
    return {
        "rank": float(np.corrcoef(_ranks(measured), _ranks(predicted))[0, 1]),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "of_total": float((predicted * nodes).sum() / (measured * nodes).sum()),
    }


def _ranks(values: Any) -> Any:
    """Ranks; equal values get the mean of their ranks."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2


def rows(
    names: Sequence[str], seconds: float, cache: Path, say: Callable[[str], None]
) -> tuple[Machine, list[dict[str, Any]]]:
    """The machine as it was measured first, and a row per network."""
    machine = calibrate(targets_of(())[0], find_toolchain("auto"), None)
    return machine, [measure(name, machine, seconds, cache, say) for name in names]
