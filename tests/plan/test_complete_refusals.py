"""Refusals are complete: every node left is named, equal layers have equal reasons, and unlocks work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxfuse_cli.explaining import explain

from onnxfuse import Options, optimize
from onnxfuse.config import STRATEGIES
from onnxfuse.ir.graph import Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.refusals import unnamed
from tests.emit import plans

ALONE = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] x) => (float[4, 8] y, int64[K, M] z) { y = Neg(x)\n z = NonZero(y) }"""
SHAPE = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] x) => (float[32] y, int64[K, M] z) { s = Constant<value = int64[1] {32}>()
 y = Reshape(x, s)
 z = NonZero(y) }"""
PRODUCT = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] x) => (float[4, 16] y) <float[8, 16] w> { y = MatMul(x, w) }"""
APART = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] x) => (float[4, 1] a, float[1, 8] b)
{ a = ReduceMax<axes = [1], keepdims = 1>(x)\n b = ReduceMean<axes = [0], keepdims = 1>(x) }"""
KEPT = """<ir_version: 8, opset_import: ["": 17]>
g (float[4, 8] x) => (float[4, 8] y) { a = Neg(x)\n b = Relu(a)\n c = Abs(b)\n y = Exp(c) }"""
SIZES = """<ir_version: 8, opset_import: ["": 18]>
g (float[N, 3, H, W] x) => (float[N, 3, P, Q] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}>
{ a = Relu(x)\n b = Resize<mode = "cubic", antialias = 1>(a, , s)\n y = Neg(b) }"""


FOREIGN = """<ir_version: 8, opset_import: ["": 17, "com.example": 1]>
g (float[N, 5] x) => (float[N, M] y) { d = com.example.Twist(x)\n e = Exp(d)\n y = Mul(e, e) }"""
SIZES_BEHIND = SIZES.replace("Relu(x)", "MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)")


def model(text: str) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(text)
    if not proto.graph.initializer and "w>" in text:
        proto.graph.initializer.append(numpy_helper.from_array(np.ones((8, 16), np.float32), "w"))
    return proto


def staying(graph: Graph, groups: Iterator[Any]) -> list[Any]:
    inside = {n.outputs for g in groups for n in g.nodes}
    return [n for n in graph.nodes if n.outputs not in inside]


@pytest.mark.parametrize("text", [ALONE, SHAPE, APART, KEPT, SIZES])
@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_node_left_to_the_runtime_has_a_refusal(text: str, least: int, strategy: str) -> None:
    graph = plans.graph_of(model(text))
    made = plan(graph, ROWS, Options(min_group=least, strategy=strategy))
    assert not unnamed(staying(made.graph, iter(made.groups)), made.decisions)


def test_a_node_without_a_refusal_is_found() -> None:
    graph = plans.graph_of(model(ALONE))
    assert [n.op for n in unnamed(graph.nodes, plan(graph, ROWS, Options()).decisions[:1])] in (["Neg"], ["NonZero"])


UNLOCKED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    (ALONE, {}, {"min_group": 1}),
    (SHAPE, {}, {"min_group": 1}),
    (APART, {}, {"min_group": 1}),
    (KEPT, {"skip_node": (".*",)}, {}),
    (SIZES, {}, {"dim": ("H=9", "W=9")}),
    (SIZES_BEHIND, {}, {"dim": ("H=9", "W=9")}),
)


@pytest.mark.parametrize(("text", "given", "flags"), UNLOCKED)
def test_an_unlock_unlocks(text: str, given: dict[str, Any], flags: dict[str, Any]) -> None:
    """The flag that a refusal names makes a kernel of the nodes that it names."""
    data = model(text).SerializeToString()
    before = optimize(data, "unused.onnx", dry_run=True, **given)
    locked = [
        r
        for r in before.refusals
        if not r.unlock.startswith("none") and (r.code == "E-SHAPE-UNKNOWN" or "dim" not in flags)
    ]
    assert locked and all(any(f"--{name.replace('_', '-')}" in r.unlock for name in (*flags, *given)) for r in locked)
    after = optimize(data, "unused.onnx", dry_run=True, **flags)
    fused = {name for g in after.groups for name in g.nodes}
    assert all(fused.issuperset(r.nodes) for r in locked), (locked, fused)


def test_shapes_after_an_opaque_node_are_not_asked_of_the_inputs() -> None:
    """No input's shape tells what only an unknown operator knows; its value's type in the model does."""
    proto = model(FOREIGN)
    before = optimize(proto.SerializeToString(), "unused.onnx", dry_run=True)
    locked = [r for r in before.refusals if r.code == "E-SHAPE-UNKNOWN"]
    assert {r.nodes[0] for r in locked} == {"Exp_0", "Mul_0"} and before.kernels == 0
    assert {r.unlock for r in locked} == {
        "state the shape of d, which com.example::Twist makes, in value_info of the model"
    }
    proto.graph.value_info.append(helper.make_tensor_value_info("d", 1, ["N", 5]))
    after = optimize(proto.SerializeToString(), "unused.onnx", dry_run=True)
    assert {name for g in after.groups for name in g.nodes} == {"Exp_0", "Mul_0"}


def layers(count: int) -> bytes:
    """Each a product that is left alone, and what no kernel is made of."""
    nodes, stored = [], []
    for k in range(count):
        nodes.append(helper.make_node("NonZero", [f"x{k}"], [f"z{k}"], name=f"layer.{k}/NonZero"))
    inputs = [helper.make_tensor_value_info(f"x{k}", 1, [2, 3]) for k in range(count)]
    outputs = [helper.make_tensor_value_info(f"z{k}", 7, None) for k in range(count)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_equal_reasons_of_layers_are_one_line() -> None:
    found = explain(layers(12), None, Options(), strict=True)
    said = [line.split() for line in found.lines if "NonZero" in line]
    assert [line[:4] for line in said] == [["E-NO-KERNEL", "12", "x", "layer.*/NonZero"]]
    assert len(found.document["refusals"]) == 12
    (alone,) = [line for line in explain(layers(1), None, Options(), strict=True).lines if "NonZero" in line]
    assert "layer.0/NonZero" in alone and " x " not in alone


GIVEN = """<ir_version: 8, opset_import: ["": 17]>
g (float[2, 8, 16] x, float[2, 16, 4] z) => (float[2, 16, 8] t, float[2, 8, 4] y)
{ t = Transpose<perm = [0, 2, 1]>(x)\n u = Transpose<perm = [0, 2, 1]>(t)\n e = Exp(u)\n y = MatMul(e, z) }"""


def test_an_output_of_the_model_that_is_taken_out_of_it_is_fused() -> None:
    proto = model(GIVEN)
    made = plan(plans.graph_of(proto), ROWS, Options())
    (told,) = {(d.reason, d.unlock) for d in made.decisions if d.code == "E-FANOUT" and d.unlock}
    assert told == ("the result of Transpose is an output of the model", "remove t from the outputs of the model")
    assert [n.op for g in made.groups for n in g.nodes].count("Transpose") == 1
    del proto.graph.output[0]
    without = plan(plans.graph_of(proto), ROWS, Options())
    assert [n.op for g in without.groups for n in g.nodes].count("Transpose") == 2


def test_what_constants_alone_decide_is_computed_once_by_the_runtime() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1500, 1500] x) => (float[1500, 1500] y) <float[1500, 1] a, float[1, 1500] b, int64[2] s = {1500, 1500}>
    { t = Mul(a, b)\n u = Sin(t)\n z = Expand(b, s)\n v = Neg(x)\n w = Add(v, u)\n y = Add(w, z) }"""
    proto = onnx.parser.parse_model(text)
    for name, shape in (("a", (1500, 1)), ("b", (1, 1500))):
        proto.graph.initializer.append(
            numpy_helper.from_array(np.linspace(0, 1, 1500, dtype=np.float32).reshape(shape), name)
        )
    made = plan(plans.graph_of(proto), ROWS, Options())
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Expand", "Neg", "Add", "Add"]]
    assert {d.nodes for d in made.decisions if "computes it once" in d.reason} == {("Mul_0",), ("Sin_0",)}


def test_weights_that_a_model_decodes_are_read_as_codes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[8, 1200] x) => (float[8, 1200] y) <float scale = {0.01}>
    { n = Neg(x)\n c = Cast<to = 1>(codes)\n w = Mul(c, scale)\n y = MatMul(n, w) }"""
    proto = onnx.parser.parse_model(text)
    codes = np.random.default_rng(0).integers(-128, 128, (1200, 1200), np.int8)
    proto.graph.initializer.append(numpy_helper.from_array(codes, "codes"))
    made = plan(plans.graph_of(proto), ROWS, Options())
    assert not any("computes it once" in d.reason for d in made.decisions)
    assert any(n.op == "Mul" for g in made.groups for n in g.nodes)
