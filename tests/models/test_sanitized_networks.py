"""All kernels of the small networks run in the stock runtime under AddressSanitizer and UBSan: no report."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.backends.cpu import schedule
from onnxfuse.backends.row import ScheduleRequest
from onnxfuse.build import BuildRequest, Library, build_library
from onnxfuse.build.toolchain import Toolchain, find_toolchain
from onnxfuse.errors import ToolchainError
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.kernel import Kernel
from onnxfuse.runtime.engine import open_session, options, run
from onnxfuse.target import CPUS, Target
from onnxfuse.verify.compare import FLOORS, distance
from tests.calls import on_cpu
from tests.models.fused import ROOT, built, feeds_of
from tests.sanitizers import sanitizer_env

CHILD = Path(__file__).resolve().with_name("sanitized_child.py")
GENERIC = CPUS["generic"]
NETWORKS = ("tiny-bert.dynamic", "tiny-resnet.decomposed")
LONG = (
    "tiny-bert",
    "tiny-bert.decomposed",
    "tiny-resnet",
    "tiny-resnet.dynamic",
    "tiny-mobilenet",
    "tiny-mobilenet.decomposed",
)


@pytest.fixture(scope="module")
def gcc() -> Toolchain:
    try:
        return find_toolchain("gcc")
    except ToolchainError as problem:
        pytest.skip(problem.message)


def short(request: ScheduleRequest, _: Target, **named: Any) -> Kernel | Decision:
    """Kernels for the baseline: sanitizers do not see the masked loads and stores of wider machines."""
    return schedule(request, GENERIC, **named)


def sanitized(request: BuildRequest) -> Library:
    """A library of such kernels."""
    baseline = [replace(source, flags=GENERIC.compiled) for source in request.sources]
    return build_library(replace(request, sources=baseline, sanitize=True))


CALLS = on_cpu(schedule=short, build_library=sanitized)


@pytest.mark.parametrize("name", [*NETWORKS, *(pytest.param(n, marks=pytest.mark.slow) for n in LONG)])
def test_a_network_runs_without_a_sanitizer_report(gcc: Toolchain, name: str, tmp_path: Path) -> None:
    made = built(name, tmp_path, calls=CALLS, toolchain="gcc")
    sets = feeds_of(made.row)
    paths = [tmp_path / f"{number}.npz" for number in range(len(sets))]
    for path, feeds in zip(paths, sets, strict=True):
        np.savez(path, **feeds)
    runs = [f"{made.fused}={made.library}={path}" for path in paths]
    env = {**os.environ, **sanitizer_env(gcc), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(CHILD), *runs], env=env, cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    plain = open_session(str(made.original), options(optimize=False))
    for path, feeds in zip(paths, sets, strict=True):
        with np.load(f"{path}.out.npz") as file:
            found = [file[key] for key in file.files]
        errors = [distance(a, b).error for a, b in zip(run(plain, feeds), found, strict=True)]
        assert max(errors) <= FLOORS["float32"]
