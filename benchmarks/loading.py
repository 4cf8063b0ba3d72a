"""Load time, peak memory and files of models and of what was built of them, each way in processes of its own.

    python -m benchmarks.loading ORIGINAL BUILT [ORIGINAL BUILT ...] [--times 5] [--dim NAME=N ...]

Prints a line for each pair and way: least seconds until a session is there, least peak memory up to the end of its
first run, and bytes of all files.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from onnxfuse.runtime import feed_limits, feeds
from onnxfuse.runtime.engine import open_session, options
from onnxfuse.runtime.memory import Watch

WAYS = ("original", "with the library", "without it")


def child(model: str, libraries: Sequence[str], dims: dict[str, int]) -> None:
    """Loads and runs a model once, and prints seconds and bytes."""
    inputs = feeds.inputs_of(feed_limits.skeleton(Path(model)))
    (values,) = feeds.random_sets(inputs, seed=0, recipe=feeds.TYPICAL, dims=dims)
    with Watch() as watch:
        session = open_session(model, options(libraries=libraries))
        watch.opened()
        watch.timed(lambda: session.run(None, values))
    sys.stdout.write(f"{json.dumps([watch.seconds, watch.peak])}\n")


def measured(model: Path, libraries: Sequence[Path], times: int, dims: Sequence[str]) -> tuple[float, int]:
    """The least seconds and bytes of some processes."""
    given = [part for each in dims for part in ("--dim", each)]
    command = [sys.executable, "-m", "benchmarks.loading", "--child", str(model), *map(str, libraries), *given]
    said = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(times)]
    found = [json.loads(each.splitlines()[-1]) for each in said]
    return min(seconds for seconds, _ in found), min(peak for _, peak in found)


def size(*paths: Path) -> int:
    """Bytes of files, those with external data included."""
    return sum(p.stat().st_size for path in paths for p in (path, path.with_suffix(".data")) if p.exists())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        pairs = (each.split("=") for each in given.dim)
        child(str(given.models[0]), list(map(str, given.models[1:])), {name: int(n) for name, n in pairs})
        return
    sys.stdout.write("| network | | load time | of the original | memory | files | of the original |\n")
    sys.stdout.write("| --- | --- | ---: | ---: | ---: | ---: | ---: |\n")
    for original, built in zip(given.models[::2], given.models[1::2], strict=True):
        library = built.with_name(f"lib{built.stem}.so")
        files = (size(original), size(built) + library.stat().st_size, size(built))
        sides = ((original, []), (built, [library]), (built, []))
        first = 0.0
        for way, (model, libraries), stored in zip(WAYS, sides, files, strict=True):
            seconds, peak = measured(model, libraries, given.times, given.dim)
            first = first or seconds
            name = original.stem if way == WAYS[0] else ""
            figures = f"{seconds:.3f} s | {seconds / first:.2f} | {peak / 1e6:.0f} MB"
            sys.stdout.write(f"| {name} | {way} | {figures} | {stored / 1e6:.1f} MB | {stored / files[0]:.3f} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
