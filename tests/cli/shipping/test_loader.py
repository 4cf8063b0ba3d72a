"""A program in C++ that has neither Python nor a header of the runtime loads a model with its library, and runs it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnxfuse.build import TILES
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.runtime import engine, process
from tests.cli.conftest import Onnxfuse

HERE = Path(__file__).parent
RUNTIMES = sorted(Path(ort.__file__).parent.glob("capi/libonnxruntime.so*"))


@pytest.mark.skipif(not RUNTIMES, reason="this package of the runtime has no library of its own")
def test_a_host_without_python(onnxfuse: Onnxfuse, model: Path, here: Path):
    assert onnxfuse("optimize", model, "f.onnx", "--no-verify", "--no-gain").code == 0
    compiler = find_toolchain().command
    command = [*compiler, "-std=c++17", "-Wall", f"-iquote{TILES}", str(HERE / "loader.cpp"), "-o", "host", "-ldl"]
    built = process.run(command)
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
