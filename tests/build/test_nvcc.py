"""CUDA kernels compiled by the nvcc of a toolkit instead of NVRTC, and what is said where that cannot be."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.build import nvcc
from onnxfuse.build.nvrtc import libraries
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.errors import OnnxFuseError
from onnxfuse.pipeline import optimize
from onnxfuse.report.result import Result
from tests.threads.layer import layer

GPU = {"target": "cuda", "arch": ("sm_80", "sm_90"), "overwrite": True, "no_cache": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nvcc") / "layer.onnx"
    onnx.save(layer(), path)
    return path


@pytest.fixture(scope="module")
def by_nvrtc(model: Path) -> Result:
    """The model built without a toolkit, beside it."""
    return optimize(model, model.with_name("nvrtc.onnx"), **GPU)


@pytest.fixture
def without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no nvcc is installed, but a C++ compiler is."""
    host = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if host is None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("CXX", host)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)


def functions(manifest: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The resources of each compiled function, by its target and its phase within its kernel."""
    listed = json.loads(manifest.read_text(encoding="utf-8"))["build"]["functions"]
    return {(each["target"], each["function"]): each for each in listed}


@pytest.mark.skipif(not nvcc.is_found(), reason="no nvcc")
@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("named", [{"toolchain": "nvcc"}, {"nvcc": "nvcc"}], ids=["toolchain", "path"])
def test_a_toolkit_compiles_the_same_kernels(model: Path, by_nvrtc: Result, tmp_path: Path, named: dict[str, str]):
    by_nvcc = optimize(model, tmp_path / "nvcc.onnx", **GPU, **named)
    assert by_nvcc.kernels == by_nvrtc.kernels > 0
    assert (by_nvcc.compiler or "").startswith("nvcc ") and (by_nvrtc.compiler or "").startswith("nvrtc ")
    manifests = (tmp_path / "nvcc.fuse.json", model.with_name("nvrtc.fuse.json"))
    mine, theirs = map(functions, manifests)
    assert mine.keys() == theirs.keys() and {target for target, _ in mine} == {"sm_80", "sm_90"}
    assert not any(each["spills"] for each in mine.values())


@pytest.mark.skipif(not nvcc.is_found(), reason="no nvcc")
def test_errors_of_nvcc_are_reported_with_its_log():
    found = nvcc.compiler(None, find_toolchain())
    image = found.compiled('extern "C" __global__ void f(float* x) { *x = 1; }', ("--gpu-architecture=sm_80",))
    assert [each.function for each in image.functions] == ["f"] and image.code[:4] == b"\x7fELF"
    assert found.compiled("", ("--gpu-architecture=compute_80",)).code.lstrip().startswith(b"//")
    with pytest.raises(nvcc.CompileFailed, match="undefined_name"):
        found.compiled("__global__ void f() { undefined_name(); }", ("--gpu-architecture=sm_80",))


@pytest.mark.usefixtures("without_nvcc")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"toolchain": "nvcc"}, "neither in"),
        ({"nvcc": "/no/such/nvcc"}, "/no/such/nvcc is no program"),
    ],
)
def test_a_toolkit_that_is_not_there(model: Path, tmp_path: Path, options: dict[str, str], said: str):
    with pytest.raises(OnnxFuseError, match=said) as failed:
        optimize(model, tmp_path / "o.onnx", **GPU, **options)
    assert failed.value.exit_code == 4 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("says", "said"), [("echo nothing", "does not report"), ("echo 'release 11.0, V11.0.1'", "older than 11.8")]
)
def test_a_program_that_is_no_usable_nvcc(model: Path, tmp_path: Path, says: str, said: str):
    program = tmp_path / "nvcc"
    program.write_text(f"#!/bin/sh\n{says}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(OnnxFuseError, match=said) as failed:
        optimize(model, tmp_path / "o.onnx", **GPU, nvcc=str(program))
    assert failed.value.exit_code == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"toolchain": "nvrtc"}, "nvrtc compiles kernels of cuda"),
        ({"nvcc": "nvcc"}, "nvcc compiles kernels of cuda"),
        ({"target": "cuda", "toolchain": "nvrtc", "nvcc": "nvcc"}, "toolchain is nvrtc"),
    ],
)
def test_options_that_contradict_each_other(model: Path, tmp_path: Path, options: dict[str, str], said: str):
    with pytest.raises(OnnxFuseError, match=said) as failed:
        optimize(model, tmp_path / "o.onnx", **options)
    assert failed.value.exit_code == 2
