"""Networks of full size: ours against the original in ONNX Runtime's CUDA provider, and torch.compile on the same ones.

Each entry is of a network, a precision and a batch, such as `swin-t f16 b8`. A part goes on from what it found before,
so that it may be run again until nothing is left. Files come from a folder (NAME.onnx, in float32), or from `models/`,
whose full-size networks need torch, transformers and onnxscript.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.gpu.wish import CheckRequest, Facts
from models.networks import NETWORKS
from onnxfuse.measure.profile_child import typical_inputs
from onnxfuse.pipeline.run import optimize
from onnxfuse.runtime import engine
from onnxfuse.runtime.engine import Array
from onnxfuse.runtime.provider import Provider, gpu_provider

# Those first whose neighbourhoods the runtime does not fuse.
NAMES = (
    "swin-t", "convnext-t", "segformer-b0", "mobilebert", "bert-base", "vit-b-16", "gpt2", "resnet-50", "mobilenet-v2",
)  # fmt: skip
PRECISIONS = ("f16", "f32")
BATCHES = (1, 8)
LIMITS = {"f16": 3e-2, "f32": 3e-3}  # relative L2 to float32 on the CPU; more where the original is further itself
FURTHER = 3.0
ROUNDS, RUNS, LEAST_S = 15, 10, 0.02


def full(wish: CheckRequest) -> Facts:
    """Errors and milliseconds of each network before and after, with CUDA graphs and without."""
    if wish.emulated:
        return {"skipped": "there is no device: nothing is timed", "ok": True}
    found: dict[str, Facts] = dict(wish.known.get("networks", {}))
    left = 0
    for batch, precision, name in _jobs(wish):
        key = f"{name} {precision} b{batch}"
        if key in found or wish.late:
            left += key not in found
            continue
        try:
            with tempfile.TemporaryDirectory() as place:
                found[key] = _entry(wish, Path(place), name, precision, batch)
        except ModuleNotFoundError as missing:
            found[key] = {"skipped": f"{missing.name} is not installed", "ok": True}
        except Exception as problem:
            found[key] = {"problem": str(problem)[:300], "ok": False}
    ratios = [e["ratio"]["graph"] for e in found.values() if e.get("ratio", {}).get("graph")]
    mean = statistics.geometric_mean(ratios) if ratios else None
    return {"networks": found, "out_of_time": left, "mean_ratio": mean, "ok": all(e["ok"] for e in found.values())}


def _jobs(wish: CheckRequest) -> Iterator[tuple[int, str, str]]:
    """Batch, precision and name of what there is; the second batch of those that have a size for it."""
    names = NAMES if wish.models is None else sorted(p.stem for p in wish.models.glob("*.onnx"))
    for batch in BATCHES:
        for precision in PRECISIONS:
            for name in names[:: wish.every]:
                if batch == 1 or (wish.models is None and any(r.name == f"{name}.dynamic" for r in NETWORKS)):
                    yield batch, precision, name


def _entry(wish: CheckRequest, place: Path, name: str, precision: str, batch: int) -> Facts:
    """What there is to be said of one network."""
    path = _file(wish, place, name, batch)
    plain = engine.open_session(str(path), engine.options())
    feeds: Mapping[str, Array] = typical_inputs(plain, str(path), inputs=None, seed=0, dims={})
    wanted = engine.run(plain, feeds)
    del plain
    if precision == "f16":
        path = halved(path, place)
        feeds = {key: x.astype(np.float16) if x.dtype == np.float32 else x for key, x in feeds.items()}
    begin, out = time.monotonic(), place / "made.onnx"
    given = {"target": "cuda", "arch": ("native",), "cuda_graph": True, "overwrite": True}
    made = optimize(path, out, **given, verify=False, gain=False)  # errors are measured here
    build_s = time.monotonic() - begin
    assert made.output.library is not None, "no kernel was made"
    sides = {"before": (path, None), "after": (out, Path(made.output.library))}
    entry: Facts = {
        "build_s": build_s,
        "kernels": sum(g.phases for g in made.groups),
        "before": {},
        "after": {},
        "ratio": {},
    }
    for graph in (False, True):
        way, provider = "graph" if graph else "stream", gpu_provider("check", graph=graph)
        try:
            calls = {side: prepared(*files, feeds, provider) for side, files in sides.items()}
            for side, (call, outputs) in calls.items():
                entry[side][f"{way}_error"] = error(outputs(), wanted)
                call()
            entry["ratio"][way], times = ratio(calls["before"][0], calls["after"][0])
            for side, ms in zip(calls, times, strict=True):
                entry[side][f"{way}_ms"] = ms
        except Exception as problem:  # such as an original with a node that no graph holds
            entry[f"{way}_problem"] = str(problem)[:300]
    errors = [(entry["before"][k], e) for k, e in entry["after"].items() if k.endswith("_error")]
    right = all(after <= max(LIMITS[precision], FURTHER * before) for before, after in errors)
    return entry | {"ok": right and bool(errors)}


def _file(wish: CheckRequest, place: Path, name: str, batch: int) -> Path:
    """The file of a network in float32, all sizes fixed."""
    if wish.models is not None:
        return wish.models / f"{name}.onnx"
    row = next(r for r in NETWORKS if r.name == (name if batch == 1 else f"{name}.dynamic"))
    onnx.save(fixed(row.build(), {"batch": batch, "sequence": 128}), place / f"{name}.onnx")
    return place / f"{name}.onnx"


def fixed(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """The model with its symbols, and sums of them, set to their sizes, as CUDA graphs want it."""
    tools = importlib.import_module("onnxruntime.tools.onnx_model_utils")  # it imports torch, where that is
    types = (each.type.tensor_type for each in (*model.graph.input, *model.graph.output))
    for symbol in {d.dim_param for t in types for d in t.shape.dim if d.dim_param}:
        parts = symbol.split(" + ")
        if all(part in sizes for part in parts):
            tools.make_dim_param_fixed(model.graph, symbol, sum(sizes[part] for part in parts))
    return model


def halved(path: Path, place: Path) -> Path:
    """The network in float16, inputs and outputs too."""
    tools = importlib.import_module("onnxruntime.transformers.float16")  # a pack of the runtime has none
    made = tools.convert_float_to_float16(onnx.load(path), keep_io_types=False, disable_shape_infer=True)
    onnx.save(made, place / "half.onnx")
    return place / "half.onnx"


def prepared(
    path: Path, library: Path | None, feeds: Mapping[str, Array], provider: Provider
) -> tuple[Callable[[], Any], Callable[[], list[Array]]]:
    """A run to be timed, and one that gives the outputs."""
    libraries = [] if library is None else [str(library)]
    options = engine.options(libraries=libraries)
    session = engine.open_session(str(path), options, provider)
    why = engine.why_bodies_run(onnx.load(path, load_external_data=False), options) if libraries else ""
    assert not why, why
    outputs = engine.run(session, feeds, None, provider)
    return engine.prepared(session, feeds, provider), lambda: outputs


def error(found: list[Array], wanted: list[Array]) -> float:
    """The largest relative L2 distance of an output."""
    return max(
        float(np.linalg.norm(a.astype(np.float64) - b) / max(np.linalg.norm(b.astype(np.float64)), 1e-30))
        for a, b in zip(found, wanted, strict=True)
    )


def ratio(before: Callable[[], Any], after: Callable[[], Any]) -> tuple[float, list[float]]:
    """The median of the turns' ratios, and the least milliseconds of each; the one and the other in turns."""
    turns = [[least(call) for call in (before, after)] for _ in range(ROUNDS)]
    return statistics.median(a / b for a, b in turns), [min(column) for column in zip(*turns, strict=True)]


def least(call: Callable[[], Any], count: int = RUNS) -> float:
    """The least milliseconds of some runs."""
    spent: list[float] = []
    while len(spent) < count or (sum(spent) < LEAST_S * 1e3 and len(spent) < 50 * count):
        begin = time.perf_counter()
        call()
        spent.append((time.perf_counter() - begin) * 1e3)
    return min(spent)


# torch.compile --------------------------------------------------------------------------------------------------------


def compiled(wish: CheckRequest) -> Facts:
    """Milliseconds of torch.compile (max-autotune, which replays CUDA graphs) on networks in float16."""
    if wish.emulated:
        return {"skipped": "there is no device: nothing is timed", "ok": True}
    try:
        torch = importlib.import_module("torch")
        architectures = {
            name: row for module in ("full_image", "full_text")
            for name, row in importlib.import_module(f"models.{module}").ARCHITECTURES.items()
        }  # fmt: skip
    except ModuleNotFoundError as missing:
        return {"skipped": f"{missing.name} is not installed", "ok": True}
    if not torch.cuda.is_available():
        return {"skipped": "torch sees no GPU", "ok": True}
    found: dict[str, Facts] = dict(wish.known.get("networks", {}))
    left = 0
    for batch in BATCHES:
        for name in NAMES[:: wish.every]:
            key = f"{name} f16 b{batch}"
            if key in found or wish.late or name not in architectures:
                left += key not in found and name in architectures
                continue
            try:
                found[key] = torch_times(torch, architectures[name], batch, "cuda", "max-autotune")
            except Exception as problem:
                found[key] = {"problem": str(problem)[:300]}
    return {"networks": found, "out_of_time": left, "ok": True}


def torch_times(torch: Any, row: Any, batch: int, device: str, mode: str) -> Facts:
    """Milliseconds of a compiled module, and seconds of compiling it; in float16."""
    module = row.make().eval().to(device).half()
    feed = tuple(x.to(device).half() if x.is_floating_point() else x.to(device) for x in row.sample(batch))
    begin = time.monotonic()
    made = torch.compile(module, mode=mode, dynamic=False)

    def call() -> None:
        with torch.no_grad():
            made(*feed)
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(4):
        call()
    return {"compile_s": time.monotonic() - begin, "ms": min(least(call) for _ in range(5))}
