"""The outputs and messages of `optimize`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfuse as front
from onnxfuse.errors import UsageError
from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse, chain, files, lonely


def outputs(path: Path, library: Path | None = None) -> np.ndarray:
    options = ort.SessionOptions()
    if library is not None:
        options.register_custom_ops_library(str(library.absolute()))
    session = ort.InferenceSession(str(path), options)
    x = np.random.default_rng(7).standard_normal((4, 32), np.float32)
    return session.run(None, {"x": x})[0]


def test_three_files_that_compute_the_same(onnxfuse: Onnxfuse, model: Path, here: Path):
    said = onnxfuse("optimize", model)
    assert said.code == 0, said.err
    assert files(here) == {"m.onnx", "m.fused.onnx", "libm.fused.so", "m.fused.fuse.json"}
    expected = outputs(model)
    np.testing.assert_allclose(outputs(Path("m.fused.onnx"), Path("libm.fused.so")), expected, rtol=1e-6)
    np.testing.assert_allclose(outputs(Path("m.fused.onnx")), expected, rtol=1e-6)
    x = np.random.default_rng(7).standard_normal((4, 32), np.float32)
    np.testing.assert_allclose(front.session("m.fused.onnx").run(None, {"x": x})[0], expected, rtol=1e-6)
    assert len(onnx.load("m.fused.onnx").graph.node) == 1


def test_it_tells_each_step_on_stderr_only(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", model, "out.onnx")
    assert said.out == ""
    lines = said.err.splitlines()
    steps, end = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert [line.split()[0] for line in steps] == ["read", "rewrite", "plan", "compile", "verify", "wrote"]
    assert "opset 17, 4 nodes" in said.err
    assert "4 nodes -> 1 kernel; 0 nodes left to ONNX Runtime" in said.err
    assert steps[-1] == "wrote     out.onnx  libout.so  out.fuse.json"
    assert "\x1b" not in said.err
    assert [" ".join(line.split()) for line in end[:8]] == [
        "nodes flops bytes",
        "operator before after before after before after",
        "Mul 1 - 128 - 1.2 k -",
        "Add 1 - 128 - 1.2 k -",
        "Relu 1 - 128 - 1.0 k -",
        "Sigmoid 1 - 128 - 1.0 k -",
        "kernels (1 distinct) - 1 - 512 - 1.3 k",
        "all nodes 4 1 512 512 4.4 k 1.3 k",
    ]
    assert end[-1] == "next      onnxfuse profile m.onnx out.onnx"
    assert onnxfuse(*end[-1].split()[2:], "--duration", "0.1").code == 0, "what is said to be next works"


def test_quiet_says_nothing(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", "-q", model)
    assert (said.code, said.out, said.err) == (0, "", "")


def test_verbose_says_more(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", "-v", model, "--no-verify")
    assert {"seconds", "memory", "kernel"} <= {line.split()[0] for line in said.err.splitlines() if line}


def test_the_flag_names_the_output_as_the_argument_does(onnxfuse: Onnxfuse, model: Path):
    assert onnxfuse("optimize", model, "-o", "a.onnx", "--lib", "b.so", "--manifest", "c.json", "--no-verify").code == 0
    assert Path("a.onnx").exists() and Path("b.so").exists() and Path("c.json").exists()
    said = onnxfuse("optimize", model, "x.onnx", "-o", "y.onnx")
    assert said.code == 2 and "OUT is x.onnx and -o is y.onnx" in said.err


def test_the_result_holds_what_is_promised(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", model, "--json")
    found = said.json
    assert said.code == 0
    assert found["output"] == {
        "model": "m.fused.onnx",
        "library": "libm.fused.so",
        "manifest": "m.fused.fuse.json",
        "data": None,
        "lock": None,
    }
    assert (found["nodes_before"], found["nodes_after"], found["nodes_left"], found["kernels"]) == (4, 1, 0, 1)
    assert found["distinct_kernels"] == found["phases"] == 1
    assert found["phase_bytes"] == 4 * 32 * 4
    group = found["groups"][0]
    assert group["nodes"] == ["Mul_0", "Add_1", "Relu_2", "Sigmoid_3"]
    assert group["bytes"] == 2 * 4 * 32 * 4 + 2 * 32 * 4
    assert found["verify"]["ok"] is True and found["verify"]["max_error"] <= found["verify"]["limit"]
    assert found["gain"] is None
    assert set(found["seconds"]) >= {
        "load",
        "rewrite",
        "plan",
        "lower",
        "schedule",
        "render",
        "build",
        "emit",
        "verify",
    }
    assert found["peak_memory_bytes"] > 10_000_000


def test_the_result_goes_to_a_file_too(onnxfuse: Onnxfuse, model: Path):
    assert onnxfuse("optimize", model, "--json-file", "r.json", "--no-verify").code == 0
    assert json.loads(Path("r.json").read_text())["kernels"] == 1
    said = onnxfuse("optimize", model, "other.onnx", "--json-file", "r.json")
    assert said.code == 2 and "r.json exists" in said.err
    assert not Path("other.onnx").exists()


def test_equal_builds_have_equal_bytes(onnxfuse: Onnxfuse, model: Path):
    for folder in ("a", "b"):
        Path(folder).mkdir()
        assert onnxfuse("optimize", model, f"{folder}/m.onnx", "--no-cache", "--no-verify").code == 0
    for name in ("m.onnx", "libm.so", "m.fuse.json"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_the_manifest_names_the_library_and_how_it_is_loaded(onnxfuse: Onnxfuse, model: Path, here: Path):
    onnxfuse("optimize", model, "--no-verify")
    manifest = json.loads(Path("m.fused.fuse.json").read_text())
    assert manifest["library"] == "libm.fused.so"
    assert [k["nodes"] for k in manifest["kernels"]] == [["Mul_0", "Add_1", "Relu_2", "Sigmoid_3"]]
    assert set(manifest["load"]) == {"onnxfuse", "python", "c", "cpp", "csharp", "java", "triton"}
    scope = {"onnxruntime": ort}
    exec(manifest["load"]["python"], scope)
    assert [i.name for i in scope["session"].get_inputs()] == ["x"]
    assert str(here) not in Path("m.fused.fuse.json").read_text()


def test_nothing_fused_is_a_plain_copy(onnxfuse: Onnxfuse, here: Path):
    onnx.save(lonely(), "l.onnx")
    said = onnxfuse("optimize", "l.onnx", "--json")
    assert said.code == 0
    assert (said.json["kernels"], said.json["output"]["library"]) == (0, None)
    assert Path("l.fused.onnx").read_bytes() == Path("l.onnx").read_bytes()
    assert not Path("libl.fused.so").exists()
    assert "nothing was fused" in said.err


def test_a_model_with_our_kernels_is_copied_unchanged(onnxfuse: Onnxfuse, model: Path):
    onnxfuse("optimize", model, "a.onnx", "--no-verify")
    said = onnxfuse("optimize", "a.onnx", "b.onnx")
    assert said.code == 0 and "has kernels of onnxfuse already" in said.err
    assert Path("b.onnx").read_bytes() == Path("a.onnx").read_bytes()


def test_require_fusion_answers_no(onnxfuse: Onnxfuse, model: Path, here: Path):
    said = onnxfuse("optimize", model, "--require-fusion", "2")
    assert said.code == 1 and "made 1 kernel, fewer than the 2 required" in said.last
    assert files(here) == {"m.onnx"}


def test_a_dry_run_writes_nothing(onnxfuse: Onnxfuse, model: Path, here: Path):
    said = onnxfuse("optimize", model, "--dry-run", "--json")
    assert said.code == 0 and said.json["kernels"] == 1
    assert said.json["output"]["model"] is None and said.json["stopped_after"] == "render"
    assert files(here) == {"m.onnx"}


@pytest.mark.parametrize("step", ["load", "rewrite", "plan", "lower", "schedule", "render", "build", "emit", "verify"])
def test_it_stops_after_a_step_and_prints_what_that_made(onnxfuse: Onnxfuse, model: Path, here: Path, step: str):
    said = onnxfuse("optimize", model, "--stop-after", step, "--print", step)
    assert said.code == 0, said.err
    wanted = {
        "lower": "sigmoid(",
        "schedule": "  phase over ",
        "render": "#include",
        "build": "libm.fused.so",
        "verify": "ok=True",
    }
    assert wanted.get(step, "Sigmoid") in said.out
    assert files(here) == {"m.onnx"}


def test_external_data_is_beside_the_model(onnxfuse: Onnxfuse, here: Path):
    proto = chain()
    weights = np.random.default_rng(0).standard_normal((32, 64), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    proto.graph.node.append(onnx.helper.make_node("MatMul", ["y", "w"], ["z"], name="MatMul_4"))
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", 1, [4, 64]))
    onnx.save(proto, "m.onnx")
    said = onnxfuse("optimize", "m.onnx", "--save-as-external-data", "--json", "--no-verify")
    assert said.code == 0, said.err
    assert said.json["output"]["data"] == "m.fused.data"
    assert Path("m.fused.data").stat().st_size >= weights.nbytes
    np.testing.assert_allclose(outputs(Path("m.fused.onnx"), Path("libm.fused.so")), outputs(Path("m.onnx")), rtol=1e-5)


def test_symbols_get_values(onnxfuse: Onnxfuse, here: Path):
    proto = chain()
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(proto, "m.onnx")
    said = onnxfuse("optimize", "m.onnx", "--dim", "batch=3", "--json")
    assert said.code == 0 and said.json["groups"][0]["flops"] is not None
    made = onnx.load("m.fused.onnx").graph.input[0].type.tensor_type.shape.dim[0]
    assert made.dim_value == 3
    said = onnxfuse("optimize", "m.onnx", "s.onnx", "--json", "--no-verify", "--dim-hint", "batch=3")
    assert said.code == 0 and said.json["counted_at"] == {"batch": 3}
    assert onnx.load("s.onnx").graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_gain_is_measured_when_asked_for(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", model, "--gain", "--json")
    gain = said.json["gain"]
    assert gain["before_ms"] > 0 and gain["after_ms"] > 0
    assert gain["low"] <= gain["speedup"] <= gain["high"] and gain["sizes"][0]["shapes"] == {"x": [4, 32]}
    assert any(line.startswith("gain ") for line in said.err.splitlines())


def piped(*arguments: str, stdin: bytes, kernels: Path) -> tuple[int, bytes, str]:
    command = (sys.executable, "-m", "onnxfuse_cli", *arguments)
    Path("in.bin").write_bytes(stdin)
    script = '"$@" < in.bin > out.bin'
    done = process.run(("sh", "-c", script, "sh", *command), env={"ONNXFUSE_CACHE_DIR": str(kernels)})
    return done.code, Path("out.bin").read_bytes(), done.err


def test_streams(here: Path, kernels: Path):
    arguments = ("optimize", "-", "-o", "-", "--lib", "libs.so", "--json-file", "s.json", "--no-verify")
    code, out, err = piped(*arguments, stdin=chain().SerializeToString(), kernels=kernels)
    assert code == 0, err
    Path("s.onnx").write_bytes(out)
    assert len(onnx.load("s.onnx").graph.node) == 1
    assert json.loads(Path("s.json").read_text())["output"]["model"] == "-"
    assert files(here) == {"in.bin", "out.bin", "libs.so", "s.json", "s.onnx"}
    assert outputs(Path("s.onnx"), Path("libs.so")).shape == (4, 32)


def test_python_takes_the_same_options(model: Path, kernels: Path):
    result = front.optimize(model, "p.onnx", cache_dir=str(kernels), verify=False)
    assert result.kernels == 1 and result.output.library == "libp.so"
    assert front.verify(model, "p.onnx", library="libp.so").ok is True
    with pytest.raises(UsageError, match="did you mean strategy"):
        front.optimize(model, "q.onnx", strategi="none")
    with pytest.raises(UsageError, match="strategy is not 'fast'"):
        front.optimize(model, "q.onnx", strategy="fast")
    made = front.optimize(model.read_bytes(), "r.onnx", cache_dir=str(kernels), verify=False)
    assert made.model.path is None and Path("r.onnx").exists()
