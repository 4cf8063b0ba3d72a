"""The verbs beside `optimize`, and that JSON documents fit their schemas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse, Said, chain, lonely
from tests.cli.schema import problems
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


def test_the_schema_check_bites(onnxfuse: Onnxfuse, model: Path):
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
    assert "median of ratios" in found["statistic"] and found["verdict"] is None
    assert found["models"][1]["ops"][0]["origin"] == ["Mul_0", "Add_1", "Relu_2", "Sigmoid_3"]


def test_profile_for_people_and_against_a_baseline(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("profile", model, "--duration", "0.1", "--json-file", "now.json")
    assert said.code == 0 and said.out.splitlines()[0].split()[:3] == ["model", "min", "median"]
    fast = json.loads(Path("now.json").read_text())
    level = fast["models"][0]["level_ms"]

    def against(factor: float, *more: str, half: float = 1.0) -> Said:
        """The model again, against a baseline so many times as slow, of which half is known to such a factor only."""
        ms = {"value": level["value"] * factor, "low": level["low"] * factor / half, "high": level["high"] * factor}
        fast["models"][0]["level_ms"] = ms
        Path("then.json").write_text(json.dumps(fast))
        shown = ("--baseline", "then.json", "--fail-if-slower", "3%", "--json", *more)
        return onnxfuse("profile", model, "--duration", "0.1", *shown)

    said = against(0.001)
    assert said.code == 1 and "slower" in said.last and said.json["verdict"] == "slower"
    said = against(1000.0)
    assert said.code == 0 and said.json["verdict"] == "not slower"
    said = against(4.0, half=1e6)
    assert said.code == 0 and said.json["verdict"] == "inconclusive" and "--strict makes it an error" in said.err
    assert against(4.0, "--strict", half=1e6).code == 1
    del fast["models"][0]["level_ms"]  # of an earlier version: the least time is taken as it is
    fast["models"][0]["latency_ms"]["min"] *= 1000
    Path("old.json").write_text(json.dumps(fast))
    said = onnxfuse("profile", model, "--duration", "0.1", "--baseline", "old.json", "--fail-if-slower", "3%")
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
    assert done.code == 2 and "standard input holds one model only" in done.err


def test_inspect_a_library(onnxfuse: Onnxfuse, fused: Path):
    kernel = onnx.load(fused).graph.node[0]
    found = onnxfuse("inspect", "libf.so", "--json").json["library"]
    assert found["kernels"] == [kernel.op_type] and found["domains"] == [kernel.domain]
    assert onnxfuse("inspect", fused).out.count("onnxfuse.library = libf.so") == 1


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
