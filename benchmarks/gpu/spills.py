"""What kernels of networks take of each GPU, by the compiler's own word: registers, and bytes that are spilled.

`python -m benchmarks.gpu.spills MODEL.onnx ...` prints a table: each network is built for all architectures, in float32
and in float16, which needs neither a GPU nor a driver.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.boundaries import table
from benchmarks.gpu.networks.full import halved
from onnxfuse.pipeline.run import optimize
from onnxfuse.target import GPUS

ARCHS = tuple(reversed(GPUS))
HEAD = f"| network | type | functions | {' | '.join(ARCHS)} |\n| --- | --- | ---: {'| ---: ' * len(ARCHS)}|\n"


def functions(path: Path, folder: Path) -> list[Mapping[str, Any]]:
    """The functions of a network's kernels on all architectures, as the manifest lists them."""
    given = {"target": "cuda", "arch": ARCHS, "cuda_graph": True, "verify": False, "gain": False, "overwrite": True}
    optimize(path, folder / "made.onnx", **given)
    found: list[Mapping[str, Any]] = json.loads((folder / "made.fuse.json").read_text())["build"]["functions"]
    return found


def row(path: Path) -> str:
    """The lines of a network: of each architecture the most registers of a thread, and bytes that functions spill."""
    lines = ""
    for precision in ("f32", "f16"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            found = functions(halved(path, folder) if precision == "f16" else path, folder)
        cells = []
        for arch in ARCHS:
            mine = [f for f in found if f["target"] == arch]
            cells.append(f"{max(f['registers'] for f in mine)}, {sum(f['spills'] for f in mine)}")
            for f in (f for f in mine if f["spills"]):
                sys.stderr.write(f"{path.stem} {precision} {arch} {f}\n")
        lines += f"| {path.stem} | {precision} | {len(mine)} | {' | '.join(cells)} |\n"
    return lines


if __name__ == "__main__":
    table(HEAD, row, sys.argv[1:])
