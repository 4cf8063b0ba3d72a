"""What the driver loads: cubins of this and of another architecture, PTX, fat binaries; and what they hold.

python -m benchmarks.gpu.images OUT.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes import c_longlong
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.driver import (
    COOPERATIVE,
    DEPENDENT,
    LOCAL_BYTES,
    REGISTERS,
    SHARED_BYTES,
    Compiler,
    CudaError,
    Driver,
    pointer,
)  # fmt: skip
from benchmarks.gpu.rows import SOURCE, Choice, Data

CHOICE = Choice(op=0, half=1, n=1024, tpr=32, threads=128, rows=1)
ARCHES = ("sm_90", "sm_90a", "sm_80", "sm_89", "compute_80", "compute_90", "compute_75")


def tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What it says, or why it failed."""
    begin = time.perf_counter()
    try:
        return work() | {"total_ms": (time.perf_counter() - begin) * 1e3}
    except (CudaError, OSError, subprocess.CalledProcessError) as problem:
        return {"failed": str(problem)}


def run(driver: Driver, image: bytes, attributes: tuple[int, ...] = (), library: bool = False) -> dict[str, Any]:
    """Load, launch, check."""
    data = Data(1, CHOICE.n, 512)
    begin = time.perf_counter()
    function = (driver.load_library if library else driver.load)(image)
    loaded = (time.perf_counter() - begin) * 1e3
    values = [pointer(each) for each in (*data.inputs, data.y)]
    grid = CHOICE.grid(data.rows)
    launch = function.launcher(
        grid, CHOICE.threads, CHOICE.shared, *values, c_longlong(data.rows), attributes=attributes
    )
    data.y.fill_(float("nan"))
    launch(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    facts = {"load_ms": loaded, "error": data.error(0, data.y), "bytes": len(image)}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch(torch.cuda.current_stream().cuda_stream)
    data.y.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    facts["captured_error"] = data.error(0, data.y)
    names = {"registers": REGISTERS, "spilled": LOCAL_BYTES, "static_shared": SHARED_BYTES}
    return facts | {name: function.attribute(which) for name, which in names.items()}


def fat(compiler: Compiler, *arches: str) -> bytes:
    """What nvcc's fatbinary tool makes of NVRTC's images."""
    tool = shutil.which("fatbinary") or "/usr/local/cuda/bin/fatbinary"
    with tempfile.TemporaryDirectory() as folder:
        images = []
        for arch in arches:
            ptx = arch.startswith("compute_")
            path = Path(folder, f"{arch}.{'ptx' if ptx else 'cubin'}")
            path.write_bytes(compiler.compile(SOURCE, arch, CHOICE.defines)[0].rstrip(b"\0" if ptx else b""))
            images.append(f"--image3=kind={'ptx' if ptx else 'elf'},sm={arch.split('_')[1]},file={path}")
        out = Path(folder, "fat")
        subprocess.run([tool, "-64", f"--create={out}", *images], check=True, capture_output=True)
        return out.read_bytes()


def main() -> None:
    """Try each and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    torch.zeros(1, device="cuda")
    compiler, driver = Compiler(), Driver()
    result: dict[str, Any] = {"driver": driver.version, "nvrtc": compiler.version}
    for arch in ARCHES:
        begin = time.perf_counter()
        try:
            image = compiler.compile(SOURCE, arch, CHOICE.defines)[0]
        except CudaError as problem:
            result[arch] = {"failed": str(problem)}
            continue
        spent = (time.perf_counter() - begin) * 1e3
        result[arch] = {"compile_ms": spent} | tried(lambda image=image: run(driver, image))
    cubin = compiler.compile(SOURCE, "sm_90", CHOICE.defines)[0]
    result["sm_90 by cuLibraryLoadData"] = tried(lambda: run(driver, cubin, library=True))
    result["cooperative"] = tried(lambda: run(driver, cubin, (COOPERATIVE,)))
    result["dependent"] = tried(lambda: run(driver, cubin, (DEPENDENT,)))
    for arches in (("sm_80", "sm_90", "compute_80"), ("sm_80", "compute_80"), ("sm_80", "sm_100")):
        result["fat " + " ".join(arches)] = tried(lambda arches=arches: run(driver, fat(compiler, *arches)))
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stderr.writelines(f"{name}: {value}\n" for name, value in result.items())


if __name__ == "__main__":
    main()
