"""ONNX Runtime's CUDA provider on networks: latency with and without CUDA graphs, kernels of each operator.

    python -m benchmarks.gpu.runtime FOLDER OUT.json NAME [NAME ...] [--precisions f16 f32] [--batches 1 8]

FOLDER holds what build_networks wrote. Several of these may run at a time: timed parts wait for each other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from torch.profiler import ProfilerActivity, profile

KINDS = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(int64)": torch.int64}
NUMPY = {torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64}
_SUFFIX = "_kernel_time"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process of the folder is in here at a time."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wall(call: Callable[[], Any], seconds: float = 0.7, most: int = 500) -> dict[str, float]:
    """Milliseconds of a call that waits for its result: least and median."""
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop and len(times) < most:
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1e6)
    return {"min": min(times), "median": statistics.median(times), "runs": len(times)}


class Bound:
    """A session on the CUDA provider with inputs and outputs at fixed addresses."""

    def __init__(
        self, path: Path, feeds: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], **how: Any
    ) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        if how.get("profile"):
            options.enable_profiling = True
            options.profile_file_prefix = str(how["profile"])
        given = {"enable_cuda_graph": "1"} if how.get("graph") else {}
        begin = time.perf_counter()
        self.session = ort.InferenceSession(
            str(path), options, [("CUDAExecutionProvider", given), "CPUExecutionProvider"]
        )
        self.load_ms = (time.perf_counter() - begin) * 1e3
        if self.session.get_providers()[0] != "CUDAExecutionProvider":
            raise RuntimeError("the CUDA provider was not loaded")
        self.binding = self.session.io_binding()
        self.kept = []
        for each in self.session.get_inputs():
            value = torch.tensor(feeds[each.name], device="cuda").to(KINDS[each.type]).contiguous()
            self.kept.append(value)
            self.binding.bind_input(each.name, "cuda", 0, NUMPY[value.dtype], list(value.shape), value.data_ptr())
        self.outputs = {}
        for each in self.session.get_outputs():
            kind = KINDS[each.type]
            value = torch.full(wanted[each.name].shape, float("nan"), device="cuda", dtype=kind)
            self.outputs[each.name] = value
            self.binding.bind_output(each.name, "cuda", 0, NUMPY[kind], list(value.shape), value.data_ptr())

    def run(self) -> None:
        """Once; the runtime waits for the end."""
        self.session.run_with_iobinding(self.binding)

    def error(self, wanted: Mapping[str, np.ndarray]) -> float:
        """Relative L2 error of the first output."""
        name = self.session.get_outputs()[0].name
        return relative(self.outputs[name], wanted[name])


def relative(found: torch.Tensor, wanted: np.ndarray) -> float:
    """Relative L2 error."""
    reference = wanted.astype(np.float64)
    return float(np.linalg.norm(found.double().cpu().numpy() - reference) / np.linalg.norm(reference))


def node_events(path: str, begin: float) -> list[dict[str, Any]]:
    """Of the last run in a profile that began at `begin` us: operator, provider, start and end in microseconds."""
    events = json.loads(Path(path).read_text(encoding="utf-8"))
    start = max(each["ts"] for each in events if each.get("name") == "model_run")
    nodes = [
        {
            "op": each["args"]["op_name"],
            "provider": each["args"]["provider"],
            "ts": begin + each["ts"],
            "end": begin + each["ts"] + each["dur"],
        }
        for each in events
        if each.get("cat") == "Node" and each["name"].endswith(_SUFFIX) and each["ts"] >= start
    ]
    return sorted(nodes, key=lambda each: each["ts"])


def device_events(path: Path) -> list[tuple[float, str, float]]:
    """What went to the device: when the host asked for it (us), what it was, and how long it took (us)."""
    document = json.loads(path.read_text(encoding="utf-8"))
    trace, base = document["traceEvents"], document.get("baseTimeNanoseconds", 0) / 1e3
    asked = {
        each["args"]["correlation"]: base + each["ts"]
        for each in trace
        if each.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in each.get("args", {})
    }
    kinds = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
    return sorted(
        (asked.get(each["args"]["correlation"], base + each["ts"]), kinds[each["cat"]], each["dur"])
        for each in trace
        if each.get("cat") in kinds
    )


def assigned(nodes: Sequence[Mapping[str, Any]], events: Sequence[tuple[float, str, float]]) -> tuple[float, list[int]]:
    """The number of the node during which each event was asked for, -1 for none; and the share that has one.

    The clocks of the two profilers differ by microseconds: of shifts up to 20 that with which most events have a node.
    """
    starts = [each["ts"] for each in nodes]

    def at(shift: float) -> list[int]:
        found = []
        for ts, _, _ in events:
            i = bisect_right(starts, ts - shift) - 1
            found.append(i if i >= 0 and ts - shift <= nodes[i]["end"] else -1)
        return found

    best = max((sum(i >= 0 for i in at(d * 0.25)), -abs(d), d) for d in range(-80, 81))
    found = at(best[2] * 0.25)
    return sum(i >= 0 for i in found) / max(1, len(found)), found


def boundaries(path: Path, feeds: Mapping[str, Any], wanted: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Kernels, copies and fills of one run, and of each operator."""
    made = Bound(path, feeds, wanted, profile=folder / f"{path.stem}.profile")
    for _ in range(4):
        made.run()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        made.run()
        torch.cuda.synchronize()
    trace = folder / f"{path.stem}.trace.json"
    seen.export_chrome_trace(str(trace))
    begin = made.session.get_profiling_start_time_ns() / 1e3
    nodes, events = node_events(made.session.end_profiling(), begin), device_events(trace)
    trace.unlink()
    share, where = assigned(nodes, events)
    per: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        per[node["op"]]["nodes"] += 1
        per[node["op"]]["on_cpu"] += node["provider"] == "CPUExecutionProvider"
    device: defaultdict[str, float] = defaultdict(float)
    for i, (_, kind, spent) in zip(where, events, strict=True):
        op = nodes[i]["op"] if i >= 0 else "(none)"
        per[op][kind] += 1
        device[op] += spent
    total = Counter(kind for _, kind, _ in events)
    return {
        "nodes": len(nodes), "kernels": total["kernel"], "copies": total["copy"], "sets": total["set"],
        "device_us": sum(spent for _, _, spent in events), "assigned": share,
        "operators": {op: dict(counts) | {"device_us": device[op]} for op, counts in sorted(per.items())},
    }  # fmt: skip


def measure(folder: Path, name: str, precision: str, batch: int) -> dict[str, Any]:
    """One network in one precision and batch."""
    path = folder / f"{name}.{precision}.b{batch}.onnx"
    with np.load(folder / f"{name}.b{batch}.npz") as file:
        feeds = {key[3:]: file[key] for key in file.files if key.startswith("in.")}
        wanted = {key[4:]: file[key] for key in file.files if key.startswith("out.")}
    row: dict[str, Any] = {"network": name, "precision": precision, "batch": batch}
    for graph in (False, True):
        label = "graph" if graph else "stream"
        try:
            made = Bound(path, feeds, wanted, graph=graph)
            with alone(folder):
                for _ in range(6):
                    made.run()
                row[f"{label}_ms"] = wall(made.run)
            row |= {f"{label}_error": made.error(wanted), f"{label}_load_ms": made.load_ms}
            del made
        except Exception as problem:  # recorded as failing
            row[f"{label}_failed"] = str(problem)[:600]
    try:
        row["boundaries"] = boundaries(path, feeds, wanted, folder)
    except Exception as problem:  # recorded as failing
        row["boundaries_failed"] = repr(problem)[:600]
    return row


def main() -> None:
    """Measure and write, anew after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--precisions", nargs="+", default=["f16", "f32"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--until", type=float, default=float("inf"), help="no new row after this time (seconds, epoch)")
    asked = parser.parse_args()
    torch.zeros(1, device="cuda")
    rows: list[dict[str, Any]] = []
    for precision in asked.precisions:
        for batch in asked.batches:
            for name in asked.names:
                if time.time() > asked.until:
                    sys.stderr.write(f"{name} {precision} b{batch}: out of time\n")
                    continue
                row = measure(asked.folder, name, precision, batch)
                rows.append(row)
                asked.out.write_text(
                    json.dumps({"runtime": ort.__version__, "pid": os.getpid(), "rows": rows}, indent=1)
                )
                sys.stderr.write(_line(row))


def _line(row: Mapping[str, Any]) -> str:
    times = " ".join(
        f"{label} {row[f'{label}_ms']['min']:.3f}/{row[f'{label}_ms']['median']:.3f} err {row[f'{label}_error']:.1e}"
        if f"{label}_ms" in row else f"{label} FAILED {row.get(f'{label}_failed', '')[:160]}"
        for label in ("stream", "graph")
    )  # fmt: skip
    b = row.get("boundaries", {})
    counts = {k: round(b.get(k, 0), 2) for k in ("nodes", "kernels", "copies", "sets", "device_us", "assigned")}
    tail = row.get("boundaries_failed", "")
    return f"{row['network']} {row['precision']} b{row['batch']}: {times} {counts} {tail}\n"


if __name__ == "__main__":
    main()
