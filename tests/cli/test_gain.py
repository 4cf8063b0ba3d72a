"""The speedup of a build is measured, and slower kernels are left out; the decision is cached."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.config import Options
from onnxfuse.errors import AnsweredNo, BudgetError, DeviceError, UsageError
from onnxfuse.measure.gain import AtSize, GainResult, KernelTrial, limit_of
from onnxfuse.measure.gain_child import seem_slow
from onnxfuse.measure.ratios import Ratio
from onnxfuse.pipeline import gain_step, optimize
from onnxfuse.pipeline.calls import Calls
from onnxfuse.report.result import Result
from tests.caches import own_cache
from tests.calls import on_cpu
from tests.cli.conftest import FIRST, SECOND, Onnxfuse, refused, two_chains
from tests.cli.contract.schema import problems
from tests.craft.sources import ROOT
from tests.models.planted import Slow

WANTED = gain_step.wanted  # before the tests have it their way
FILES = ("o.onnx", "libo.so", "o.fuse.json")


@pytest.fixture
def chains(here: Path) -> Path:
    return two_chains(here, "N, 256", "256, 8")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all that is compiled for the chains, and without a measurement."""
    folder = tmp_path_factory.mktemp("compiled")
    chains = two_chains(folder, "N, 256", "256, 8")
    optimize(chains, folder / "o.onnx", gain=False, verify=False, cache_dir=own_cache(folder / "cache"))
    return folder / "cache"


@pytest.fixture
def built(chains: Path, tmp_path: Path, compiled: Path) -> Callable[..., Result]:
    """Builds with a cache of its own: what was measured in earlier test runs is not there."""
    shutil.copytree(compiled, tmp_path / "cache", copy_function=os.link)

    def go(measure: Any = None, *, render: Any = None, out: str = "o.onnx", **changes: Any) -> Result:
        calls = Calls()
        calls = calls if measure is None else replace(calls, measure_gain=measure)
        calls = calls if render is None else on_cpu(calls, render=render)
        usual = {"gain": True, "cache_dir": str(tmp_path / "cache"), "overwrite": True}
        return optimize(chains, out, calls=calls, **usual | changes)

    return go


def never(*_: Any, **__: Any) -> GainResult:
    raise AssertionError("nothing is to be measured")


def found(speedup: float, *tried: KernelTrial, slow: tuple[str, ...] = (), sure: float = 1.01) -> GainResult:
    """A measurement: a gain that is known to one percent, or to a factor."""
    ratio = Ratio(speedup, speedup / sure, speedup * sure, 50)
    return GainResult(ratio, 0.001, 2, (AtSize({"x": (1, 256)}, speedup, 1.0),), tried, slow)


# the real thing -------------------------------------------------------------------------------------------------------


def test_a_slow_kernel_is_not_shipped_and_the_next_build_is_the_same(built: Callable[..., Result]):
    result = built(render=Slow("Tanh"))
    assert [set(g.nodes) for g in result.groups] == [FIRST] and refused(result) == SECOND
    assert result.gain is not None and result.gain.low <= result.gain.speedup <= result.gain.high
    assert all(g.time_ms is not None and g.time_ms > 0.0 for g in result.groups)
    assert any("slower than ONNX Runtime, and left to it: Tanh" in note for note in result.notes)
    (lost,) = [c for c in result.choices if not c.kept]
    assert lost.high is not None and lost.high < 0.9
    manifest = json.loads(Path("o.fuse.json").read_text())
    assert manifest["gain"]["speedup"] == result.gain.speedup and manifest["choices"][0]["kept"] is False
    written = [Path(name).read_bytes() for name in FILES]
    again = built(never, render=Slow("Tanh"))
    assert [Path(name).read_bytes() for name in FILES] == written and again.gain == result.gain
    without = built(never, render=Slow("Tanh"), gain=False)
    assert without.kernels == 2 and without.gain is None, "--no-gain takes the prediction's word"


def test_where_all_of_it_is_slow_the_output_is_a_copy(built: Callable[..., Result]):
    result = built(render=Slow("Tanh", "Abs"))
    assert (result.kernels, result.output.library, result.gain) == (0, None, None)
    assert refused(result) == FIRST | SECOND


def test_on_the_command_line(onnxfuse: Onnxfuse, chains: Path, tmp_path: Path):
    """At every size that is hinted at."""
    hint = ("--dim-hint", "N=1,64", "--cache-dir", own_cache(tmp_path / "cache"))
    said = onnxfuse("optimize", chains, "o.onnx", "--gain", *hint, "--json")
    schema = json.loads((ROOT / "docs" / "schema" / "optimize.json").read_text(encoding="utf-8"))
    assert said.code == 0 and list(problems(said.json, schema)) == []
    if said.json["gain"] is not None:  # else the kernels lose on this machine, and the output is a copy
        assert [each["shapes"]["x"] for each in said.json["gain"]["sizes"]] == [[1, 256], [64, 256]]
        assert any(line.startswith("gain ") and "95 %" in line for line in said.err.splitlines())
    assert onnxfuse("optimize", chains, "o.onnx", "--gain", "--dim-hint", "N", "--overwrite").code == 2


def test_what_cannot_fit_is_not_begun_unless_it_is_asked_for(built: Callable[..., Result], monkeypatch: Any):
    """What loading and runs took when the models were compared tells; here hardly any time is allowed."""
    monkeypatch.setattr(gain_step, "SECONDS", 0.01)
    monkeypatch.setattr(gain_step, "SHARE", 0.0)
    monkeypatch.setattr(gain_step, "wanted", lambda context: True)
    short = built(never, gain=None)
    assert short.gain is None
    assert any("too long for 0 s; --gain takes the time" in note for note in short.notes)
    asked = built(out="asked.onnx", gain=True)
    assert not any("was not measured" in note for note in asked.notes)
    assert asked.gain is not None or asked.kernels == 0, "measured, or all of it lost"


def test_large_models_are_not_measured_in_turns_unless_requested(built: Callable[..., Result], monkeypatch: Any):
    monkeypatch.setattr(gain_step, "LARGE", 1)
    monkeypatch.setattr(gain_step, "wanted", lambda context: True)
    large = built(never, gain=None)
    assert large.gain is None and any("take much memory" in note for note in large.notes)
    asked = built(out="asked.onnx", gain=True)
    assert not any("was not measured" in note for note in asked.notes)


# what is decided ------------------------------------------------------------------------------------------------------


def lost(kernels: tuple[str, ...], ratio: float, share: float = 0.5, sure: float = 1.01) -> KernelTrial:
    return KernelTrial(kernels, Ratio(ratio, ratio / sure, ratio * sure, 50), share, ratio, 1.0)


def test_only_what_surely_loses_is_given_up():
    assert lost(("k",), 1.1).loses and not lost(("k",), 1.1, sure=1.1).loses
    assert not lost(("k",), 1.02).loses, "5 % of half the time is 2.6 %"
    assert lost(("k",), 1.03, share=0.1).loses and not lost(("k",), 1.015, share=0.1).loses
    assert lost(("k",), 0.9).wins and not lost(("k",), 0.99, sure=1.02).wins
    assert found(0.9).loses and not found(0.96).loses and not found(0.9, sure=1.2).loses
    assert limit_of(1.0, 1e6) == float("inf")


def test_on_a_busy_machine_the_least_times_have_to_agree():
    """Turns that other work lengthened say that something is slower, the least times that it is not."""
    calm, busy = (Ratio(1.2, 1.15, 1.25, 50, disturbed) for disturbed in (0.1, 0.5))
    assert KernelTrial(("k",), calm, 1.0, 0.99, 1.0).loses and not KernelTrial(("k",), busy, 1.0, 0.99, 1.0).loses
    assert KernelTrial(("k",), busy, 1.0, 1.01, 1.0).loses
    at = [AtSize({"x": (n,)}, 1.0, ms) for n, ms in ((1, 0.8), (8, 1.2), (64, 1.02))]
    assert (
        not GainResult(busy.inverse, 0.1, 2, tuple(at)).loses and GainResult(busy.inverse, 0.1, 2, tuple(at[1:])).loses
    )


@pytest.mark.parametrize(
    ("tried", "left"),
    [
        ([lost(("Abs", "Tanh"), 1.3)], 0),
        ([lost(("Abs", "Tanh"), 1.3), lost(("Abs",), 0.8), lost(("Tanh",), 1.5)], 1),
        ([lost(("Abs", "Tanh"), 1.0), lost(("Abs",), 0.8), lost(("Tanh",), 1.2)], 1),
        ([lost(("Abs", "Tanh"), 1.0)], 2),
        ([], 2),
    ],
)
def test_kernels_that_win_alone_stay(built: Callable[..., Result], tried: list[KernelTrial], left: int):
    """The first measurement says this of kernels by the first word of their names, the next one that all is well."""
    answers = [found(1.0, *tried), found(1.2)]
    named: dict[str, str] = {}

    def measure(*_: Any, **__: Any) -> GainResult:
        answer = answers.pop(0)
        real = [replace(each, kernels=tuple(named[word] for word in each.kernels)) for each in answer.tried]
        return replace(answer, tried=tuple(real))

    named |= {group.kernel.split("_")[0]: group.kernel for group in built(never, gain=False).groups}
    result = built(measure)
    assert result.kernels == left
    assert (result.gain is None) == (left == 0) and len(answers) == (1 if left in (0, 2) else 0)


def test_the_output_is_a_copy_if_no_kernel_is_at_fault(built: Callable[..., Result]):
    result = built(lambda *_, **__: found(0.8))
    assert result.kernels == 0 and refused(result) == FIRST | SECOND


def test_a_result_that_is_slower_says_so(built: Callable[..., Result]):
    result = built(lambda *_, **__: found(0.97, slow=("Tanh_1", "Abs_2")))
    assert result.kernels == 2
    assert "the result is slower than the original, 0.97x; most lose Tanh_1, Abs_2" in result.notes
    result = built(lambda *_, **__: found(0.99, sure=1.05), no_cache=True)
    assert "the result may be slower than the original, 0.99x" in result.notes


@pytest.mark.parametrize("problem", [DeviceError("gain: no"), BudgetError("gain: too long")])
def test_what_cannot_be_measured_costs_the_measurement(built: Callable[..., Result], problem: Exception):
    def broken(*_: Any, **__: Any) -> GainResult:
        raise problem

    result = built(broken)
    assert result.kernels == 2 and result.gain is None
    assert [note for note in result.notes if "the gain was not measured" in note]


@pytest.mark.parametrize(
    ("named", "hints", "samples"), [(True, (), 128 * 160), (True, ("samples=3200",), 3200), (False, (), 128 * 160)]
)
def test_signals_are_measured_at_a_usual_number_of_frames(
    here: Path, onnxfuse: Onnxfuse, named: bool, hints: tuple[str, ...], samples: int
):
    """Of 128 samples no frame could be cut, let alone one that takes time; dimensions may have no names."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, samples] x) => (float[batch, 64, frames] y) {
        one = Constant <value = int64[1] {1}> ()
        a = Unsqueeze (x, one)  b = Conv <strides = [160], pads = [200, 200]> (a, w)  c = Abs (b)  y = Tanh (c) }"""
    model = onnx.parser.parse_model(text)
    for dim in () if named else model.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    weights = np.random.default_rng(0).normal(size=(64, 1, 400)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, "m.onnx")
    result = optimize("m.onnx", "o.onnx", gain=True, verify=False, dim_hint=hints, no_cache=True)
    assert result.gain is not None
    assert [dict(at.shapes)["x"] for at in result.gain.sizes] == [(1, samples)]
    dims = [arg for hint in hints for arg in ("--dim", hint)]
    shown = onnxfuse("profile", "m.onnx", "o.onnx", *dims, "--duration", "0.05", "--json")
    assert shown.json["inputs"] == {"x": [1, samples]}, "`profile` measures it so, too"


def test_when_the_gain_is_measured():
    """By default for this machine alone, and where no lock file says what to do."""

    class Given:
        def __init__(self, **changes: Any) -> None:
            self.options = replace(Options(), **changes)

    assert WANTED(Given()) and WANTED(Given(arch=("native",)))  # type: ignore[arg-type]
    assert not WANTED(Given(arch=("x86-64-v3",))) and not WANTED(Given(lock="l"))  # type: ignore[arg-type]
    assert WANTED(Given(lock="l", profile_guided=True)) and not WANTED(Given(gain=False))  # type: ignore[arg-type]
    assert WANTED(Given(arch=("x86-64-v3",), gain=True))  # type: ignore[arg-type]


def test_invalid_dim_hints_are_refused(built: Callable[..., Result]):
    with pytest.raises(UsageError, match="is not NAME=N,N"):
        built(never, dim_hint=("N=one",))
    with pytest.raises(AnsweredNo):
        built(lambda *_, **__: found(0.5), require_fusion=1)


# what seems slow ------------------------------------------------------------------------------------------------------


def test_times_of_nodes_go_to_the_kernels_that_stand_for_them():
    """By the names that the runtime makes of nodes and values; what turns layouts goes to a neighbour."""
    kernels = {"c/Conv": ("conv", "clip", "clip_1"), "g/Gemm": ("matmul", "add"), "s/Fast": ("softmax",)}
    ops = {"c/Conv": "Conv_1", "g/Gemm": "Gemm_1", "s/Fast": "Softmax_1"}
    original = [
        ("ReorderInput", 5.0), ("clip_1_nchwc", 20.0), ("ReorderOutput_token_3", 5.0),
        ("gemm_input_reshape_token_4", 1.0), ("matmul/MatMulAddFusion", 10.0), ("softmax", 9.0), ("argmax", 3.0),
    ]  # fmt: skip
    made = [("c/Conv", 45.0), ("g/Gemm", 11.2), ("s/Fast", 2.0), ("argmax", 3.0)]
    slow, shares = seem_slow([made], [original], kernels, ops)
    assert slow == ["Conv_1"] and shares["Conv_1"] == pytest.approx(45.0 / 61.2)
    slow, _ = seem_slow([[(n, 2 * t) for n, t in made], made], [original] * 2, kernels, ops)
    assert slow == ["Conv_1"], "the least of all runs counts"
    slow, _ = seem_slow([[("c/Conv", 29.0), ("g/Gemm", 20.0), ("g/Gemm", 20.0)]], [original], kernels, ops)
    assert slow == ["Gemm_1"], "a node that runs twice, as in a loop, counts twice"
