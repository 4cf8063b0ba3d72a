"""Nodes and values keep their names; unsupported attributes are preserved; functions are inlined."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.graph import Constant
from onnxfuse.load import load, simplify_shapes
from tests.load.models import disagreements, graph_of, parse


def test_names_are_kept_and_missing_ones_are_made():
    model = parse(
        "g (float[2] x) => (float[2] y) { a = Relu(x)\n b = Relu(a)\n c = Relu(b)\n d = Neg(c)\n y = Neg(d) }"
    )
    for node, name in zip(model.graph.node, ("", "twin", "twin", "Relu_0", ""), strict=True):
        node.name = name
    graph = graph_of(model)
    names = [n.name for n in graph.nodes]
    assert names == ["Relu_1", "twin", "twin_0", "Relu_0", "Neg_0"]
    assert names == [n.name for n in graph_of(model).nodes]
    assert all(n.origin == (n.name,) and graph.source.nodes[n.name].output[0] == n.outputs[0] for n in graph.nodes)


def test_nodes_are_put_in_order():
    graph = graph_of("g (float[2] x) => (float[2] y) { y = Neg(b)\n b = Relu(a)\n a = Abs(x) }")
    assert [n.op for n in graph.nodes] == ["Abs", "Relu", "Neg"]


def test_attributes_of_every_kind():
    node = helper.make_node(
        "Odd", ["x"], ["y"], domain="mine", i=3, f=0.5, s="text", ints=[1, 2], floats=[1.0, 2.0], strings=["a", "b"]
    )
    node.attribute.append(helper.make_attribute("t", numpy_helper.from_array(np.arange(3))))
    node.attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
    [found] = graph_of(one_node(node)).nodes
    tensor = found.attrs["t"]
    assert isinstance(tensor, Constant) and tensor.load().tolist() == [0, 1, 2]
    rest = {"i": 3, "f": 0.5, "s": "text", "ints": (1, 2), "floats": (1.0, 2.0), "strings": ("a", "b"), "none": ()}
    assert {k: v for k, v in found.attrs.items() if k != "t"} == rest
    assert found.raw is None and found.domain == "mine"


@pytest.mark.parametrize(
    "attribute",
    [
        helper.make_attribute("a", helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
        helper.make_attribute("a", [numpy_helper.from_array(np.arange(3))]),
        helper.make_attribute("a", b"\xff\xfe"),
        helper.make_attribute(
            "a",
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.ones(1), "v"), numpy_helper.from_array(np.zeros(1, np.int64)), [2]
            ),
        ),
    ],
    ids=["type", "tensors", "bytes", "sparse"],
)
def test_attributes_without_a_form_make_a_node_opaque(attribute: onnx.AttributeProto):
    node = helper.make_node("Odd", ["x"], ["y"], domain="mine")
    node.attribute.append(attribute)
    [found] = graph_of(one_node(node)).nodes
    assert found.raw == node and "a" not in found.attrs


def one_node(node: onnx.NodeProto) -> onnx.ModelProto:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", imports=', "mine": 1')
    model.graph.node[0].CopyFrom(node)
    return model


def test_both_spellings_of_the_default_domain_are_one():
    """A function body in which nodes are of ai.onnx is refused by the runtime, which knows "" there."""
    model = parse("g (float[2] x) => (float[2] y) { a = Relu(x)\n y = Exp(a) }")
    for node in model.graph.node:
        node.domain = "ai.onnx"
    assert [(n.domain, n.key) for n in graph_of(model).nodes] == [("", "Relu"), ("", "Exp")]


def test_values_that_are_no_tensors():
    """Sequences, optionals, maps and strings have no type of ours; their nodes are carried along."""
    model = parse(
        """g (float[2] x, seq(float[N]) s, optional(float[2]) o, string[3] t)
        => (seq(float[N]) u, float[2] y, string[3] v) { q = SequenceConstruct(x, x)
          u = SequenceInsert(s, x)
          y = OptionalGetElement(o)
          v = Identity(t) }"""
    )
    probabilities = model.graph.output.add(name="z")
    probabilities.type.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
    probabilities.type.sequence_type.elem_type.map_type.value_type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    model.graph.node.append(helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml"))
    graph = graph_of(model)
    assert [graph.types[v] for v in ("s", "o", "t", "q", "u", "v", "z")] == [None] * 7
    assert repr(graph.types["y"]) == "float32[2]"


# Constants and inputs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ir", [3, 8])
def test_initializers_that_are_inputs_too(ir: int):
    """Before IR 4 every initializer had to be listed as an input; since then that means that callers may replace it."""
    model = parse("g (float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", ir=ir, opset=12)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = graph_of(model)
    if ir == 3:
        assert graph.inputs == ("x",) and "w" in graph.constants and graph.source.overridable == ()
    else:
        assert graph.inputs == ("x", "w") and "w" not in graph.constants and graph.source.overridable == ("w",)
        assert len(graph.source.warnings) == 1
        assert "--constant-initializers" in graph.source.warnings[0]
    assert repr(graph.types["w"]) == "float32[2]"
    taken = graph_of(model, constant_initializers=True)
    assert taken.inputs == ("x",) and "w" in taken.constants
    assert not taken.source.overridable and not taken.source.warnings


def test_a_constant_string_stays_a_node():
    node = helper.make_node("Constant", [], ["y"], value_string="text")
    model = one_node(node)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    [found] = graph_of(model).nodes
    assert found.op == "Constant" and found.attrs == {"value_string": "text"}


def test_outputs_that_are_inputs_or_constants():
    graph = graph_of("g (float[2] x) => (float[2] x, float[1] w) <float[1] w = {1}> { }")
    assert graph.nodes == () and graph.outputs == ("x", "w")
    assert simplify_shapes(graph).constants.keys() == {"w"}


# Subgraphs ------------------------------------------------------------------------------------------------------------

NESTED = """
g (float[2] x, bool c, float[2] w) => (float[2] y)
{
    h = Relu(x)
    y = If (c) <
        then_branch = inner () => (float[2] o) { h = Neg(w)\n o = Add(h, x) },
        else_branch = other () => (float[2] o) {
            d = Not(c)
            o = If (d) <
                then_branch = deep () => (float[2] p) { p = Add(h, d2) },
                else_branch = deep2 () => (float[2] p) { p = Identity(w) }
            >
            d2 = Abs(w)
        }
    >
}
"""


def test_captured_values_respect_shadowing():
    """`h` of the first branch is its own, that of the second is the outer one; names of inner graphs do not get out."""
    graph = graph_of(NESTED)
    branch = next(n for n in graph.nodes if n.op == "If")
    assert branch.captures == ("c", "h", "w", "x")
    assert branch.raw is not None and branch.raw.attribute[0].g.name == "inner"
    assert branch.reads == ("c", "c", "h", "w", "x")
    assert repr(graph.types["y"]) == "float32[2]"
    assert [n.op for n in simplify_shapes(graph).nodes] == ["Relu", "If"]


def test_loops_capture_too():
    graph = graph_of(
        """g (int64 n, bool c, float[2] x, float[2] w) => (float[2] y)
        { y = Loop (n, c, x) < body = b (int64 i, bool d, float[2] s) => (bool e, float[2] t)
            { e = Identity(d)\n t = Add(s, w) } > }"""
    )
    assert graph.nodes[0].captures == ("w",) and graph.nodes[0].inputs == ("n", "c", "x")


# Functions ------------------------------------------------------------------------------------------------------------

FUNCTIONS = """
<ir_version: 8, opset_import: ["": 18, "mine": 1]>
g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
{ tmp = Relu(x)\n y = mine.scale <by = 3.0> (tmp)\n z = mine.twice (y) }
<domain: "mine", opset_import: ["": 18]>
scale <by: float = 2.0> (a) => (b) { tmp = Constant <value_float: float = @by> ()\n b = Mul(a, tmp) }
<domain: "mine", opset_import: ["": 18, "mine": 1]>
twice (a) => (b) { tmp = mine.scale (a)\n b = mine.scale <by = 5.0> (tmp) }
"""


def test_functions_become_their_bodies():
    model = onnx.parser.parse_model(FUNCTIONS)
    graph = graph_of(model)
    assert [n.op for n in graph.nodes] == ["Relu", "Mul", "Mul", "Mul"]
    assert graph.nodes[0].outputs == ("tmp",) and graph.nodes[1].outputs == ("y",) and graph.nodes[3].outputs == ("z",)
    factors = [graph.constants[n.inputs[1]].load().item() for n in graph.nodes[1:]]
    assert factors == [3.0, 2.0, 5.0]  # given, by default, given
    assert repr(graph.types["z"]) == "float32[N, 4]" and not graph.source.proto.functions
    assert not disagreements(graph.source.proto, graph, {"x": np.ones((3, 4), np.float32)})


def test_functions_of_another_opset_stay_calls():
    model = onnx.parser.parse_model(FUNCTIONS)
    model.functions[0].opset_import[0].version = 17
    graph = graph_of(model)
    assert [n.op for n in graph.nodes] == ["Relu", "scale", "scale", "scale"]
    assert "mine::scale" in graph.source.warnings[0]


def test_functions_that_call_themselves_stay_calls():
    model = onnx.parser.parse_model(FUNCTIONS)
    model.functions[0].node[1].CopyFrom(helper.make_node("twice", ["a"], ["b"], domain="mine"))
    assert [n.op for n in graph_of(model).nodes] == ["Relu", "scale", "twice"]


def test_an_optimized_model_is_recognised():
    model = onnx.parser.parse_model(FUNCTIONS)
    nodes = (*model.graph.node, *(n for f in model.functions for n in f.node))
    opsets = (*model.opset_import, *(o for f in model.functions for o in f.opset_import))
    for part in (*nodes, *opsets, *model.functions):
        part.domain = part.domain.replace("mine", "onnxfuse.0123456789ab")
    graph = graph_of(model)
    assert graph.source.already_fused and [n.op for n in graph.nodes] == ["Relu", "scale", "twice"]
    assert not graph_of(onnx.parser.parse_model(FUNCTIONS)).source.already_fused


def test_loading_leaves_the_bytes_alone():
    data = onnx.parser.parse_model(FUNCTIONS).SerializeToString()
    assert load(data, Options()).source.data == data
