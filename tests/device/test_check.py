"""The check of a GPU, with the emulator in place of the device, and with a driver that has none.

Whoever has a GPU runs scripts/gpu_check.sh; here it has to come through, to find what is planted, and to ask of a
driver what a driver takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse.build.nvrtc import libraries
from onnxfuse.ir.kernel import Kernel
from tests.craft.sources import ROOT
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.emulator import compiled
from tests.threads.scheduled import OTHERS, TABLES, name_of, scheduled
from tests.threads.stand_in import HERE

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
EVERY = 200  # one of so many kernels, and one network


def test_the_script_comes_through_with_the_emulator(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    env = {**os.environ, "PYTHON": sys.executable, "RESULT": str(result), "EVERY": str(EVERY)}
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), "--emulated"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(result.read_text())
    assert found["facts"]["device"] == "emulator"
    assert found["kernels"]["ran"] >= 4 and found["kernels"]["wrong"] == []
    assert found["models"]["networks"]["tiny-bert"]["ok"]
    assert "nothing is timed" in found["times"]["skipped"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for the driver."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.so.1").symlink_to(compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",)))
    return folder


@pytest.mark.parametrize("lost", [0, 1])
def test_kernels_run_through_a_driver_and_a_launch_that_is_lost_is_found(
    driver: Path, tmp_path: Path, lost: int
) -> None:
    cases = (*TABLES["rows"], *OTHERS)[::EVERY]
    made = {name_of(c): kernel for c in cases if isinstance(kernel := scheduled(c), Kernel)}
    result = tmp_path / "result.json"
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "DRIVER_KERNELS": str(compiled(made))}
    command = [sys.executable, "-m", "benchmarks.gpu.check", str(result), "facts", "kernels", "--every", str(EVERY)]
    done = subprocess.run(
        command,
        env={**env, "DRIVER_LOSES": str(lost)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == lost, done.stderr
    found = json.loads(result.read_text())
    assert found["facts"]["device"] == "no device" and found["facts"]["driver"] == 13000
    assert found["kernels"]["ran"] == len(made)
    assert len(found["kernels"]["wrong"]) == lost
