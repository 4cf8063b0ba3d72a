"""All opsets from 7 on: the same computation gets the same types in every opset."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.load import simplify_shapes
from onnxfuse.ops.rows import ROWS
from onnxfuse.ops.spec import define, view_of
from tests.load.models import disagreements, graph_of, parse

Make = Callable[..., onnx.NodeProto]


def computation(opset: int) -> onnx.ModelProto:
    """Dimensions dropped, added, sliced, clipped, padded, split, reduced and normalized, as the opset spells that."""
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def const(name: str, value: object, dtype: object = np.int64) -> str:
        weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(op: str, *inputs: str, out: str | tuple[str, ...], **attrs: object) -> None:
        nodes.append(helper.make_node(op, inputs, [out] if isinstance(out, str) else list(out), **attrs))

    def with_axes(op: str, x: str, axes: list[int], out: str, since: int, **attrs: object) -> None:
        if opset >= since:
            node(op, x, const(f"{out}_axes", axes), out=out, **attrs)
        else:
            node(op, x, out=out, axes=axes, **attrs)

    with_axes("Squeeze", "x", [1], "a", 13)
    with_axes("Unsqueeze", "a", [0], "b", 13)
    if opset >= 10:
        node("Slice", "b", const("starts", [1]), const("ends", [2**62]), const("at", [3]), out="c")
    else:
        node("Slice", "b", out="c", starts=[1], ends=[2**62], axes=[3])
    if opset >= 11:
        node("Clip", "c", const("low", 0, np.float32), const("high", 6, np.float32), out="d")
        node("Pad", "d", const("pads", [0, 0, 1, 0, 0, 0, 1, 0]), out="e")
    else:
        node("Clip", "c", out="d", min=0.0, max=6.0)
        node("Pad", "d", out="e", pads=[0, 0, 1, 0, 0, 0, 1, 0])
    if opset >= 13:
        node("Split", "e", const("sizes", [2, 4]), out=("f", "g"), axis=2)
    else:
        node("Split", "e", out=("f", "g"), axis=2, split=[2, 4])
    with_axes("ReduceSum", "f", [2], "h", 13, keepdims=1)
    with_axes("ReduceMean", "g", [2], "i", 18, keepdims=1)
    node("Add", "h", "i", out="j")
    node("Softmax", "j", out="k", axis=3)
    node("Shape", "k", out="shape")
    node("Gather", "shape", const("one", 1), out="extent")
    with_axes("Unsqueeze", "extent", [0], "extent1", 13)
    node("Concat", "extent1", const("rest", [-1]), out="target", axis=0)
    node("Reshape", "k", "target", out="y")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 4, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4 if opset < 10 else 8)


@pytest.mark.parametrize("opset", range(7, 23))
def test_the_same_computation_in_every_opset(opset: int):
    model = computation(opset)
    graph = graph_of(model)
    assert graph.opset == opset and not graph.source.warnings
    assert repr(graph.types["y"]) == "float32[N, 5]"
    assert all(graph.types[o] is not None for n in graph.nodes for o in n.outputs)
    refused = [n.op for n in graph.nodes if not isinstance(define(ROWS, view_of(graph, n)), tuple)]
    assert set(refused) <= {"Shape"}
    assert [repr(e) for e in graph.known["target"]] == ["N", "-1"]
    assert not disagreements(model, graph, {"x": np.random.default_rng(0).random((3, 1, 4, 6), np.float32)})


@pytest.mark.parametrize("opset", [1, 6])
def test_opsets_before_7_load_and_nothing_has_a_row(opset: int):
    model = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }", opset=opset)
    graph = graph_of(model)
    assert graph.opset == 0 and graph.source.opsets == {"": opset}
    assert not isinstance(define(ROWS, view_of(graph, graph.nodes[0])), tuple)
    assert f"opset {opset} is older" in graph.source.warnings[0]
    assert repr(graph.types["y"]) == "float32[2, 3]"


def test_unknown_opsets_load_without_rows():
    newest = onnx.defs.onnx_opset_version()
    graph = graph_of(parse("g (float[2, 3] x) => (float[2, 3] y) { t = Relu(x)\n y = Neg(t) }", opset=newest + 1))
    assert graph.opset == 0 and f"newer than {newest}" in graph.source.warnings[0]
    assert len(simplify_shapes(graph).nodes) == 2


def test_a_model_of_other_domains_alone():
    model = parse("g (float[2] x) => (float[2] y) { y = mine.F(x) }", imports=', "mine": 3')
    del model.opset_import[0]
    graph = graph_of(model)
    assert graph.source.opsets == {"mine": 3} and not graph.source.warnings
    assert graph.nodes[0].domain == "mine" and repr(graph.types["y"]) == "float32[2]"
    assert graph.source.unproven == ("y",)


def test_the_long_name_of_the_default_domain():
    model = parse("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }")
    model.opset_import[0].domain = model.graph.node[0].domain = "ai.onnx"
    graph = graph_of(model)
    assert graph.opset == 20 and isinstance(define(ROWS, view_of(graph, graph.nodes[0])), tuple)


@pytest.mark.parametrize(
    ("op", "attrs", "opset"),
    [("Relu", {}, 21), ("HardSwish", {}, 0), ("Swish", {}, 0), ("Cast", {"to": TensorProto.FLOAT}, 0)],
)
def test_the_default_domain_may_be_used_without_a_version(op: str, attrs: dict[str, int], opset: int):
    nodes = [
        helper.make_node("FastGelu", ["x"], ["t"], domain="com.microsoft"),
        helper.make_node(op, ["t"], ["y"], **attrs),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    found = graph_of(model)
    assert found.opset == opset  # Relu is the same in all opsets from 21 on; the others are newer, or changed
    assert [f"{op} changed" in w for w in found.source.warnings] == ([] if opset else [True])
