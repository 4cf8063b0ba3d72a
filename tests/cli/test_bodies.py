"""Subgraphs of control flow nodes are inspected and explained like the main graph."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxfuse_cli import explaining, inspecting

from onnxfuse.config import Options
from tests.models import bodies


def test_inspect_and_explain_look_into_bodies(tmp_path: Path) -> None:
    onnx.save(bodies.model("branches"), tmp_path / "m.onnx")
    facts = inspecting.inspect(str(tmp_path / "m.onnx")).document["model"]
    counts = {o["operator"]: o["count"] for o in facts["operators"]}
    assert counts == {"If": 1, "MatMul": 2, "Add": 1, "Relu": 1, "Abs": 1, "Sub": 1, "Sigmoid": 1}
    assert facts["parameters"] == bodies.WIDTH * bodies.WIDTH + bodies.WIDTH
    said = explaining.explain(str(tmp_path / "m.onnx"), "If_0/then_branch/MatMul_0", Options(), strict=True).document
    assert [g["name"] for g in said["groups"]] and {r["node"] for r in said["rules"]} == {"If_0/then_branch/MatMul_0"}
