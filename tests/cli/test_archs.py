"""`--arch`: libraries for several instruction sets, for another machine, and what is said of them."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.pipeline import optimize
from onnxfuse.render.cpp import render
from onnxfuse.render.source import Source
from onnxfuse.runtime.engine import open_session, options, run
from onnxfuse.target import CPUS, runs_here
from tests.calls import on_cpu
from tests.cli.conftest import Onnxfuse
from tests.models.planted import wrong

BOTH = ("x86-64-v4", "x86-64-v3")
needs_v3 = pytest.mark.skipif(not runs_here(CPUS["x86-64-v3"]), reason="this machine cannot run x86-64-v3")
here = [name for name in BOTH if runs_here(CPUS[name])]

LAYERS = """<ir_version: 8, opset_import: ["" : 17]>
layers (float[N, 24] x) => (float[N, 40] y, float[N, 40] z)
{
    a = MatMul (x, w)
    b = Add (a, bias)
    y = Relu (b)
    c = Mul (b, bias)
    z = Tanh (c)
}"""


@pytest.fixture
def layers(here: Path) -> Path:
    """A product with packed weights whose columns fill no panel."""
    proto = onnx.parser.parse_model(LAYERS)
    random = np.random.default_rng(0)
    for name, shape in {"w": (24, 40), "bias": (40,)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(random.standard_normal(shape, np.float32), name))
    onnx.save(proto, here / "m.onnx")
    return Path("m.onnx")


@needs_v3
def test_one_library_for_two_instruction_sets(onnxfuse: Onnxfuse, layers: Path):
    said = onnxfuse("optimize", layers, "--arch", "x86-64-v3", "--arch", "x86-64-v4", "--json")
    assert said.code == 0, said.err
    found = said.json
    assert (found["target"], found["targets"]) == ("x86-64-v4", list(BOTH))
    assert found["verify"]["ok"] and found["verify"]["targets"] == here
    manifest = json.loads(Path("m.fused.fuse.json").read_text())
    assert [t["name"] for t in manifest["build"]["targets"]] == list(BOTH)
    assert all("avx2" in t["features"] for t in manifest["build"]["targets"])
    assert onnxfuse("inspect", "libm.fused.so", "--json").json["library"]["targets"] == list(BOTH)
    said = onnxfuse("verify", layers, "m.fused.onnx", "--groups", "--json")
    assert said.json["ok"] and said.json["targets"] == here
    assert len(said.json["runs"]) == 2 * (len(here) + 1)
    x = {"x": np.random.default_rng(1).standard_normal((7, 24), np.float32)}
    expected = run(open_session("m.onnx", options()), x)
    for isa in (*here, "", "none"):
        got = run(open_session("m.fused.onnx", options(libraries=["libm.fused.so"], isa=isa)), x)
        for a, b in zip(expected, got, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@needs_v3
def test_equal_builds_have_equal_bytes(onnxfuse: Onnxfuse, layers: Path):
    for folder, order in (("a", BOTH), ("b", BOTH[::-1])):
        Path(folder).mkdir()
        flags = [word for name in order for word in ("--arch", name)]
        assert onnxfuse("optimize", layers, f"{folder}/m.onnx", "--no-verify", *flags).code == 0
    for name in ("m.onnx", "libm.so", "m.fuse.json"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


@needs_v3
def test_a_fault_in_any_instruction_set_is_found(layers: Path, kernels: Path):
    def planted(kernel: Any, symbol: str, name: str, flags: tuple[str, ...]) -> Source:
        right = render(kernel, symbol, name, flags)
        return replace(right, text=wrong(right.text)) if symbol.endswith("v3") else right

    made = optimize(layers, "out.onnx", arch=BOTH, calls=on_cpu(render=planted), cache_dir=str(kernels))
    assert made.kernels == 0
    assert "E-NUMERICS" in {refusal.code for refusal in made.refusals}


@needs_v3
@pytest.mark.skipif(len(here) == 2, reason="this machine can run both")
def test_what_could_not_be_run_is_said(onnxfuse: Onnxfuse, layers: Path):
    said = onnxfuse("optimize", layers, "--arch", "x86-64-v3", "--arch", "x86-64-v4")
    assert said.code == 0 and "not verified: this machine cannot run kernels for x86-64-v4" in said.err


@needs_v3
def test_a_machine_without_the_best_verifies_the_others(
    onnxfuse: Onnxfuse, layers: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("onnxfuse.target.has_features", lambda names: "avx512f" not in names)
    said = onnxfuse("optimize", layers, "--arch", "x86-64-v3", "--arch", "x86-64-v4", "--json")
    assert said.code == 0 and said.json["verify"]["targets"] == ["x86-64-v3"]
    assert "not verified: this machine cannot run kernels for x86-64-v4" in said.json["notes"]
    assert "not verified: this machine" in onnxfuse("verify", layers, "m.fused.onnx").out
    said = onnxfuse("optimize", layers, "wide.onnx", "--arch", "x86-64-v4", "--json")
    assert said.code == 0 and said.json["verify"]["ok"] is None and said.json["verify"]["targets"] == []
    assert onnxfuse("optimize", layers, "more.onnx", "--arch", "x86-64-v4", "--verify").code == 5
    said = onnxfuse("verify", layers, "wide.onnx")
    assert said.code == 5 and "this machine cannot run kernels for x86-64-v4" in said.last


def test_what_no_library_can_be_for_is_refused(onnxfuse: Onnxfuse, layers: Path):
    said = onnxfuse("optimize", layers, "--arch", "x86-64-v3", "--arch", "aarch64")
    assert said.code == 2 and "one library cannot contain kernels for x86-64-v3 and aarch64" in said.last
    said = onnxfuse("optimize", layers, "--arch", "x86-64-v5")
    assert said.code == 2 and "did you mean" in said.last
    assert not Path("m.fused.onnx").exists()


@pytest.mark.skipif(platform.machine() == "aarch64" or find_spec("ziglang") is None, reason="needs the [zig] extra")
def test_a_library_for_another_architecture(onnxfuse: Onnxfuse, layers: Path):
    said = onnxfuse("optimize", layers, "--arch", "aarch64", "--json")
    assert said.code == 0, said.err
    assert said.json["verify"]["ok"] is None and said.json["verify"]["targets"] == []
    assert "cannot run kernels for aarch64; function bodies are right" in said.json["verify"]["message"]
    assert Path("libm.fused.so").read_bytes()[18] == 183  # e_machine of ELF: AArch64
    assert b"\0aarch64\0" in Path("libm.fused.so").read_bytes()
    assert "next " not in said.err, "function bodies would be measured"


@pytest.mark.skipif(platform.machine() == "aarch64", reason="about another architecture than this machine's")
def test_another_architecture_without_a_compiler(onnxfuse: Onnxfuse, layers: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CXX", raising=False)
    said = onnxfuse("optimize", layers, "--arch", "aarch64", "--toolchain", "clang")
    assert said.code == 4 and "no usable clang C++ compiler for aarch64" in said.last
    assert "onnxfuse[zig]" in said.err
