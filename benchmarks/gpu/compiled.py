"""torch.compile on the same networks: all of them are compiled first, then timed one after another.

    python -m benchmarks.gpu.compiled FOLDER OUT.json NAME [--precision f16] [--batches 1 8]

Compiles, writes OUT.json.ready, waits for FOLDER/go, then times with nobody else running.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.build_networks import ARCHITECTURES, PRECISIONS, as_kind
from benchmarks.gpu.runtime import alone, relative, wall


def kernels(call: Any) -> dict[str, float]:
    """Kernels, copies and fills of one call, and the time the device was busy."""
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
    found = [each for each in seen.events() if str(each.device_type).endswith("CUDA")]
    names = [each.name.lower() for each in found]
    others = sum("memcpy" in name or "memset" in name for name in names)
    return {
        "kernels": len(names) - others,
        "copies_sets": others,
        "device_us": sum(e.self_device_time_total for e in found),
    }


def _late(*_: Any) -> None:
    raise TimeoutError("compiling took too long")


def caller(module: Any, feed: tuple[torch.Tensor, ...]) -> Any:
    """A call that waits for its result."""

    def call() -> Any:
        with torch.no_grad():
            result = module(*feed)
        torch.cuda.synchronize()
        return result

    return call


def compile_all(asked: argparse.Namespace, rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Any, Any, Any]]:
    """Of each batch and mode its row, a compiled call, an eager one, the expected output; what fails goes to `rows`."""
    kind = PRECISIONS[asked.precision]
    module = ARCHITECTURES[asked.name].make().eval()
    module.load_state_dict(torch.load(asked.folder / f"{asked.name}.pt"))
    module.to("cuda").to(kind)
    made = []
    signal.signal(signal.SIGALRM, _late)
    for batch, mode in [(batch, "reduce-overhead") for batch in asked.batches] + [(asked.batches[0], "max-autotune")]:
        with np.load(asked.folder / f"{asked.name}.b{batch}.npz") as file:
            given = tuple(torch.tensor(file[key], device="cuda") for key in file.files if key.startswith("in."))
            wanted = next(file[key] for key in file.files if key.startswith("out."))
        row = {"network": asked.name, "precision": asked.precision, "batch": batch, "mode": mode}
        feed = as_kind(given, kind)
        begin = time.monotonic()
        try:
            signal.alarm(max(1, int(asked.until - time.time())))
            call = caller(torch.compile(module, mode=mode, dynamic=False), feed)
            for _ in range(4):
                call()
            made.append((row | {"compile_s": time.monotonic() - begin}, call, caller(module, feed), wanted))
            signal.alarm(0)
        except Exception as problem:  # recorded as failing
            rows.append(row | {"failed": repr(problem)[:600]})
    return made


def timed(row: dict[str, Any], call: Any, eager: Any, wanted: Any) -> dict[str, Any]:
    """Milliseconds, error and kernels of the compiled call, milliseconds of the eager one."""
    for _ in range(5):
        found = call()
    row["compile_ms"] = wall(call)
    row["error"] = relative(found[0] if isinstance(found, tuple) else found, wanted)
    row |= kernels(call)
    eager()
    return row | {"eager_ms": wall(eager, 0.3)}


def main() -> None:
    """Compile, wait, time, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--precision", default="f16")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--until", type=float, default=time.time() + 3600, help="compiling ends then (seconds, epoch)")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = True
    rows: list[dict[str, Any]] = []
    made = compile_all(asked, rows)
    asked.out.with_suffix(".ready").write_text("")
    while not (asked.folder / "go").exists():
        time.sleep(0.1)
    for each in made:
        with alone(asked.folder):
            rows.append(timed(*each))
        row, ms = rows[-1], rows[-1]["compile_ms"]
        sys.stderr.write(
            f"{asked.name} {row['precision']} b{row['batch']}: {ms['min']:.3f}/{ms['median']:.3f} ms {row}\n"
        )
    asked.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
