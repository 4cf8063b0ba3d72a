"""Reason codes that need a model of their own: sizes, limits, and nodes with subgraphs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse import optimize
from onnxfuse.report.result import Refusal

WIDER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[8, 64] x, float[3, 8, 64] z) => (float[3, 8, 64] y) { a = MatMul(x, w) b = Add(a, z) y = Relu(b) }"""
BRANCHES = """<ir_version: 8, opset_import: ["" : 17]>
g (bool c, float[4, 8] x) => (float[4, 8] y) {
  a = Abs(x) b = Neg(a)
  y = If(c) <then_branch = t () => (float[4, 8] u) { p = Exp(b) u = Neg(p) },
            else_branch = e () => (float[4, 8] v) { q = Sin(b) v = Neg(q) }> }"""


def refusals(text: str, strategy: str | None = None, **weights: tuple[int, ...]) -> tuple[Refusal, ...]:
    proto = onnx.parser.parse_model(text)
    for name, shape in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return optimize(proto.SerializeToString(), dry_run=True, strict=True, strategy=strategy).refusals


def test_work_on_more_elements_than_a_product_has():
    assert "E-NUMEL" in {r.code for r in refusals(WIDER, "anchors", w=(64, 64))}


def test_group_sizes_are_limited():
    steps = " ".join(f"v{i + 1} = {('Sin', 'Exp')[i % 2]}(v{i})" for i in range(70))
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[64] v0) => (float[64] v70) {{ {steps} }}"""
    assert "E-RESOURCE" in {r.code for r in refusals(text)}


def test_a_node_that_holds_graphs():
    assert "E-SUBGRAPH" in {r.code for r in refusals(BRANCHES)}
