"""Networks of full size: ours against the original in ONNX Runtime's CUDA provider, and torch.compile on the same ones.

Each entry is of a network, a precision and a batch, such as `swin-t f16 b8`, from a pack that `prepare` has made
anywhere. A network has a process of its own (`times`); the next ones unpack and run the reference on the CPU while one
has the GPU. A part goes on from what it found before, so that it may be run again until nothing is left.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.gpu.wish import CheckRequest, Facts
from onnxfuse.runtime import engine
from onnxfuse.runtime.engine import Array
from onnxfuse.runtime.provider import Provider

# Those first whose neighbourhoods the runtime does not fuse.
NAMES = (
    "swin-t", "convnext-t", "segformer-b0", "mobilebert", "bert-base", "vit-b-16", "gpt2", "resnet-50", "mobilenet-v2",
)  # fmt: skip
BATCHES = (1, 8)
AT_ONCE = 4  # processes, one of which has the GPU
LONGEST_S = 60.0  # of a process behind the end of what there is time for
ROUNDS, RUNS, LEAST_S = 15, 10, 0.02


def full(wish: CheckRequest) -> Facts:
    """Errors and milliseconds of each network before and after, with CUDA graphs and without."""
    if wish.emulated:
        return {"skipped": "there is no device: nothing is timed", "ok": True}
    packs = ordered(wish.models) if wish.models is not None else []
    if not packs:
        return {
            "skipped": "no packs: python -m benchmarks.gpu.networks.prepare makes them, MODELS names them",
            "ok": True,
        }
    found: dict[str, Facts] = dict(wish.known.get("networks", {}))
    todo = [path for path in packs[:: wish.every] if title(path) not in found]
    live: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        while live or (todo and not wish.late):
            while todo and len(live) < AT_ONCE and not wish.late:
                path = todo.pop(0)
                result = place / f"{title(path)}.json"
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.gpu.networks.times",
                    path,
                    result,
                    place / "lock",
                    str(ROUNDS),
                    *wish.ways,
                ]
                live[title(path)] = subprocess.Popen(command, stderr=result.with_suffix(".log").open("wb")), result
            for key, (process, result) in [*live.items()]:
                if process.poll() is None and time.monotonic() > wish.until + LONGEST_S:
                    process.kill()
                    process.wait()
                if process.poll() is not None:
                    found[key] = _said(process.returncode, result)
                    del live[key]
            time.sleep(0.02)
    return {"networks": found, "out_of_time": len(todo)} | summary(found)


def summary(found: Mapping[str, Facts]) -> Facts:
    """Geometric means of the ratios with graphs, by precision and batch, the least of them, and whether all is well."""
    groups: dict[str, list[float]] = {}
    for key, entry in found.items():
        if ratio_of := entry.get("ratio", {}).get("graph"):
            groups.setdefault(key.split(" ", 1)[1], []).append(ratio_of)
    means = {f"mean {key}": statistics.geometric_mean(ratios) for key, ratios in groups.items()}
    least_ratio = min((r for ratios in groups.values() for r in ratios), default=None)
    return means | {"least": least_ratio, "ok": all(entry["ok"] for entry in found.values())}


def ordered(folder: Path) -> list[Path]:
    """The packs of a folder: by batch, then precision, then as in NAMES."""

    def place(path: Path) -> tuple[str, str, int]:
        name, precision, batch = path.name.removesuffix(".tar.xz").rsplit(".", 2)
        return batch, precision, NAMES.index(name) if name in NAMES else len(NAMES)

    return sorted(folder.glob("*.tar.xz"), key=place)


def title(path: Path) -> str:
    """What the entry of a pack is called."""
    return " ".join(path.name.removesuffix(".tar.xz").rsplit(".", 2))


def _said(returned: int, result: Path) -> Facts:
    """What a process has found, or how it ended."""
    if result.exists():
        said: Facts = json.loads(result.read_text())
        return said
    log = result.with_suffix(".log").read_text(errors="replace").strip()
    return {"problem": f"ended with {returned}: {log[-300:]}", "ok": False}


def fixed(model: onnx.ModelProto, sizes: Mapping[str, int]) -> onnx.ModelProto:
    """The model with its symbols, and sums of them, set to their sizes, as CUDA graphs want it; in place."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            parts = dim.dim_param.split(" + ")
            if dim.dim_param and all(part in sizes for part in parts):
                dim.dim_value = sum(sizes[part] for part in parts)
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
    turns = turns_of([before, after], ROUNDS)
    return statistics.median(a / b for a, b in turns), [min(column) for column in zip(*turns, strict=True)]


def turns_of(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Milliseconds of some calls, one after the other, in each of so many turns."""
    return [[least(call) for call in calls] for _ in range(rounds)]


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
