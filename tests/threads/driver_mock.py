"""A model built for GPUs, and sessions of it over a mock of the CUDA driver: kernels run as host code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.backends import BACKENDS
from onnxfuse.build import BuildRequest, Library
from onnxfuse.build.cuda import architecture
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.run import optimize
from onnxfuse.render.source import Source
from onnxfuse.report.result import Result
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library
from tests.threads.emulator import library_of

HERE = Path(__file__).parent
FILES = {
    "driver": "libcuda.so.1",
    "libraries/cublaslt": "libcublasLt.so.13",
    "libraries/cudnn": "libcudnn.so.9",
}
ON_HOST = {"ONNXFUSE_CUDA_PROVIDER": "CPUExecutionProvider"}


def stand_in(name: str) -> Path:
    """One of these libraries. It is known by the name that it is looked up by: once loaded, it is found anywhere."""
    flags = ("-O1", f"-Wl,-soname,{FILES[name]}")
    return compile_library([HERE / f"{name}.cpp"], CACHE / "threads", flags)


@dataclass(frozen=True)
class Built:
    """An optimized model `made.onnx` in a folder, its kernels for the host, and the folders of driver and libraries."""

    folder: Path
    result: Result
    kernels: Path
    driver: Path
    library: Path


@dataclass(frozen=True)
class Ran:
    """What two runs of a session gave, what the library said of itself, and what the driver was asked for."""

    outputs: Sequence[np.ndarray[Any, Any]]
    status: str
    calls: Sequence[str]


def optimized(model: Path, out: Path, arch: Sequence[str], **options: Any) -> tuple[Result, str]:
    """The model optimized as a user does it, and the text of its kernels."""
    seen: list[Source] = []
    row = BACKENDS["cuda"]

    def build(request: BuildRequest) -> Library:
        seen[:] = request.sources
        return row.build_library(request)

    calls = Calls(backends={**BACKENDS, "cuda": replace(row, build_library=build)})
    given = {"target": "cuda", "arch": tuple(arch), "calls": calls, "cache_dir": str(CACHE), "strict": True}
    result = optimize(model, out, **given | options)
    return result, "".join(s.text for s in seen if architecture(s))


def built_for_gpus(model: Path, folder: Path, arch: Sequence[str], **options: Any) -> Built:
    """The model optimized into a folder that is there."""
    result, text = optimized(model, folder / "made.onnx", arch, **options)
    for name in FILES:
        place = folder / Path(name).parts[0]
        place.mkdir(exist_ok=True)
        (place / FILES[name]).symlink_to(stand_in(name))
    kernels = library_of(text, model.stem.replace("-", "_"))
    return Built(folder, result, kernels, folder / "driver", folder / "libraries")


def ran(
    built: Built, inputs: Path, place: Path, *, driver: bool = True, library: bool = False, **environment: str
) -> Ran:
    """Two runs of a session in a process of its own, on the arrays of an .npz file; what it writes goes to `place`."""
    log, out = place / "calls", place / "out.npz"
    paths = [*([built.driver] if driver else []), *([built.library] if library else [])]
    env: Mapping[str, str] = {
        **os.environ, "LD_LIBRARY_PATH": ":".join(map(str, paths)), "DRIVER_KERNELS": str(built.kernels),
        "DRIVER_LOG": str(log), "PYTHONPATH": str(HERE.parents[1]), **environment,
    }  # fmt: skip
    arguments = (built.folder / "made.onnx", built.folder / "libmade.so", built.result.domain, inputs, out)
    command = [sys.executable, str(HERE / "session_child.py"), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    calls = log.read_text().splitlines() if log.exists() else []
    return Ran([found[name] for name in found.files], json.loads(done.stdout)["status"], calls)
