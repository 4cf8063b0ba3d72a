"""A library for GPUs from end to end: built for several architectures, and run over a driver that has no device.

The model is optimized as a user does it, and ONNX Runtime loads the result. Where the driver says that it has a device,
kernels are launched as they are in the CUDA provider, and run as host code; where it has none that the library is for,
function bodies run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models.small.swin import swin
from onnxfuse.build.nvrtc import libraries
from tests.device.built import Built, built_layer
from tests.kernels.pool_host import compiler
from tests.threads import driver_mock
from tests.threads.driver_mock import HERE, ON_HOST

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]

BODIES = "function bodies run instead of the kernels"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built_layer(tmp_path_factory.mktemp("gpu"), ("sm_80", "sm_90"))


def test_kernels_run_on_the_stream_and_give_the_same(built: Built, tmp_path: Path) -> None:
    made = built.ran(tmp_path, **ON_HOST)
    assert made.status == "kernels for sm_90"
    assert not [c for c in made.calls if c.startswith("refused")]
    launches = [c for c in made.calls if c.startswith("launch")]
    assert len(launches) == 2 * sum(g.phases for g in built.result.groups)


def test_nothing_is_loaded_once_sessions_are_made(built: Built, tmp_path: Path) -> None:
    calls = [c.split()[0] for c in built.ran(tmp_path, **ON_HOST).calls]
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
    made = built.ran(tmp_path, DRIVER_CAPABILITY=str(capability), **ON_HOST)
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
    made = built.ran(tmp_path, **ON_HOST, **environment)
    assert made.status.startswith(BODIES)
    assert not [c for c in made.calls if c.startswith(("load", "launch"))]


def test_bodies_run_without_a_driver(built: Built, tmp_path: Path) -> None:
    made = built.ran(tmp_path, driver=False, **ON_HOST)
    assert made.status.startswith(BODIES)


def test_bodies_run_where_the_runtime_has_no_such_provider(built: Built, tmp_path: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this runtime has the provider")
    made = built.ran(tmp_path)
    assert made.status == f"{BODIES}: this runtime has no CUDAExecutionProvider"


def test_neighbourhoods_and_attention_are_a_kernel_each_and_other_products_the_runtime_s(built: Built) -> None:
    ops = [set(g.ops) for g in built.result.groups]
    for wanted in ({"MatMul", "Add", "Softmax"}, {"Add", "LayerNormalization"}, {"Add", "Erf", "Mul"}):
        assert any(wanted <= o for o in ops), wanted
    multiplying = [g.ops for g in built.result.groups if {"MatMul", "Gemm"} & set(g.ops)]
    assert [list(o).count("MatMul") for o in multiplying] == [2], "an attention has its two products, nobody else any"
    assert all(g.phases == 1 for g in built.result.groups)
    refused = {r.code for r in built.result.refusals if "left to ONNX Runtime on GPUs" in r.reason}
    assert refused == {"E-NO-KERNEL"}, "the number of rows is a symbol: no times are compared"


def test_the_manifest_says_what_each_function_uses(built: Built) -> None:
    manifest = json.loads((built.made.folder / "made.fuse.json").read_text())
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
    env = {**os.environ, "DRIVER_KERNELS": str(built.made.kernels), "LD_LIBRARY_PATH": str(built.made.driver)}
    done = subprocess.run([sys.executable, str(script), what], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "refused", done.stderr


def test_the_memory_of_the_device_is_closed_to_the_host(built: Built) -> None:
    script = HERE / "misuse_child.py"
    env = {**os.environ, "DRIVER_KERNELS": str(built.made.kernels), "LD_LIBRARY_PATH": str(built.made.driver)}
    done = subprocess.run([sys.executable, str(script), "memory"], env=env, capture_output=True, check=False)
    assert done.returncode == -signal.SIGSEGV


def test_windows_of_a_whole_network_run_on_the_stream(tmp_path: Path) -> None:
    """Attention in windows, shifted ones too, is one kernel each, and the network gives the same."""
    model = swin(depths=(2,), widths=(16,), heads=(2,))
    onnx.save(model, tmp_path / "windows.onnx")
    feeds = {"pixel_values": np.random.default_rng(1).normal(size=(1, 3, 40, 40)).astype(np.float32)}
    np.savez(tmp_path / "inputs.npz", **feeds)
    session = onnxruntime.InferenceSession(tmp_path / "windows.onnx", providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    made = driver_mock.built_for_gpus(tmp_path / "windows.onnx", tmp_path, ("sm_80",))
    attentions = [g for g in made.result.groups if list(g.ops).count("MatMul") == 2]
    assert len(attentions) == 2 and all("Softmax" in g.ops and g.phases == 1 for g in attentions)
    found = driver_mock.ran(made, tmp_path / "inputs.npz", tmp_path, DRIVER_CAPABILITY="80", **ON_HOST)
    assert found.status == "kernels for sm_80"
    assert not [c for c in found.calls if c.startswith("refused")]
    for got in found.outputs:
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
