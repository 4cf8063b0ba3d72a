"""The verbs beside `optimize`, and that JSON documents fit their schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from onnxfuse.runtime import process, provider
from onnxfuse.target.device import Device, Driver
from tests.cli.conftest import BUSY, Onnxfuse, Said, chain, lonely
from tests.cli.contract.schema import problems
from tests.craft.sources import ROOT


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def fused(onnxfuse: Onnxfuse, model: Path) -> Path:
    """The model of this folder, fused."""
    assert onnxfuse("optimize", model, "f.onnx", "--no-verify", "-q").code == 0
    return Path("f.onnx")


def test_results_of_optimize_fit_their_schema(onnxfuse: Onnxfuse, model: Path):
    onnx.save(lonely(), "l.onnx")
    for arguments in ((model,), ("l.onnx",), (model, "--dry-run"), (model, "a.onnx", "--no-verify", "--gain")):
        found = onnxfuse("optimize", *arguments, "--json").json
        assert list(problems(found, schema("optimize"))) == []


def test_the_document_of_a_file_has_the_drawing_too(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", model, "f.onnx", "--json", "--json-file", "f.json")
    document = json.loads(Path("f.json").read_text(encoding="utf-8"))
    assert list(problems(document, schema("optimize"))) == []
    drawing = document.pop("drawing")
    assert document == said.json
    before, after = ([n["op"] for n in drawing[side]["nodes"]] for side in ("before", "after"))
    kernels = {g["kernel"] for g in document["groups"]}
    assert kernels and kernels <= set(after) and set(drawing["listings"]) == kernels
    assert {n["kernel"] for n in drawing["before"]["nodes"]} >= {g["name"] for g in document["groups"]}
    assert before[0] == "input" and len(before) == document["nodes_before"] + 2
    chain, (kernel,) = drawing["before"]["nodes"][1:-1], drawing["after"]["nodes"][1:-1]
    assert [n["live_bytes"] for n in chain] == [512, 1024, 1024, 1024], "the input of the model is its caller's"
    assert kernel["live_bytes"] == 512 and kernel["bytes"] < sum(n["bytes"] for n in chain)
    assert kernel["flops"] == sum(n["flops"] for n in chain)


def test_a_result_that_violates_its_schema_is_reported(onnxfuse: Onnxfuse, model: Path):
    found = onnxfuse("optimize", model, "--dry-run", "--json").json
    found["kernels"] = "many"
    del found["seconds"]
    found["groups"][0]["extra"] = 1
    found["refusals"] = [{"code": "no", "nodes": [], "reason": "", "unlock": ""}]
    assert len(list(problems(found, schema("optimize")))) == 4


def test_profile_measures_both_models(onnxfuse: Onnxfuse, model: Path, fused: Path):
    said = onnxfuse("profile", model, fused, "--duration", "0.2", "--level", "op", "--threads", "1", "--json")
    found = said.json
    assert said.code == 0 and list(problems(found, schema("profile"))) == []
    assert [m["path"] for m in found["models"]] == ["m.onnx", "f.onnx"]
    assert found["interval"]["low"] <= found["speedup"] <= found["interval"]["high"]
    assert "median of the ratios" in found["statistic"] and found["verdict"] is None
    assert found["models"][1]["ops"][0]["origin"] == ["Mul_0", "Add_1", "Relu_2", "Sigmoid_3"]


def test_profile_for_people_and_against_a_baseline(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("profile", model, "--duration", "0.2", "--json-file", "now.json")
    assert said.code == 0 and said.out.splitlines()[0].split()[:4] == ["model", "min", "ms", "median"]
    fast = json.loads(Path("now.json").read_text())
    value = fast["models"][0]["level_ms"]["value"]

    def against(factor: float, *more: str, half: float = 1.0) -> Said:
        """The model again, against a baseline so many times as slow, of which half is known to such a factor only."""
        ms = {"value": value * factor, "low": value * factor * 0.9 / half, "high": value * factor * 1.1}
        fast["models"][0]["level_ms"] = ms
        Path("then.json").write_text(json.dumps(fast))
        return compared("then.json", "--json", *more)

    def compared(with_file: str, *more: str) -> Said:
        """The model against a file."""
        return onnxfuse("profile", model, "--duration", "0.2", "--baseline", with_file, "--fail-if-slower", "3%", *more)

    def decided(factor: float) -> Said:
        """The first answer that is one: where other work lengthens most turns, a measurement may tell nothing."""
        for _ in range(BUSY):
            if (said := against(factor)).json["verdict"] != "inconclusive":
                break
            assert said.code == 0
        return said

    said = decided(0.001)
    assert said.code == 1 and "slower" in said.last and said.json["verdict"] == "slower"
    said = decided(1000.0)
    assert said.code == 0 and said.json["verdict"] == "not slower"
    said = against(4.0, half=1e6)
    assert said.code == 0 and said.json["verdict"] == "inconclusive" and "--strict makes it an error" in said.err
    assert against(4.0, "--strict", half=1e6).code == 1
    # As a machine writes it that was busy from beginning to end: it may be any time, so nothing can be told.
    fast["models"][0]["level_ms"] = {"value": value, "low": 0.0, "high": None}
    Path("busy.json").write_text(json.dumps(fast))
    assert compared("busy.json", "--json").json["verdict"] == "inconclusive"
    del fast["models"][0]["level_ms"]  # of an earlier version: the least time is taken as it is
    fast["models"][0]["latency_ms"]["min"] *= 1000
    Path("old.json").write_text(json.dumps(fast))
    said = next((s for _ in range(BUSY) if "inconclusive" not in (s := compared("old.json")).out), said)
    assert said.code == 0 and "verdict   not slower" in said.out


def test_verify_says_yes(onnxfuse: Onnxfuse, model: Path, fused: Path):
    said = onnxfuse("verify", model, fused, "--groups", "--json")
    assert said.code == 0 and said.json["ok"] is True
    assert len(said.json["runs"]) == 4 and [g["ok"] for g in said.json["groups"]] == [True]


def test_verify_says_no_and_what_would_pass(onnxfuse: Onnxfuse, model: Path):
    other = chain()
    other.graph.initializer[0].raw_data = other.graph.initializer[1].raw_data
    onnx.save(other, "other.onnx")
    said = onnxfuse("verify", model, "other.onnx")
    assert said.code == 1 and "other.onnx differs from m.onnx" in said.last
    assert "FAILED" in said.out
    tolerance = next(line for line in said.out.splitlines() if line.startswith("tolerance")).split()[1]
    assert onnxfuse("verify", model, "other.onnx", "--rtol", str(float(tolerance) * 1.1)).code == 0


def test_verify_of_models_that_have_other_outputs_does_not_speak_of_tolerances(onnxfuse: Onnxfuse, model: Path):
    other = chain()
    other.graph.output.append(onnx.helper.make_tensor_value_info("kept", onnx.TensorProto.FLOAT, [4, 32]))
    onnx.save(other, "other.onnx")
    said = onnxfuse("verify", model, "other.onnx")
    assert said.code == 1 and "its outputs are y, kept instead of y" in said.last
    assert "onnxfuse diff shows where" in said.last and "--rtol" not in said.last and "verify: outputs" not in said.err


def test_inspect_a_model(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("inspect", model, "--json")
    found = said.json["model"]
    assert (found["nodes"], found["parameters"], found["flops"]) == (4, 64, 4 * 4 * 32)
    assert found["inputs"] == {"x": "float32[4, 32]"}
    types = {o["operator"]: list(o["mapping_types"]) for o in found["operators"]}
    assert types["Relu"] == ["One-to-One"]
    assert "Relu" in onnxfuse("inspect", model).out


def test_a_model_on_standard_input(model: Path):
    program = f"{sys.executable} -m onnxfuse_cli"
    done = process.run(("sh", "-c", f"{program} inspect - < m.onnx && {program} verify m.onnx - < m.onnx"))
    assert done.code == 0 and "4 nodes" in done.out and "no optimizations" in done.out, done.err
    done = process.run(("sh", "-c", f"{program} verify - - < m.onnx"))
    assert done.code == 2 and "standard input is one model only" in done.err


def test_inspect_a_library(onnxfuse: Onnxfuse, fused: Path):
    kernel = onnx.load(fused).graph.node[0]
    found = onnxfuse("inspect", "libf.so", "--json").json["library"]
    assert found["kernels"] == [kernel.op_type] and found["domains"] == [kernel.domain]
    assert onnxfuse("inspect", fused).out.count("onnxfuse.library = libf.so") == 1


def test_a_library_says_what_its_kernels_stand_for(onnxfuse: Onnxfuse, fused: Path):
    """By the manifest and the model beside it: original nodes, types, what it asks of a machine and of the runtime."""
    found = onnxfuse("inspect", "libf.so", "--json").json["library"]
    (call,) = found["calls"]
    assert call["nodes"] == ["Mul_0", "Add_1", "Relu_2", "Sigmoid_3"]
    assert (call["inputs"], call["outputs"]) == (["float32"] * 3, ["float32"])
    assert found["runs_here"] and found["runtime"] == "ONNX Runtime 1.18 or newer"
    assert found["features"].keys() == set(found["targets"])
    said = onnxfuse("inspect", "libf.so").out
    assert "3 float32 -> float32" in said and "Mul_0, Add_1, Relu_2 and 1 more" in said
    Path("f.fuse.json").unlink()
    alone = onnxfuse("inspect", "libf.so")
    assert alone.code == 0 and "the original nodes of its kernels are unknown" in alone.out


def test_variables_that_set_nothing_are_warned_about(onnxfuse: Onnxfuse, model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONNXFUSE_VERIFFY", "1")
    monkeypatch.setenv("ONNXFUSE_ISA", "none")
    said = onnxfuse("inspect", "m.onnx")
    assert said.err == "note      ONNXFUSE_VERIFFY sets no flag; did you mean ONNXFUSE_VERIFY?\n"
    assert onnxfuse("inspect", "m.onnx", "-q").err == ""


def test_config_is_of_all_verbs(onnxfuse: Onnxfuse, here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONNXFUSE_WARMUP", "7")
    Path("onnxfuse.toml").write_text('duration = "9s"\nfast-math = true\n')
    found = onnxfuse("config", "--json").json
    assert found["options"]["fast-math"] == {"value": True, "from": str(here / "onnxfuse.toml")}
    assert found["verbs"]["profile"]["warmup"] == {"value": 7, "from": "environment"}
    assert found["verbs"]["profile"]["duration"] == {"value": 9.0, "from": str(here / "onnxfuse.toml")}
    assert found["verbs"]["bisect"]["metric"] == {"value": "error", "from": "default"}
    assert "profile warmup" in onnxfuse("config").out


def test_dimensions_that_are_not_there_are_refused(onnxfuse: Onnxfuse, model: Path):
    onnx.save(lonely(), "l.onnx")
    said = onnxfuse("profile", "m.onnx", "--dim", "batch=8")
    assert said.code == 2 and "no input of m.onnx has such a dimension" in said.last and "no symbolic" in said.last
    said = onnxfuse("profile", "l.onnx", "--dim", "n=8")
    assert said.code == 2 and ("did you mean N?" in said.last or "it has N" in said.last)
    said = onnxfuse("profile", "l.onnx", "--dim", "N=8", "--inputs", "x.npz")
    assert said.code == 2 and "which has sizes" in said.last
    assert onnxfuse("profile", "l.onnx", "--dim", "N=" + ",".join(map(str, range(1, 20)))).code == 2
    assert onnxfuse("verify", "l.onnx", "l.onnx", "--dim", "N=1,2").code == 2


def test_profile_of_several_sizes(onnxfuse: Onnxfuse, here: Path):
    onnx.save(lonely(), "l.onnx")
    said = onnxfuse("profile", "l.onnx", "l.onnx", "--dim", "N=2,500", "--duration", "0.1s", "--json-file", "p.json")
    assert said.code == 0, said.err
    assert "N 500" in said.out
    found = json.loads(Path("p.json").read_text())
    assert list(problems(found, schema("profile"))) == []
    assert [each["dims"] for each in found["sizes"]] == [{"N": 2}, {"N": 500}]
    assert found["inputs"] == {"x": [2, 3]} == found["sizes"][0]["inputs"]
    assert all(each["models"][0]["min_ms"] > 0 for each in found["sizes"])
    assert "N 500" in onnxfuse("report", "p.json").out


def test_explain_counts_open_sizes_at_stated_values(onnxfuse: Onnxfuse, here: Path):
    """The plan is the one for open sizes; only the figures are of these sizes."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 64, M] x) => (float[N, 64, M] y) { a = Exp (x) b = Softmax <axis = 1> (a) y = Neg (b) }"""
    onnx.save(onnx.parser.parse_model(text), here / "open.onnx")
    usual, stated = (onnxfuse("explain", "open.onnx", *more, "--json").json for more in ((), ("--dim-hint", "M=256,9")))
    assert (usual["counted_at"], stated["counted_at"]) == ({"M": 128, "N": 1}, {"M": 256, "N": 1})
    (one,), (two,) = usual["groups"], stated["groups"]
    assert one["kernel"] == two["kernel"] and one["schedules"] == two["schedules"]
    assert two["flops"] == 2 * one["flops"] > 0 and two["bytes"] == 2 * one["bytes"] == 2 * 4 * 64 * 256
    assert two["predicted_ms"] > one["predicted_ms"] > 0.0 and two["runtime_ms"] > one["runtime_ms"] > 0.0
    fixed = onnxfuse("explain", "open.onnx", "--dim", "N=1", "--dim", "M=256", "--json").json
    assert fixed["counted_at"] == {} and fixed["groups"][0]["bytes"] == two["bytes"]
    said = onnxfuse("explain", "open.onnx").out
    assert "counted at M=128, N=1" in said and "--dim-hint M=N" in said and " us" in said


def test_explain_counts_sizes_without_a_name(onnxfuse: Onnxfuse, here: Path):
    """An open dimension without a name has no hint, and is told by its input and axis."""
    text = "nameless (float[N, 8] x) => (float[N, 8] y) { t = Relu (x) y = Tanh (t) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
    onnx.save(model, "nameless.onnx")
    said = onnxfuse("explain", "nameless.onnx")
    assert said.code == 0 and "counted at x[0]=" in said.out + said.err


def test_explain_shows_groups_and_refusals(onnxfuse: Onnxfuse, model: Path):
    found = onnxfuse("explain", model, "--skip-node", "Relu", "--min-group", "1", "--json").json
    assert [g["nodes"] for g in found["groups"]] == [["Mul_0", "Add_1"], ["Sigmoid_3"]]
    assert ("E-KEEP", ["Relu_2"]) in [(r["code"], r["nodes"]) for r in found["refusals"]]
    said = onnxfuse("explain", model, "--skip-node", "Relu", "--node", "Relu")
    assert "E-KEEP" in said.out and "Sigmoid_3" not in said.out and "rules" in said.out
    assert sorted(p.name for p in Path().iterdir()) == ["m.onnx"]
    missed = onnxfuse("explain", model, "--node", "no_such_node")
    assert missed.code == 2 and "no node matches --node no_such_node" in missed.err


def test_doctor(onnxfuse: Onnxfuse, here: Path):
    found = onnxfuse("doctor", "--json").json
    assert set(found["compilers"]) == {"auto", "gcc", "clang", "zig"} and found["target"]["lanes"] >= 4
    assert found["amx"]["here"] >= found["amx"]["granted"]
    said = onnxfuse("doctor").out
    assert "compiler auto" in said and "\namx " in said
    assert found["measured"] is None or found["measured"]["gflops"] > 0


def test_the_cache(onnxfuse: Onnxfuse, model: Path):
    assert onnxfuse("optimize", model, "--cache-dir", "kept", "--no-verify").code == 0
    found = onnxfuse("cache", "info", "--cache-dir", "kept", "--json").json
    assert found["entries"] >= 3 and found["removed"] == 0
    emptied = onnxfuse("cache", "gc", "--max-size", "1", "--cache-dir", "kept", "--json").json
    assert emptied["removed"] == found["entries"] and emptied["entries"] == 0


def test_the_rules_are_listed(onnxfuse: Onnxfuse):
    said = onnxfuse("optimize", "--list-passes")
    assert said.code == 0 and any(line.split()[:2] == ["fold", "exact"] for line in said.out.splitlines())


@pytest.mark.parametrize("arguments", [("verify", "m.onnx", "m.onnx"), ("profile", "m.onnx"), ("tune", "m.onnx")])
@pytest.mark.parametrize(
    ("driver", "providers", "said"),
    [
        (None, [], "there is no GPU here: no CUDA driver"),
        (Driver(13000, ()), [], "there is no GPU here: the CUDA driver has no device"),
        (Driver(12040, (Device("A100", 80),)), [], "the CUDA driver knows CUDA 12.4, kernels need 13.0"),
        (Driver(13000, (Device("A100", 80),)), ["CPUExecutionProvider"], "no CUDAExecutionProvider"),
    ],
)
def test_what_runs_models_on_a_gpu_says_what_is_missing(
    onnxfuse: Onnxfuse,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    driver: Driver | None,
    providers: list[str],
    said: str,
):
    monkeypatch.setattr(provider, "cuda_driver", lambda: driver)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    found = onnxfuse(*arguments, "--target", "cuda")
    assert found.code == 5
    assert said in found.err and "scripts/gpu_check.sh" in found.err
