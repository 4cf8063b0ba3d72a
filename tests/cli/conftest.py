"""Model files and ways to run the command line that the tests of this folder share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxfuse_cli.__main__ import run

from onnxfuse.measure.database import FILE
from onnxfuse.report.result import Result

BUSY = 6  # times that a measurement is repeated which tells nothing, since the machine does other work

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


FIRST, SECOND = {"Abs_0", "Exp_1", "Neg_2"}, {"Tanh_3", "Abs_4", "Sigmoid_5"}  # nodes of the two chains


def two_chains(folder: Path, first: str, second: str) -> Path:
    """A file with two chains over tensors of these extents that have nothing to do with each other: two kernels."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        chains (float[{first}] x, float[{second}] z) => (float[{first}] y, float[{second}] w)
        {{ a = Abs (x)  b = Exp (a)  y = Neg (b)  c = Tanh (z)  d = Abs (c)  w = Sigmoid (d) }}"""
    )
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(proto, folder / "chains.onnx")
    return folder / "chains.onnx"


def refused(result: Result) -> set[str]:
    """The nodes that the result leaves to the runtime for what they would cost."""
    return {name for r in result.refusals if r.code == "E-COST" for name in r.nodes}


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
) -> Iterator[Onnxfuse]:
    """Runs a command line in this process, in an empty folder, with the cache that all tests share."""
    for name in [name for name in os.environ if name.startswith("ONNXFUSE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ONNXFUSE_CACHE_DIR", str(kernels))

    def go(*arguments: str | Path) -> Said:
        capsys.readouterr()
        code = run([str(each) for each in arguments])
        found = capsys.readouterr()
        return Said(code, found.out, found.err)

    yield go
    assert not (kernels / FILE).exists(), "a test that tunes has a cache of its own"


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
