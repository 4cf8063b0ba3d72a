"""Fused nodes may stand inside If, Loop and Scan, on inner and outer values, with the library and without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.runtime import twice

ROUNDS = 3
X = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def value(name: str, *dims: int, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def fused(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Twice", [x], [y], f"fused_{y}", domain=twice.DOMAIN)


def branches() -> list[onnx.NodeProto]:
    """y = 2 h + 1 where the condition holds, else -h, for an outer value h."""
    then = helper.make_graph([fused("h", "a")], "then", [], [value("a", 4, 5)])
    other = helper.make_graph([helper.make_node("Neg", ["h"], ["b"])], "other", [], [value("b", 4, 5)])
    return [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]


def loop() -> list[onnx.NodeProto]:
    """y is h after some rounds of h = (2 h + 1) + (2 x + 1), x an outer value."""
    inside = [
        fused("carried", "s"),
        fused("x", "t"),
        helper.make_node("Add", ["s", "t"], ["next"]),
        helper.make_node("Identity", ["go"], ["on"]),
    ]
    ins = [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("carried", 4, 5)]
    body = helper.make_graph(inside, "body", ins, [value("on", kind=TensorProto.BOOL), value("next", 4, 5)])
    return [helper.make_node("Loop", ["rounds", "c", "h"], ["y"], body=body)]


def scan() -> list[onnx.NodeProto]:
    """y holds 2 r + 1 for each row r of h."""
    body = helper.make_graph([fused("row", "made")], "body", [value("row", 1, 5)], [value("made", 1, 5)])
    return [
        helper.make_node("Unsqueeze", ["h", "one"], ["rows"]),
        helper.make_node("Scan", ["rows"], ["scanned"], body=body, num_scan_inputs=1),
        helper.make_node("Squeeze", ["scanned", "one"], ["y"]),
    ]


def model(nodes: list[onnx.NodeProto]) -> bytes:
    """A model in which `nodes` make y of x, h = |x| and the condition c."""
    proto = twice.model()
    del proto.graph.node[:], proto.graph.input[:], proto.graph.output[:], proto.graph.value_info[:]
    proto.graph.node.extend([helper.make_node("Abs", ["x"], ["h"]), *nodes])
    proto.graph.input.extend([value("x", 4, 5), value("c", kind=TensorProto.BOOL)])
    proto.graph.output.append(value("y", 4, 5))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(ROUNDS), "rounds"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    return bytes(proto.SerializeToString())


def wanted(what: str, condition: bool) -> np.ndarray:
    h = np.abs(X)
    if what == "If":
        return 2 * h + 1 if condition else -h
    if what == "Loop":
        for _ in range(ROUNDS if condition else 0):
            h = (2 * h + 1) + (2 * X + 1)
        return h
    return 2 * h + 1


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("what", ["If", "Loop", "Scan"])
def test_fused_nodes_in_inner_graphs(good: Path, what: str, registered: bool, optimize: bool) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if registered:
        options.register_custom_ops_library(str(good))
    nodes = {"If": branches, "Loop": loop, "Scan": scan}[what]()
    session = ort.InferenceSession(model(nodes), options, providers=["CPUExecutionProvider"])
    for condition in (True, False):
        (y,) = session.run(None, {"x": X, "c": np.array(condition)})
        np.testing.assert_allclose(y, wanted(what, condition), rtol=1e-5)


def test_inner_graphs_run_the_kernel_not_the_body(wrong: Path) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(wrong))
    session = ort.InferenceSession(model(branches()), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": X, "c": np.array(True)})
    assert not np.allclose(y, wanted("If", True), rtol=5e-3)
