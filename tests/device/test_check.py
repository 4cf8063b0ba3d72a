"""The GPU check, with the emulator instead of a device, and with a driver without devices.

Whoever has a GPU runs scripts/gpu_check.sh; here it has to come through, to find what is planted, and to ask of a
driver what a driver takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks.gpu import bandwidth, check
from benchmarks.gpu.networks import full, prepare
from onnxfuse.build.nvrtc import libraries
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.gpu import symbol_of
from onnxfuse.render.cuda import device_text
from tests.craft.sources import ROOT
from tests.device.checks import Checks, checks_over
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads import driver_mock
from tests.threads.driver_mock import HERE
from tests.threads.emulator import compiled, library_of
from tests.threads.layer import layer
from tests.threads.scheduled import kernel_of, name_of, scheduled

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
EVERY = 200  # one of so many kernels, and one network


def test_the_script_comes_through_with_the_emulator(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    env = {**os.environ, "PYTHON": sys.executable, "RESULT": str(result), "EVERY": str(EVERY)}
    command = ["bash", str(ROOT / "scripts" / "gpu_check.sh"), "--emulated", "facts", "kernels"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    others = ("models", "times", "bandwidth", "full", "compile")
    assert check.main([str(result), *others, "--emulated", "--every", str(EVERY)]) == 0
    found = json.loads(result.read_text())
    assert found["facts"]["device"] == "emulator"
    assert found["kernels"]["ran"] >= 4 and found["kernels"]["wrong"] == []
    assert found["models"]["networks"]["tiny-bert"]["ok"]
    assert all("nothing is timed" in found[part]["skipped"] for part in ("times", "bandwidth", "full"))
    assert "skipped" in found["compile"]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for the driver."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.so.1").symlink_to(compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",)))
    return folder


def test_kernels_run_through_a_driver_and_a_launch_that_is_lost_is_found(driver: Path, tmp_path: Path) -> None:
    """One of them, that is: all others come right."""
    made = {name_of(c): kernel for c in check.cases()[::EVERY] if isinstance(kernel := scheduled(c), Kernel)}
    result = tmp_path / "result.json"
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "DRIVER_KERNELS": str(compiled(made))}
    command = [sys.executable, "-m", "benchmarks.gpu.check", str(result), "facts", "kernels", "--every", str(EVERY)]
    command += ["--workers", "1"]
    done = subprocess.run(
        command,
        env={**env, "DRIVER_LOSES": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(result.read_text())
    assert found["facts"]["device"] == "no device" and found["facts"]["driver"] == 13000
    assert found["kernels"]["ran"] == len(made) > 3
    assert len(found["kernels"]["wrong"]) == 1
    assert len(found["kernels"]["right"]) == len(made) - 1


@pytest.fixture(scope="module")
def checks(driver: Path) -> Iterator[Checks]:
    with checks_over(driver) as found:
        yield found


def checked(checks: Checks, result: Path, kernels: Path, *arguments: str) -> dict[str, Any]:
    """What parts of the check found, over the stand-in for the driver."""
    code, said, found = checks.run(result, kernels, *arguments)
    assert code == 0, said
    return found


def test_kernels_are_timed_by_events(checks: Checks, tmp_path: Path) -> None:
    every, megabytes = 19, 0.1
    made = list(bandwidth.cases(int(megabytes * 1e6)))[::every]
    texts = {symbol_of(k): device_text(k, symbol_of(k)) for k in map(kernel_of, made)}
    text = "".join(texts.values()) + bandwidth.EMPTY
    arguments = ("bandwidth", "--every", str(every), "--megabytes", str(megabytes))
    found = checked(checks, tmp_path / "result.json", library_of(text, "bandwidth"), *arguments)["bandwidth"]
    assert {*found["fractions"]} == {c.name for c in made} and len(made) >= 3
    assert all(share > 0 for share in found["fractions"].values())
    assert (
        found["copy_gbps"] > 0
        and min(found["boundary_us"], found["graph_boundary_us"]) > 0
        and found["out_of_time"] == 0
    )


def test_networks_of_full_size_are_compared_and_timed_and_found_again(checks: Checks, tmp_path: Path) -> None:
    packs, reference = tmp_path / "packs", tmp_path / "layer.onnx"
    packs.mkdir()
    onnx.save(prepare.compressible(layer()), reference)
    options, texts = {"cuda_graph": True, "overwrite": True}, []
    for precision, path in (("f32", reference), ("f16", full.halved(reference, tmp_path))):
        texts.append(driver_mock.optimized(path, tmp_path / "made.onnx", ("sm_90",), **options)[1])
        prepare.pack(reference, precision, packs / f"layer.{precision}.b1.tar.xz", ("sm_90",))
    arguments = ("full", "--models", str(packs))
    found = checked(checks, tmp_path / "result.json", library_of("".join(texts), "full"), *arguments)["full"]
    assert found["ok"] and found["out_of_time"] == 0
    assert {*found["networks"]} == {"layer f16 b1", "layer f32 b1"}
    for entry in found["networks"].values():
        assert entry["nodes"] > 0 and {*entry["ratio"]} == {"stream", "graph", "plain"}
        assert entry["after"]["stream_error"] < 0.01 and entry["after"]["stream_ms"] > 0
    again = checked(checks, tmp_path / "result.json", tmp_path / "none", *arguments)["full"]
    assert again["networks"] == found["networks"], "what was found is not run again"
