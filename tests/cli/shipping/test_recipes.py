"""The recipes that users copy do what they say: Make and CMake build, and the commands of the others run as written."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from onnxfuse.runtime import process
from onnxfuse.runtime.process import Finished
from tests.cli.conftest import files
from tests.craft.sources import ROOT

RECIPES = ROOT / "docs" / "recipes"


@pytest.fixture
def env(tmp_path: Path, kernels: Path) -> dict[str, str]:
    """An environment in which `onnxfuse` and `python` are those of the tests, and measure for a short time."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, arguments in (("onnxfuse", " -m onnxfuse_cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
        (programs / name).chmod(0o755)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "ONNXFUSE_CACHE_DIR": str(kernels),
        "ONNXFUSE_GAIN": "0",
        "ONNXFUSE_DURATION": "0.3s",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }


def done(command: tuple[str, ...], env: dict[str, str]) -> Finished:
    found = process.run(command, env=env)
    assert found.code == 0, f"{command}: {found.out}{found.err}"
    return found


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make(model: Path, env: dict[str, str]):
    """One run for all three files, none where nothing changed, another where the model did."""
    Path("Makefile").write_text(f"include {RECIPES / 'onnxfuse.mk'}\n")
    make = ("make", "ONNXFUSE_FLAGS=--no-verify", "m.fused.onnx", "libm.fused.so")
    assert done(make, env).out.count("optimize m.onnx m.fused.onnx") == 1
    assert {"m.fused.onnx", "libm.fused.so", "m.fused.fuse.json"} <= files(Path())
    assert "optimize" not in done(make, env).out
    now = Path("m.fused.onnx").stat().st_mtime + 10
    os.utime(model, (now, now))
    assert "optimize" in done(make, env).out


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no CMake here")
def test_cmake(model: Path, env: dict[str, str]):
    Path("CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(p NONE)\ninclude({RECIPES / 'onnxfuse.cmake'})\n"
        "onnxfuse_optimize(TARGET fused MODEL m.onnx FLAGS --no-verify)\n"
        "get_target_property(library fused ONNXFUSE_LIBRARY)\nmessage(STATUS ${library})\n"
    )
    said = done(("cmake", "-S", ".", "-B", "out"), env)
    assert str(Path("out/libm.fused.so").absolute()) in said.out
    done(("cmake", "--build", "out"), env)
    assert {"m.fused.onnx", "libm.fused.so", "m.fused.fuse.json"} <= files(Path("out"))
    first = Path("out/m.fused.onnx").stat().st_mtime_ns
    done(("cmake", "--build", "out"), env)
    assert Path("out/m.fused.onnx").stat().st_mtime_ns == first
    os.utime(model, (first / 1e9 + 10, first / 1e9 + 10))
    done(("cmake", "--build", "out"), env)
    assert Path("out/m.fused.onnx").stat().st_mtime_ns > first


def test_github_actions(model: Path, env: dict[str, str]):
    """All commands of the workflow but the installation, in their order."""
    model.rename("model.onnx")
    lines = (RECIPES / "github-actions.yml").read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if "\t" in line or (len(line) - len(line.lstrip())) % 2]
    commands = [m[1] for line in lines if (m := re.match(r" +- run: (.*)", line)) and "pip install" not in line]
    assert sum(c.startswith("onnxfuse ") for c in commands) == 4
    for command in commands:
        if command.startswith("onnxfuse profile"):  # whether so small a network is faster is not the question
            command = command.replace("3%", "9999%") + " --duration 0.05s"
        done(("sh", "-ec", command), env)
    assert "1 kernel" in Path("summary.md").read_text()
    assert {"model.tar.gz", "fuse.html", "fuse.json", "profile.json"} <= files(Path())


def test_dockerfile(model: Path, env: dict[str, str]):
    """What its first stage runs makes what its second one copies, and its command loads that."""
    model.rename("model.onnx")
    text = (RECIPES / "Dockerfile").read_text(encoding="utf-8")
    words = {line.split()[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert words == {"FROM", "RUN", "ARG", "WORKDIR", "COPY", "CMD"} and text.count("FROM ") == 2
    (build,) = re.findall(r"^RUN (onnxfuse .*)$", text, re.MULTILINE)
    done(("sh", "-ec", f"{build} --no-verify"), env)
    (copied,) = re.findall(r"^COPY --from=build (.*) \./$", text, re.MULTILINE)
    assert all(Path(each).name in files(Path()) for each in copied.split())
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    arguments = shlex.join(json.loads(command))
    assert done(("sh", "-c", arguments), env).out == "['x']\n"


def test_the_hook_of_pre_commit(model: Path, env: dict[str, str]):
    """It says yes to a pair that is equal and to a model alone, and no where the original changed."""
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^  entry: (.*)$", text, re.MULTILINE)
    (wanted,), (not_wanted,) = (re.findall(rf"^  {key}: '(.*)'$", text, re.MULTILINE) for key in ("files", "exclude"))
    assert re.search(wanted, "a/m.onnx") and re.search(not_wanted, "a/m.fused.onnx")
    done(("sh", "-c", f"{entry} m.onnx"), env)
    done(("sh", "-c", "onnxfuse optimize m.onnx --no-verify"), env)
    done(("sh", "-c", f"{entry} m.onnx"), env)
    proto = onnx.load(model)
    next(n for n in proto.graph.node if n.op_type == "Relu").op_type = "Abs"
    onnx.save(proto, model)
    assert process.run(("sh", "-c", f"{entry} m.onnx"), env=env).code == 1
