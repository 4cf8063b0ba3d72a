"""What Hopper's wgmma does: layouts of shared memory, fences, and times of products that it multiplies.

    python -m benchmarks.gpu.wgmma --prepare
    python -m benchmarks.gpu.wgmma RESULT.json

The first command needs no device: it compiles all kernels for sm_90a into the file .cache/gpu-wgmma/pack.xz, which
the second one takes. Parts run in processes of their own, since a fault leaves a context unusable; each has a limit of
time.

`layouts`: images of shared memory that the host lays out as the PTX manual says are multiplied by the identity, so
that where each element comes from is read out, for every descriptor that might be right. `fences`: how often sums are
of what was in shared memory before, with and without a fence of the proxy. `pipeline`: kernels whose threads copy
(`cp.async`). `bulk`: kernels whose copy engine does (TMA). `torch`: the library's products in the same shapes.
`generated`: products with bias and GELU as `optimize --arch sm_90a` makes them (`generated.py`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.gpu.driver import CudaError
from benchmarks.gpu.wgmma import generated
from benchmarks.gpu.wgmma.here import Here
from benchmarks.gpu.wgmma.kernels import Row, prepare
from benchmarks.gpu.wgmma.layouts import layouts
from benchmarks.gpu.wgmma.times import MORE, SHAPES, fences, timed

PARTS = {"layouts": 12.0, "fences": 8.0, "pipeline": 25.0, "bulk": 15.0, "torch": 25.0, "generated": 40.0}  # seconds
WRONG = 2e-3  # relative L2 of a product


def rows_of(name: str, here: Here) -> Iterator[tuple[str, Row]]:
    """What a part finds out."""
    if name == "layouts":
        return layouts(here)
    if name == "generated":
        return generated.timed_generated(here)
    return fences(here) if name == "fences" else timed(here, bulk=name == "bulk")


def part(name: str) -> None:
    """One part, as lines of JSON."""
    try:
        for label, row in rows_of(name, Here()):
            sys.stdout.write(json.dumps([label, row]) + "\n")
            sys.stdout.flush()
    except (CudaError, RuntimeError, OSError) as problem:
        sys.stdout.write(json.dumps(["problem", {"problem": f"{type(problem).__name__}: {problem}"}]) + "\n")


def measured(name: str, limit: float) -> Row:
    """The rows of a part, as far as it came in time."""
    begin = time.monotonic()
    module = ["benchmarks.gpu.wgmma.library"] if name == "torch" else ["benchmarks.gpu.wgmma", "--part", name]
    process = subprocess.Popen(
        [sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, errors = process.communicate(timeout=limit)
        ended = f"code {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        ended = "out of time"
    rows = dict(json.loads(line) for line in out.splitlines() if line.endswith("]"))
    seconds = round(time.monotonic() - begin, 1)
    return {"seconds": seconds, "ended": ended, "errors": errors[-1500:], "rows": rows}


def table(result: Mapping[str, Row]) -> Iterator[str]:
    """All that was found, and the best kernels of each shape beside the library's."""

    def rows(name: str) -> Row:
        found: Row = result.get(name, {}).get("rows", {})
        return found

    for name in ("layouts", "fences"):
        yield from (f"{label}: {json.dumps(row)[:300]}" for label, row in rows(name).items())
    for shape in (f"{m} x {k} x {n}" for m, k, n in (*SHAPES, *MORE)):
        theirs = {name: round(us, 2) for name, us in rows("torch").get(shape, {}).items()}
        yield f"{shape}: library {theirs}"
        for name in ("pipeline", "bulk", "generated"):
            mine = [
                (row["us"], label, row["error"]) for label, row in rows(name).items() if label.startswith(f"{shape}:")
            ]
            yield from (f"  {us:7.2f} {error:.1e} {label.split(': ')[1]}" for us, label, error in sorted(mine)[:5])
            yield from (f"  {us:7.2f} a kernel behind" for us, label, _ in mine if label.endswith("behind"))
    for name in ("pipeline", "bulk", "generated"):
        wrong = [f"{label} {row}" for label, row in rows(name).items() if row.get("error", 0) > WRONG]
        yield from (f"wrong in {name}: {len(wrong)}", *wrong[:8])
    for name, row in result.items():
        yield f"{name}: {row['seconds']} s, {row['ended']}, {len(row['rows'])} rows {row['rows'].get('problem', '')}"
        yield row["errors"][-400:]


def main() -> None:
    """Prepare, or measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--prepare", action="store_true", help="compile all kernels")
    parser.add_argument("--part", choices=PARTS, help="one part, as lines of JSON")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="these parts")
    asked = parser.parse_args()
    if asked.prepare:
        prepare()
        generated.prepare()
    elif asked.part:
        part(asked.part)
    elif asked.result:
        result: dict[str, Row] = {}
        for name in asked.only:
            result[name] = measured(name, PARTS[name])
            asked.result.write_text(json.dumps(result, indent=0) + "\n", encoding="utf-8")
        sys.stdout.writelines(f"{line}\n" for line in table(result))


if __name__ == "__main__":
    main()
