"""Networks at 1, 2, 4, ... threads: ours beside ONNX Runtime, raced in turns, a process per engine.

    python -m benchmarks.scaling OUT.json NAME [NAME ...] [--folder F] [--threads 1 2 4 8 16] [--seconds 1.5]

FOLDER keeps models and builds, NAME/model.onnx, fused.onnx and inputs.npz. What is already there is taken as it is, so
that a NAME may be of any model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from benchmarks.networks import Built, inputs_of, model_of, optimize
from onnxfuse.measure import interleaving
from onnxfuse.measure.profile import latency, profile_models
from onnxfuse.runtime import engine

ALONE = (8, 12, 14, 15, 16)  # numbers of threads near that of the cores
_OURS = "onnxfuse.measure.profile_child"


def processor() -> dict[str, Any]:
    """What the machine says of itself."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16")
    return {
        "processor": named.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "threads_per_core": int(named.get("siblings", 1)) / max(1, int(named.get("cpu cores", 1))),
        "instructions": [each for each in wanted if each in named.get("flags", "").split()],
    }


def build(name: str, folder: Path) -> dict[str, Any]:
    """The fused model of a network, and what its build said."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.onnx"
    model = model if model.exists() else model_of(name)
    out, facts = folder / "fused.onnx", folder / "fused.result.json"
    if facts.exists():
        made = Built(out, 0.0, 0, json.loads(facts.read_text(encoding="utf-8")))
    else:
        made = optimize(model, out, folder / "cache", "--no-verify", "--no-gain")
    counts = ("nodes_before", "kernels", "nodes_left", "phases")
    if not (folder / "inputs.npz").exists():
        inputs_of(name, folder)
    return {"network": name, "model": str(model), "library": made.library, "build_s": made.seconds} | {
        key: made.result[key] for key in counts
    }


def difference(built: dict[str, Any], folder: Path) -> float:
    """The largest relative L2 difference between outputs of the original and ours, on the inputs of the race."""
    with np.load(folder / "inputs.npz") as file:
        feeds = dict(file)
    outputs = []
    for model, libraries in ((built["model"], []), (str(folder / "fused.onnx"), [built["library"]])):
        session = engine.open_session(model, engine.options(libraries=libraries))
        outputs.append(session.run(None, feeds))
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(a)) for a, b in zip(*outputs, strict=True))


def race(built: dict[str, Any], folder: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of ONNX Runtime, of itself again, and of ours."""
    common = {"do": "engine", "threads": threads, "inputs": str(folder / "inputs.npz")}
    given = {"model": built["model"], "libraries": [], **common}
    ours = {"model": str(folder / "fused.onnx"), "libraries": [built["library"]], **common}
    engines = {
        name: interleaving.Engine(_OURS, each) for name, each in (("runtime", given), ("fused", ours), ("again", given))
    }
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as sockets:
        raced = interleaving.race([*engines.values()], Path(sockets), warmup=3, duration=seconds)
    ms = {name: asdict(latency(each.times)) for name, each in zip(engines, raced, strict=True)}
    return {
        "threads": threads, "ms": ms, "spread": abs(ms["again"]["min"] / ms["runtime"]["min"] - 1),
        "speedup": ms["runtime"]["min"] / ms["fused"]["min"],
        "of_medians": ms["runtime"]["median"] / ms["fused"]["median"],
    }  # fmt: skip


def alone(built: dict[str, Any], folder: Path, threads: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of each engine while the other is not there at all."""
    common = {"do": "engine", "threads": threads, "inputs": str(folder / "inputs.npz")}
    found: dict[str, Any] = {"threads": threads}
    for name, model, libraries in (
        ("runtime", built["model"], []),
        ("fused", str(folder / "fused.onnx"), [built["library"]]),
    ):
        given = interleaving.Engine(_OURS, {"model": model, "libraries": libraries, **common})
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as sockets:
            (run,) = interleaving.race([given], Path(sockets), warmup=3, duration=seconds)
            found[name] = asdict(latency(run.times))
    return found


def kernel_times(built: dict[str, Any], folder: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Milliseconds of every node of both models at several numbers of threads, as the runtime's profiler sees them."""
    found = {}
    for threads in counts:
        for which, model, library in (
            ("runtime", Path(built["model"]), None),
            ("fused", folder / "fused.onnx", built["library"]),
        ):
            profile = profile_models(
                [model], libraries=[library], threads=threads, repeats=20, inputs=folder / "inputs.npz", a_a=False,
                per_op=True,
            )  # fmt: skip
            found[f"{which} {threads}"] = [
                {"name": op.name, "op": op.op_type, "ms": op.time_ms, "origin": list(op.origin)[:4]}
                for op in profile.models[0].ops
            ]
    return found


def main() -> None:
    """Build all, race all, and write anew after each race."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "onnxfuse-scaling")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no race begins")
    parser.add_argument("--profile", nargs="*", default=[], help="networks whose kernels are timed as well")
    parser.add_argument("--alone", nargs="*", default=[], help="networks whose engines are also measured by themselves")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--together", type=int, default=1, help="builds at a time")
    asked = parser.parse_args()
    stop = time.monotonic() + asked.limit
    result: dict[str, Any] = {"machine": processor(), "runtime": ort.__version__, "networks": []}
    with ThreadPoolExecutor(asked.together) as pool:
        rows = [*pool.map(lambda name: build(name, asked.folder / name), asked.names)]
    result["networks"] = rows
    for row in rows:
        sys.stderr.write(f"{row}\n")
        row["races"] = []
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if asked.build_only:
        return
    for row in rows:
        folder = asked.folder / row["network"]
        row["difference"] = difference(row, folder)
        for threads in asked.threads:
            if time.monotonic() > stop:
                sys.stderr.write("out of time\n")
                break
            row["races"].append(race(row, folder, threads, asked.seconds))
            sys.stderr.write(_line(row))
            asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        if row["network"] in asked.alone:
            row["alone"] = [alone(row, asked.folder / row["network"], count, asked.seconds) for count in ALONE]
            sys.stderr.write(f"{row['network']} alone: {row['alone']}\n")
    for row in rows:
        if row["network"] in asked.profile and time.monotonic() < stop:
            row["nodes"] = kernel_times(row, asked.folder / row["network"], (1, 8, os.cpu_count() or 1))
            asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    last = row["races"][-1]
    times = " ".join(f"{name} {ms['min']:.3f}/{ms['median']:.3f}" for name, ms in last["ms"].items())
    spread = f"A/A {last['spread']:.3f}, differs by {row['difference']:.1e}"
    return f"{row['network']} {last['threads']} threads: {last['speedup']:.2f}x ({times}, {spread})\n"


if __name__ == "__main__":
    main()
