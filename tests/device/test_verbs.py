"""`verify` and `profile` with `--target cuda`, over a mock of the driver: kernels run as host code.

The verbs are processes of their own, started as a user does it; libraries register their kernels with the CPU's
provider, whose memory the driver shares (ONNXFUSE_CUDA_PROVIDER).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.build.nvrtc import libraries
from onnxfuse.pipeline import state, verdict_cache
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.run import optimize
from onnxfuse.pipeline.verdict_cache import VerdictCache
from onnxfuse.report.result import Result
from onnxfuse.runtime import process
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.target import device as gpus
from onnxfuse.verify.verdicts import Verdict
from tests.caches import own_cache
from tests.cli.programs import onnxfuse_as_program
from tests.craft.sources import ROOT
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import compiler
from tests.threads import driver_mock
from tests.threads.layer import layer

pytestmark = [
    pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed"),
    pytest.mark.skipif(compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the driver is found by the loader of Linux"),
]


@dataclass(frozen=True)
class Said:
    """What a verb said, and what the driver was asked for meanwhile."""

    code: int
    found: dict[str, Any]
    err: str
    calls: list[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> driver_mock.Built:
    folder = tmp_path_factory.mktemp("verbs")
    onnx.save(layer(), folder / "layer.onnx")
    compiled = {"verify": False, "cache_dir": str(folder / "cache")}
    return driver_mock.built_for_gpus(folder / "layer.onnx", folder, ("sm_80", "sm_90"), **compiled)


def said(built: driver_mock.Built, tmp_path: Path, verb: str, *arguments: str, **environment: str) -> Said:
    """A verb about the layer and what was made of it."""
    log = tmp_path / "calls"
    models = [str(built.folder / name) for name in ("layer.onnx", "made.onnx")]
    return run(built, log, [verb, *models, "--target", "cuda", "--json", *arguments], environment)


def run(built: driver_mock.Built, log: Path, words: list[str], environment: dict[str, str]) -> Said:
    """A command line over the stand-in for the driver."""
    env = {"DRIVER_KERNELS": str(built.kernels), "DRIVER_LOG": str(log), **driver_mock.ON_HOST, **environment}
    if "PYTHONPATH" in environment:  # which only Python itself reads
        env = {**os.environ, **env, "LD_LIBRARY_PATH": str(built.driver)}
        done = process.run((sys.executable, "-m", "cli", *words), env=env, cwd=ROOT)
    else:
        done = onnxfuse_as_program(words, env, loaded=[driver_mock.stand_in("driver")])
    calls = log.read_text().splitlines() if log.exists() else []
    return Said(done.code, json.loads(done.out) if done.out else {}, done.err, calls)


def launches(calls: list[str]) -> int:
    return sum(call.startswith("launch") for call in calls)


def test_kernels_are_verified_in_models_and_each_against_its_body(built: driver_mock.Built, tmp_path: Path) -> None:
    it = said(built, tmp_path, "verify", "--groups")
    assert it.code == 0, it.err
    names = [run["name"] for run in it.found["runs"]]
    assert [n for n in names if n.startswith("with library in CPU")] and all(run["ok"] for run in it.found["runs"])
    assert it.found["groups"] and all(group["ok"] for group in it.found["groups"])
    assert launches(it.calls) > 2 * sum(g.phases for g in built.result.groups)


def test_a_launch_that_is_lost_is_found(built: driver_mock.Built, tmp_path: Path) -> None:
    it = said(built, tmp_path, "verify", DRIVER_LOSES="1")
    assert it.code == 1
    wrong = [run["name"] for run in it.found["runs"] if not run["ok"]]
    assert wrong and all(name.startswith("with library") for name in wrong)


def test_models_are_measured_in_turns(built: driver_mock.Built, tmp_path: Path) -> None:
    it = said(built, tmp_path, "profile", "--duration", "0.2")
    assert it.code == 0, it.err
    assert it.found["speedup"] > 0 and [m["note"] for m in it.found["models"]] == ["", ""]
    assert launches(it.calls) > 3 * sum(g.phases for g in built.result.groups)


def test_a_device_that_the_library_has_no_code_for_is_named(built: driver_mock.Built, tmp_path: Path) -> None:
    it = said(built, tmp_path, "verify", DRIVER_CAPABILITY="75")
    assert it.code == 5
    assert "this machine's GPU cannot run kernels for sm_90 and sm_80 and compute_80" in it.err
    assert not launches(it.calls)


def test_of_a_gpu_only_whole_models_are_measured(built: driver_mock.Built, tmp_path: Path) -> None:
    it = said(built, tmp_path, "profile", "--level", "op")
    assert it.code == 2 and "only whole models" in it.err


def optimized(built: driver_mock.Built, tmp_path: Path, *arguments: str, **environment: str) -> Said:
    """The layer built again of the same kernels, where there is a device; no verdict on it is known."""
    if not (cache := tmp_path / "cache").exists():
        own_cache(cache, built.folder / "cache")
    log = tmp_path / "calls"
    words = ["optimize", str(built.folder / "layer.onnx"), str(tmp_path / "made.onnx")]
    words += ["--target", "cuda", "--arch", "sm_80", "--arch", "sm_90", "--json"]
    return run(built, log, [*words, "--cache-dir", str(cache), *arguments], environment)


def test_a_build_is_verified_on_the_device(built: driver_mock.Built, tmp_path: Path) -> None:
    it = optimized(built, tmp_path)
    assert it.code == 0, it.err
    assert it.found["verify"]["ok"] and it.found["verify"]["targets"] == ["sm_90"]
    assert "not verified: kernels for sm_80 and compute_80 are not run on this machine's GPU" in it.found["notes"]
    assert launches(it.calls) > 2 * sum(g.phases for g in built.result.groups)


def test_a_kernel_that_is_wrong_on_the_device_is_not_built(built: driver_mock.Built, tmp_path: Path) -> None:
    it = optimized(built, tmp_path, DRIVER_LOSES="1")
    assert it.code == 0, it.err
    assert any(each["code"] == "E-NUMERICS" for each in it.found["refusals"])
    assert len(it.found["groups"]) < len(built.result.groups)


LISTED = """
import onnxruntime
before = onnxruntime.get_available_providers
onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider", *before()]
"""


@pytest.mark.parametrize("graph", [(), ("--cuda-graph",)])
def test_kernels_are_kept_where_the_provider_does_not_open(
    built: driver_mock.Built, tmp_path: Path, graph: tuple[str, ...]
) -> None:
    """It is listed, but cannot be loaded; so function bodies are verified, as without a GPU."""
    (tmp_path / "sitecustomize.py").write_text(LISTED)
    named = {"ONNXFUSE_CUDA_PROVIDER": "CUDAExecutionProvider", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    it = optimized(built, tmp_path, *graph, **named)
    assert it.code == 0, it.err
    assert not any(each["code"] == "E-NUMERICS" for each in it.found["refusals"])
    assert it.found["groups"] and not launches(it.calls)
    assert it.found["verify"]["ok"] is None and "function bodies are right" in it.found["verify"]["message"]
    (note,) = [each for each in it.found["notes"] if each.startswith("not verified")]
    assert note.startswith("not verified on the GPU: runtime: layer.onnx cannot be opened:")
    strict = optimized(built, tmp_path, *graph, "--verify", "--overwrite", **named)
    assert strict.code == 5 and "not verified on the GPU" in strict.err


@dataclass
class Trial:
    """What a build asks of a GPU in whose provider the original runs, or does not for a reason; models pass or not."""

    reasons: list[str]  # one after the other
    ok: bool = True
    places: list[Provider] = field(default_factory=list)  # in which models were compared

    def built(self, tmp_path: Path) -> Result:
        onnx.save(layer(), tmp_path / "layer.onnx")
        calls = Calls(
            verify_place=self.place, verify_groups=lambda *_, **__: (), verify_models=self.models, memory_of=nothing
        )
        given: dict[str, Any] = {"target": "cuda", "arch": ("sm_90",), "cuda_graph": True, "cache_dir": str(CACHE)}
        return optimize(tmp_path / "layer.onnx", tmp_path / "made.onnx", calls=calls, **given)

    def place(self, a: Path, provider: Provider, **_: Any) -> str:
        return self.reasons.pop(0)

    def models(self, *_: Any, provider: Provider, **__: Any) -> Verdict:
        self.places.append(provider)
        return Verdict(self.ok or provider == CPU, 0.0, 0.0, 0.0, inputs=1)


def nothing(*_: Any) -> VerdictCache:
    """No verdict is known."""
    return VerdictCache(None)


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Provider:
    found = Provider("CUDAExecutionProvider", {"enable_cuda_graph": "1"}, "cuda", bound=True, graph=True)
    monkeypatch.setattr(state, "_on_gpu", lambda context: ("sm_90",))
    monkeypatch.setattr(state, "_provider", lambda target, graphs: found)
    return found


def test_what_cannot_be_captured_is_verified_without_graphs(graph: Provider, tmp_path: Path) -> None:
    trial = Trial(["a loop is not captured", ""])
    result = trial.built(tmp_path)
    assert trial.places == [graph.ungraphed] and result.groups
    assert "not verified with CUDA graphs: a loop is not captured" in result.notes


def test_a_device_that_fails_meanwhile_drops_no_kernel(graph: Provider, tmp_path: Path) -> None:
    trial = Trial(["", "no memory is left", "no memory is left"], ok=False)
    result = trial.built(tmp_path)
    assert trial.places == [graph, CPU] and result.groups
    assert "not verified on the GPU: no memory is left" in result.notes
    assert not any(each.code == "E-NUMERICS" for each in result.refusals)


def test_a_verdict_is_of_a_device_and_its_driver(graph: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = gpus.Driver(13000, (gpus.Device("a GPU", 90),))
    monkeypatch.setattr(verdict_cache, "cuda_driver", lambda: driver)
    assert verdict_cache._device(graph) == [13000, "a GPU"] and verdict_cache._device(CPU) == []
