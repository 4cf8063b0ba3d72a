"""Convolutions whose neighbours are not convolutions against ONNX Runtime: a row for each class, size and threads."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks.networks import optimize
from models.convolutions import models
from onnxfuse.measure.profile import profile_models


def measure(folder: Path, counts: Sequence[int], seconds: float, part: str = "") -> Iterator[dict[str, Any]]:
    """Rows of the classes whose names hold `part`: milliseconds of both engines, and their ratio."""
    for name, (build, sizes) in models().items():
        for size in sizes if part in name else ():
            path = folder / f"{name.replace(' ', '_').replace(',', '')}_{size}.onnx"
            onnx.save(build(size), path)
            ours = optimize(path, path.with_suffix(".fused.onnx"), folder / "cache", "--min-group", "1")
            for count in counts:
                raced = profile_models(
                    [path, ours.model], libraries=[None, ours.library], threads=count, duration=seconds
                )
                theirs, mine = (each.latency_ms.min for each in raced.models)
                yield {"class": name, "size": size, "threads": count, "ms": (theirs, mine), "speedup": theirs / mine}


def main() -> None:
    """Print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="", help="of the names of classes")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=0.5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(Path(folder), asked.threads, asked.seconds, asked.part):
            theirs, mine = row["ms"]
            what = f"{row['class']:40} {row['size']:5} threads {row['threads']}"
            sys.stdout.write(f"{what} {theirs:9.3f} {mine:9.3f} {row['speedup']:6.2f}x\n")


if __name__ == "__main__":
    main()
