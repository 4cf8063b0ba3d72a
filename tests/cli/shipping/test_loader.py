"""Programs in C and C++ with neither Python nor a header of the runtime load a model with its library, and run it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnxfuse.build import TILES
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.runtime import engine, process
from onnxfuse.runtime.entries import ABI_VERSION
from tests.cli.conftest import Onnxfuse

HERE = Path(__file__).parent
RUNTIMES = sorted(Path(ort.__file__).parent.glob("capi/libonnxruntime.so*"))


def compilation(source: str) -> list[str]:
    """The command line that makes `host` of a program."""
    if source.endswith(".c"):
        compiler = shutil.which("cc") or shutil.which("gcc") or pytest.skip("there is no C compiler here")
        head = [compiler, "-std=c99", "-pedantic", "-Wextra", "-Werror", f"-DABI_VERSION={ABI_VERSION}"]
    else:
        head = [*find_toolchain().command, "-std=c++17", f"-iquote{TILES}"]
    return [*head, "-Wall", str(HERE / source), "-o", "host", "-ldl"]


@pytest.mark.skipif(not RUNTIMES, reason="this package of the runtime has no library of its own")
@pytest.mark.parametrize("source", ["loader.c", "loader.cpp"])
def test_a_host_without_python(source: str, onnxfuse: Onnxfuse, model: Path, here: Path):
    assert onnxfuse("optimize", model, "f.onnx", "--no-verify", "--no-gain").code == 0
    built = process.run(compilation(source))
    assert built.code == 0, built.err
    files = [str(RUNTIMES[0]), str(here / "libf.so"), str(here / "f.onnx")]
    run = process.run(["./host", *files, "4", "32"])
    assert run.code == 0, run.err
    version, total = run.out.split()
    assert version == ort.__version__
    session = engine.open_session(str(model), engine.options())
    (expected,) = engine.run(session, {"x": np.full((4, 32), 0.5, np.float32)})
    assert float(total) == pytest.approx(float(expected.sum()), rel=1e-5)
    (here / "libf.so").write_bytes(b"no library")
    broken = process.run(["./host", *files, "4", "32"])
    assert broken.code == 1 and re.search(r"libf\.so", broken.err)
