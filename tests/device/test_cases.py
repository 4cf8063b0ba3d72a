"""Cases of the GPU check in processes of their own, with what was made beforehand, and under a sanitizer's stand-in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.cases import images_cache, kept, sanitize, workers
from benchmarks.gpu.cases.workers import LOST, RIGHT, Setup, StartError, Worker, outcomes
from onnxfuse.build.nvrtc import libraries
from onnxfuse.ir.kernel import Kernel
from onnxfuse.target import GPUS
from tests.device.checks import Checks, checks_over
from tests.kernels.compiled import Case, fed
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compile_library, compiler
from tests.threads.driver_mock import HERE
from tests.threads.emulator import compiled
from tests.threads.scheduled import kernel_of, name_of, scheduled

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
EVERY = 200
SANITIZER = """#!/bin/sh
# A tool that finds something in the function of the second case, and ends where it is told to.
echo "========= COMPUTE-SANITIZER"
while [ "$1" != -u ]; do last=$1; shift; done
"$last" "$@"
echo "========= Invalid __global__ read of size 4 bytes"
echo "=========     at gpu_$FOUND""_0+0x120"
echo "========= "
echo "========= ERROR SUMMARY: 1 error"
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for the driver."""
    folder = tmp_path_factory.mktemp("driver")
    (folder / "libcuda.so.1").symlink_to(compile_library([HERE / "driver.cpp"], CACHE / "threads", ("-O1",)))
    return folder


def chosen() -> list[Case]:
    """The cases that have a kernel here."""
    return [c for c in kept.cases()[::EVERY] if isinstance(scheduled(c), Kernel)]


@pytest.fixture(scope="module")
def checks(driver: Path) -> Iterator[Checks]:
    with checks_over(driver) as found:
        yield found


def checked(checks: Checks, result: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """What the check found over the stand-in for the driver, right or not."""
    kernels = compiled({name_of(c): kernel_of(c) for c in chosen()})
    _, said, found = checks.run(result, kernels, *arguments, "--every", str(EVERY), **environment)
    assert found, said
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images and outputs of the cases here."""
    folder = tmp_path_factory.mktemp("kept")
    arguments = ["images", "emulated", "--folder", str(folder / "made"), "--every", str(EVERY), "--megabytes", "0.1"]
    assert kept.main([str(folder / "kept.tar.xz"), *arguments]) == 0
    return folder / "kept.tar.xz"


def test_what_was_made_beforehand_is_found(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept.unpacked(file, tmp_path)
    monkeypatch.setattr(images_cache, "unspilled", None)
    monkeypatch.setattr(kept.emulator, "run", None)
    for case in chosen():
        kernel = kernel_of(case)
        assert made.compiled(kept.device_text(kernel, name_of(case)), GPUS["sm_90"].flags).code[:4] == b"\x7fELF"
        inputs = fed(kernel, case, 0)
        outputs = made.emulated(case, kernel, inputs)
        assert outputs is not None and len(outputs) == len(kernel.outputs)
        assert made.emulated(case, kernel, [a + 1 for a in inputs]) is None, "of other inputs"
    assert made.compiled(kept.bandwidth_texts(0.1)[1], GPUS["sm_90"].flags).code


def test_cases_go_on_behind_one_that_faults(checks: Checks, file: Path, tmp_path: Path) -> None:
    """Each process of the stand-in faults at its second launch: the first case of each is right."""
    arguments = ("kernels", "--workers", "1", "--kept", str(file))
    found = checked(checks, tmp_path / "result.json", *arguments, DRIVER_FAULT="2")["kernels"]
    assert found["ran"] == len(chosen()) and found["out_of_time"] == 0
    assert len(found["right"]) >= 2 <= len(found["wrong"])
    assert {each["kind"] for each in found["wrong"]} == {LOST}
    again = checked(checks, tmp_path / "result.json", *arguments)["kernels"]
    assert again["wrong"] == [] and again["ok"] and len(again["right"]) == len(chosen())
    assert again["compared_with_emulator"] == len(chosen())


def test_a_process_that_ends_or_does_not_answer_is_replaced() -> None:
    names = [case.name for case in chosen()[:2]]
    worker = Worker(Setup(emulated=True, few=tuple(names), fault=names[0]), 600)
    try:
        assert worker.run(names[0]).kind == LOST
        assert worker.run(names[1]).kind == RIGHT
    finally:
        worker.close()
    slow = Worker(Setup(emulated=True, few=tuple(names)), 0)
    try:
        assert "no answer" in slow.run(names[0]).problem
        assert slow.run(names[1]).kind == LOST
    finally:
        slow.close()


def test_a_device_that_is_not_there_is_said() -> None:
    names = [case.name for case in chosen()]
    with pytest.raises(StartError, match="no process is ready: .*libcuda"):
        list(outcomes(Setup(), names, 2, 10, lambda: False))


def test_errors_of_a_sanitizer_are_told_by_case(
    checks: Checks, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = checked(checks, tmp_path / "result.json", "sanitize", "--kept", str(file), FOUND="softmax_rows")["sanitize"]
    assert {*found["tools"]} == {*sanitize.TOOLS} and not found["ok"]
    for each in found["tools"].values():
        assert len(each["kernels"]) >= 1
        assert [*each["errors"]] == ["softmax_rows"] or "softmax_rows" not in each["kernels"]
    assert any("softmax_rows" in each["kernels"] for each in found["tools"].values())


def test_an_error_is_of_the_function_that_it_names() -> None:
    text = """case first
ended first right []
case second
========= COMPUTE-SANITIZER
========= Invalid __shared__ write of size 4 bytes
=========     at gpu_first_1+0x50
=========     by thread (0,0,0) in block (1,0,0)
=========
========= Error: Race reported between Read access and Write access
ended second wrong ['off']
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
    found = sanitize.Watched()
    assert sanitize.read(text, ["first", "second"], found) == ["first", "second"]
    assert found.ended == {"first": "right", "second": "wrong ['off']"}
    assert {name: len(each) for name, each in found.errors.items()} == {"first": 1, "second": 1}
    assert "gpu_first_1" in found.errors["first"][0]
    assert found.summaries == ["RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"]


def test_those_for_a_race_have_shared_memory() -> None:
    assert all(sanitize.in_shared(case) for case in sanitize.spread(3, sanitize.in_shared))
    assert len({case.name for case in sanitize.spread(40, sanitize.is_kernel)}) == 40
    assert workers.named("softmax_rows").name == "softmax_rows"
