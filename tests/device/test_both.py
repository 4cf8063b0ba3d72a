"""One library with kernels for GPUs and for CPUs: which of them a session gets, and that they give the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from onnxfuse.build.nvrtc import libraries
from onnxfuse.render.ort_glue import Variant, registration
from onnxfuse.target import targets_of
from tests.device.built import Built, built_layer
from tests.kernels.pool_host import compiler
from tests.threads.driver_mock import ON_HOST, Ran

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
CPU = targets_of(())[0].name
BODIES = "function bodies run instead of the kernels"
OTHERS = [each for each in onnxruntime.get_available_providers() if each != "CPUExecutionProvider"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return built_layer(tmp_path_factory.mktemp("both"), ("sm_80", CPU))


def ran(built: Built, tmp_path: Path, **how: Any) -> tuple[Ran, int]:
    """A run, and how often the driver launched something."""
    made = built.ran(tmp_path, **how)
    assert not [c for c in made.calls if c.startswith("refused")]
    return made, len([c for c in made.calls if c.startswith("launch")])


def test_all_groups_have_kernels_for_the_cpu_that_were_verified(built: Built) -> None:
    verify = built.result.verify
    assert verify is not None and verify.ok and verify.targets == (CPU,)
    assert built.result.targets == ("sm_80", "compute_80", CPU)
    assert any("not verified: kernels for sm_80" in note for note in built.result.notes)


def test_a_gpu_is_preferred(built: Built, tmp_path: Path) -> None:
    made, launches = ran(built, tmp_path, DRIVER_CAPABILITY="80", **ON_HOST)
    assert made.status == "kernels for sm_80" and launches > 0


def test_the_cpu_s_kernels_run_without_a_driver(built: Built, tmp_path: Path) -> None:
    made, launches = ran(built, tmp_path, driver=False)
    assert made.status == f"kernels for {CPU}" and launches == 0


@pytest.mark.parametrize("environment", [{"DRIVER_DEVICES": "0"}, {"DRIVER_VERSION": "12040"}], ids=str)
def test_the_cpu_s_kernels_run_where_the_provider_has_no_device(
    built: Built, tmp_path: Path, environment: dict[str, str]
) -> None:
    made, launches = ran(built, tmp_path, **ON_HOST, **environment)
    assert made.status == f"kernels for {CPU}" and launches == 0


def test_bodies_run_on_a_gpu_that_there_is_no_code_for(built: Built, tmp_path: Path) -> None:
    """Kernels of the CPU would take nodes from it, with a copy there and one back."""
    made, launches = ran(built, tmp_path, DRIVER_CAPABILITY="75", **ON_HOST)
    assert made.status.startswith(BODIES) and launches == 0


@pytest.mark.skipif(not OTHERS, reason="this runtime has one provider only")
def test_a_session_without_the_gpu_s_provider_gets_the_cpu_s_kernels(built: Built, tmp_path: Path) -> None:
    """Both are registered for the same operators; the session of this test has the CPU's provider alone."""
    made, launches = ran(built, tmp_path, ONNXFUSE_CUDA_PROVIDER=OTHERS[0], DRIVER_CAPABILITY="80")
    assert made.status == f"kernels for sm_80, {CPU} in sessions without {OTHERS[0]}" and launches == 0


@pytest.mark.parametrize(("allowed", "status"), [("sm_80", "kernels for sm_80"), (CPU, f"kernels for {CPU}")])
def test_the_environment_allows_one_of_them(built: Built, tmp_path: Path, allowed: str, status: str) -> None:
    made, launches = ran(built, tmp_path, ONNXFUSE_ISA=allowed, DRIVER_CAPABILITY="80", **ON_HOST)
    assert made.status == status and (launches > 0) == (allowed == "sm_80")


def test_a_kernel_may_be_missing_for_one_of_them() -> None:
    text, _ = registration("d", [Variant("sm_80", ("a", "b"), (), 80), Variant("generic", ("c", None), ())])
    assert "nullptr" in text.text and "onnxfuse::Op ops[4]" in text.text and "onnxfuse_None" not in text.text
