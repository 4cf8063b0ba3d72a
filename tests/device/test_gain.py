"""The gain of builds for GPUs is measured, and slower kernels are left out, over a mock of the driver.

Its launches are forgotten, so that kernels take no time but those that it is told to be slow at: what runs as host code
would lose in any case.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.build.nvrtc import libraries
from onnxfuse.measure.gain_child import seem_slow, without_waits
from tests.cli.programs import onnxfuse_as_program
from tests.kernels.pool_host import compiler
from tests.threads import driver_mock

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]
CHAINS = {"y": ("Abs", "Exp", "Neg"), "w": ("Tanh", "Abs", "Sigmoid")}
FILES = ("made.onnx", "libmade.so", "made.fuse.json")


@dataclass(frozen=True)
class Built:
    """What a build said, and what the driver was asked for meanwhile."""

    found: dict[str, Any]
    notes: str
    launches: int

    @property
    def kernels(self) -> set[str]:
        """The first operators of kernels that were built."""
        return {group["kernel"].split("_")[0] for group in self.found["groups"]}


def chains() -> onnx.ModelProto:
    """Two chains over large tensors that have nothing to do with each other: two kernels."""
    nodes, ends = [], []
    for made, ops in CHAINS.items():
        names = [f"x{made}", *(f"{made}{n}" for n in range(len(ops) - 1)), made]
        nodes += [helper.make_node(op, [a], [b], name=b) for op, a, b in zip(ops, names, names[1:], strict=False)]
        ends += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [512, 1024]) for name in (names[0], made)]
    graph = helper.make_graph(nodes, "chains", ends[::2], ends[1::2])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> driver_mock.Built:
    folder = tmp_path_factory.mktemp("gain")
    onnx.save(chains(), folder / "chains.onnx")
    return driver_mock.built_for_gpus(folder / "chains.onnx", folder, ("sm_90",))


def build(chained: driver_mock.Built, folder: Path, *arguments: str, slow: str = "Tanh", cache: str = "cache") -> Built:
    """The chains built as a user does it on a machine with a GPU, with a kernel that is slow there."""
    log = folder / "calls"
    log.unlink(missing_ok=True)
    env = {
        **driver_mock.ON_HOST, "DRIVER_LOG": str(log), "DRIVER_KERNELS": str(chained.kernels),
        "DRIVER_LOSES": "1000000000", "DRIVER_SLOW": slow,
    }  # fmt: skip
    words = ["optimize", str(chained.folder / "chains.onnx"), str(folder / "made.onnx"), "--target", "cuda"]
    words += ["--no-verify", "--json", "--overwrite", "--cache-dir", str(folder / cache), "--arch", "native"]
    with patch.dict(os.environ):
        del os.environ["ONNXFUSE_GAIN"]  # which other tests do without
        done = onnxfuse_as_program([*words, *arguments], env, loaded=[driver_mock.stand_in("driver")])
    assert done.code == 0, done.err
    found = json.loads(done.out)
    launches = log.read_text().splitlines() if log.exists() else []
    return Built(found, "; ".join(found["notes"]), sum(call.startswith("launch") for call in launches))


def written(folder: Path) -> list[bytes]:
    """The files of a build."""
    return [(folder / name).read_bytes() for name in FILES]


def test_a_slow_kernel_is_found_by_default_and_the_next_build_is_the_same(chained: driver_mock.Built, tmp_path: Path):
    caches = (f"cache{number}" for number in range(3))  # a busy machine may have no time to measure what is left
    first, cache = next((b, c) for c in caches if (b := build(chained, tmp_path, cache=c)).found["gain"])
    assert first.kernels == {"Abs"}, first.notes
    assert "slower than ONNX Runtime, and left to it: Tanh" in first.notes and first.launches
    assert first.found["gain"]["speedup"] > 1.0
    (lost,) = [each for each in first.found["choices"] if not each["kept"]]
    manifest = json.loads((tmp_path / "made.fuse.json").read_text(encoding="utf-8"))
    assert manifest["choices"] == first.found["choices"] and lost["high"] < 0.95
    before = written(tmp_path)
    again = build(chained, tmp_path, cache=cache)
    assert written(tmp_path) == before and again.launches == 0, "the verdict was in the cache"


def test_a_lock_gives_the_same_without_measuring(chained: driver_mock.Built, tmp_path: Path):
    build(chained, tmp_path, "--profile-guided", "--lock", str(tmp_path / "lock.json"))
    before = written(tmp_path)[:2]
    again = build(chained, tmp_path, "--lock", str(tmp_path / "lock.json"), cache="other")
    assert again.launches == 0 and again.kernels == {"Abs"}
    assert written(tmp_path)[:2] == before


@pytest.mark.parametrize(("arguments", "slow"), [(("--no-gain",), "Tanh"), (("--arch", "sm_90"), "Tanh")])
def test_a_build_for_other_machines_measures_nothing(
    chained: driver_mock.Built, tmp_path: Path, arguments: tuple[str, ...], slow: str
):
    made = build(chained, tmp_path, *arguments, slow=slow)
    assert made.launches == 0 and made.kernels == {"Abs", "Tanh"} and made.found["gain"] is None


def test_where_no_kernel_is_slow_all_stay(chained: driver_mock.Built, tmp_path: Path):
    made = build(chained, tmp_path, slow="Sqrt")
    assert made.kernels == {"Abs", "Tanh"} and made.found["gain"]["low"] > 1.0
    assert all(group["time_ms"] > 0.0 for group in made.found["groups"])


def test_a_slow_kernel_is_suspected_though_each_launch_is_waited_for() -> None:
    """Times of an H200, where a kernel was made 55 us slower in place of three nodes: their waits were as long."""
    ops = {"slow": "Where_1", "attention": "MatMul_1", "norm": "Add_1"}
    kernels = {"slow": ("cast", "where", "mul"), "attention": ("matmul", "softmax"), "norm": ("add", "normalize")}
    made = [("slow", 66.0), ("attention", 23.0), ("norm", 22.0), ("reshape", 3.0)]
    original = [(name, 22.0) for names in kernels.values() for name in names] + [("reshape", 3.0)]
    assert seem_slow([made], [original], kernels, ops)[0] == []
    own, others = without_waits([made], [original], ops)
    assert own == [[("slow", 44.0), ("attention", 1.0), ("norm", 0.0), ("reshape", 0.0)]]
    assert seem_slow(own, others, kernels, ops)[0] == ["Where_1", "MatMul_1"]
