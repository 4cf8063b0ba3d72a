"""A library for GPUs from end to end: built for several architectures, and run over a driver that has no device.

The model is optimized as a user does it, and ONNX Runtime loads the result. Where the driver says that it has a device,
kernels are launched as they are in the CUDA provider, and run as host code; where it has none that the library is for,
function bodies run.
"""

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
import onnx
import onnxruntime
import pytest

from onnxfuse.backends import BACKENDS
from onnxfuse.build import Library
from onnxfuse.build.nvrtc import libraries
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.run import optimize
from onnxfuse.render.source import Source
from onnxfuse.report.result import Result
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.emulator import library_of
from tests.threads.layer import ROWS, WIDTH, layer

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]

HERE = Path(__file__).parent
ON_HOST = {"ONNXFUSE_CUDA_PROVIDER": "CPUExecutionProvider"}
BODIES = "function bodies run instead of the kernels"
CALLS = ("init", "retain", "load", "launch", "synchronize", "refused")


@dataclass(frozen=True)
class Built:
    """An optimized model, its kernels for the host, and what it computes."""

    folder: Path
    result: Result
    kernels: Path
    driver: Path
    wanted: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ran:
    """What a session gave, what the library said of itself, and what the driver was asked for."""

    outputs: Sequence[np.ndarray[Any, Any]]
    status: str
    calls: Sequence[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("gpu")
    onnx.save(layer(), folder / "layer.onnx")
    seen: list[Source] = []
    row = BACKENDS["cuda"]

    def build(sources: Sequence[Source], *others: Any, **more: Any) -> Library:
        seen[:] = sources
        return row.build_library(sources, *others, **more)

    calls = Calls(backends={"cuda": replace(row, build_library=build)})
    result = optimize(
        folder / "layer.onnx", folder / "made.onnx", target="cuda", arch=("sm_80", "sm_90"), calls=calls,
        cache_dir=str(CACHE), strict=True,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    feeds = {"x": rng.normal(size=(3, ROWS, WIDTH)), "mask": -np.abs(rng.normal(size=(3, 1, 1, ROWS)))}
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    np.savez(folder / "inputs.npz", **feeds)
    (wanted,) = onnxruntime.InferenceSession(folder / "layer.onnx", providers=["CPUExecutionProvider"]).run(None, feeds)
    (folder / "driver").mkdir()
    made = compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",))
    (folder / "driver" / "libcuda.so.1").symlink_to(made)
    return Built(folder, result, library_of("".join(s.text for s in seen), "layer"), folder / "driver", wanted)


def ran(built: Built, tmp_path: Path, *, driver: bool = True, **environment: str) -> Ran:
    """Two runs of a session in a process of its own."""
    log, out = tmp_path / "calls", tmp_path / "out.npz"
    env: Mapping[str, str] = {
        **os.environ, "LD_LIBRARY_PATH": str(built.driver) if driver else "", "DRIVER_KERNELS": str(built.kernels),
        "DRIVER_LOG": str(log), "PYTHONPATH": str(HERE.parents[1]), **environment,
    }  # fmt: skip
    arguments = (
        built.folder / "made.onnx",
        built.folder / "libmade.so",
        built.result.domain,
        built.folder / "inputs.npz",
    )
    command = [sys.executable, str(HERE / "session_child.py"), *map(str, arguments), str(out)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    calls = log.read_text().splitlines() if log.exists() else []
    return Ran([found[name] for name in found.files], json.loads(done.stdout)["status"], calls)


def assert_right(built: Built, made: Ran) -> None:
    for got in made.outputs:
        np.testing.assert_allclose(got, built.wanted, rtol=1e-5, atol=1e-5)


def test_kernels_run_on_the_stream_and_give_the_same(built: Built, tmp_path: Path) -> None:
    made = ran(built, tmp_path, **ON_HOST)
    assert_right(built, made)
    assert made.status == "kernels for sm_90"
    assert not [c for c in made.calls if c.startswith("refused")]
    launches = [c for c in made.calls if c.startswith("launch")]
    assert len(launches) == 2 * sum(g.phases for g in built.result.groups)


def test_nothing_is_loaded_once_sessions_are_made(built: Built, tmp_path: Path) -> None:
    calls = [c.split()[0] for c in ran(built, tmp_path, **ON_HOST).calls]
    first = calls.index("launch")
    assert {*calls[:first]} == {"init", "retain", "load"}
    assert {*calls[first:]} == {"launch", "synchronize"}


@pytest.mark.parametrize(
    ("capability", "status", "code"),
    [
        (80, "kernels for sm_80", "sm_80"),
        (86, "kernels for sm_80", "sm_80"),
        (90, "kernels for sm_90", "sm_90"),
        (120, "kernels for compute_80", "ptx"),
    ],
)
def test_the_best_code_for_a_device_is_taken(
    built: Built, tmp_path: Path, capability: int, status: str, code: str
) -> None:
    made = ran(built, tmp_path, DRIVER_CAPABILITY=str(capability), **ON_HOST)
    assert_right(built, made)
    assert made.status == status
    assert {c for c in made.calls if c.startswith("load")} == {f"load {code}"}


@pytest.mark.parametrize(
    "environment",
    [
        {"DRIVER_CAPABILITY": "75"},
        {"DRIVER_VERSION": "12040"},
        {"DRIVER_DEVICES": "0"},
        {"ONNXFUSE_ISA": "none"},
    ],
    ids=lambda e: next(iter(e)),
)
def test_bodies_run_where_no_device_is_for_the_library(
    built: Built, tmp_path: Path, environment: dict[str, str]
) -> None:
    made = ran(built, tmp_path, **ON_HOST, **environment)
    assert_right(built, made)
    assert made.status.startswith(BODIES)
    assert not [c for c in made.calls if c.startswith(("load", "launch"))]


def test_bodies_run_without_a_driver(built: Built, tmp_path: Path) -> None:
    made = ran(built, tmp_path, driver=False, **ON_HOST)
    assert_right(built, made)
    assert made.status.startswith(BODIES)


def test_bodies_run_where_the_runtime_has_no_such_provider(built: Built, tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this runtime has the provider")
    made = ran(built, tmp_path)
    assert_right(built, made)
    assert made.status == f"{BODIES}: this runtime has no CUDAExecutionProvider"


def test_neighbourhoods_are_a_kernel_each_and_products_are_the_runtime_s(built: Built) -> None:
    ops = [set(g.ops) for g in built.result.groups]
    assert not any(o & {"MatMul", "Gemm"} for o in ops)
    for wanted in ({"Add", "Softmax"}, {"Add", "LayerNormalization"}, {"Add", "Erf", "Mul"}):
        assert any(wanted <= o for o in ops), wanted
    assert all(g.phases == 1 for g in built.result.groups)
    refused = {r.code for r in built.result.refusals if "multiplies" in r.reason}
    assert refused == {"E-NO-KERNEL"}


def test_the_manifest_says_what_each_function_uses(built: Built) -> None:
    manifest = json.loads((built.folder / "made.fuse.json").read_text())
    functions = manifest["build"]["functions"]
    assert {f["target"] for f in functions} == {"sm_80", "sm_90"}
    assert all(f["spills"] == 0 and f["stack"] == 0 and 0 < f["registers"] <= 128 for f in functions)


def test_a_result_is_not_called_verified(built: Built) -> None:
    assert built.result.verify is not None
    assert built.result.verify.ok is None
    assert "function bodies are right" in built.result.verify.message


@pytest.mark.parametrize("what", ["threads", "shared", "unloaded"])
def test_the_driver_refuses_what_a_device_would(built: Built, tmp_path: Path, what: str) -> None:
    """The stand-in for the driver is no better than it says: what no device runs, it does not."""
    script = HERE / "misuse_child.py"
    env = {**os.environ, "DRIVER_KERNELS": str(built.kernels), "LD_LIBRARY_PATH": str(built.driver)}
    done = subprocess.run([sys.executable, str(script), what], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "refused", done.stderr
