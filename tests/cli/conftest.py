"""Model files and ways to run the command line that the tests of this folder share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxfuse_cli.__main__ import run

CHAIN = """<ir_version: 8, opset_import: ["" : 17], producer_name: "tests">
chain (float[4, 32] x) => (float[4, 32] y)
{
    scaled = Mul (x, scale)
    shifted = Add (scaled, shift)
    kept = Relu (shifted)
    y = Sigmoid (kept)
}"""


def chain() -> onnx.ModelProto:
    """Four elementwise nodes with two weights: one kernel."""
    proto = onnx.parser.parse_model(CHAIN)
    for seed, name in enumerate(("scale", "shift")):
        values = np.random.default_rng(seed).standard_normal(32, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    return proto


def lonely() -> onnx.ModelProto:
    """One node of the sort that stays with the runtime."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        lonely (float[N, 3] x) => (int64[K, M] y) { y = NonZero (x) }"""
    )


@dataclass(frozen=True)
class Said:
    """What a command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def last(self) -> str:
        return (self.err.strip().splitlines() or [""])[-1]


Onnxfuse = Callable[..., Said]


@pytest.fixture
def onnxfuse(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch, kernels: Path
) -> Onnxfuse:
    """Runs a command line in this process, in an empty folder, with the cache that all tests share."""
    for name in [name for name in os.environ if name.startswith("ONNXFUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONNXFUSE_CACHE_DIR", str(kernels))

    def go(*arguments: str | Path) -> Said:
        capsys.readouterr()
        code = run([str(each) for each in arguments])
        found = capsys.readouterr()
        return Said(code, found.out, found.err)

    return go


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of compiled kernels."""
    named = os.environ.get("ONNXFUSE_CACHE_DIR")
    return Path(named).absolute() if named else tmp_path_factory.mktemp("kernels")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(here: Path) -> Path:
    """A file in the current folder that fuses into one kernel."""
    onnx.save(chain(), here / "m.onnx")
    return Path("m.onnx")


def files(folder: Path) -> set[str]:
    """Names of all that lies in a folder, hidden files too."""
    return {path.name for path in folder.iterdir()}
