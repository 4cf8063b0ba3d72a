"""Operators whose axes, bounds or limits moved from attributes to inputs, in function bodies of each opset."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.emit.names import readable
from onnxfuse.emit.proto import attribute_proto
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Attribute
from tests.emit import plans

OPSETS = range(7, 23)


def step(op: str, x: str, y: str, opset: int, moved: dict[str, Attribute], since: int, constants: list, **attrs):
    """A node whose operands `moved` are inputs from opset `since` on, before that attributes."""
    if opset < since:
        return helper.make_node(op, [x], [y], **moved, **attrs)
    inputs = [x]
    for key, value in moved.items():
        name = f"{y}_{key}"
        array = np.array(value, np.int64) if key not in ("min", "max") else np.float32(value)
        constants.append(numpy_helper.from_array(np.asarray(array), name))
        inputs.append(name)
    return helper.make_node(op, inputs, [y], **attrs)


def chain(opset: int) -> onnx.ModelProto:
    """Clip, Slice, Unsqueeze, ReduceMean, ReduceSum and Squeeze in a row, on a symbolic batch."""
    held: list[onnx.TensorProto] = []
    nodes = [
        step("Clip", "x", "a", opset, {"min": -0.5, "max": 0.75}, 11, held),
        step("Slice", "a", "b", opset, {"starts": [1], "ends": [2**31 - 1], "axes": [2]}, 10, held),
        step("Unsqueeze", "b", "c", opset, {"axes": [1]}, 13, held),
        step("ReduceMean", "c", "d", opset, {"axes": [3]}, 18, held, keepdims=1),
        step("ReduceSum", "d", "e", opset, {"axes": [2]}, 13, held, keepdims=1),
        step("Squeeze", "e", "f", opset, {"axes": [1, 3]}, 13, held),
        helper.make_node("Neg", ["f"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", OPSETS)
def test_each_opset_has_its_own_spelling(opset, tmp_path):
    proto = chain(opset)
    emitted = plans.fused(proto, ["a b c d e f"])
    written = plans.written(emitted, tmp_path / "m.onnx")
    assert [n.domain for n in written.graph.node] == [plans.DOMAIN, ""]
    assert {o.domain: o.version for o in written.opset_import} == {"": opset, plans.DOMAIN: 1}
    (function,) = written.functions
    assert [(o.domain, o.version) for o in function.opset_import] == [("", opset)]
    plans.assert_same(proto, tmp_path / "m.onnx", {"x": plans.random(3, 4, 6)})


@pytest.mark.parametrize("opset", OPSETS)
def test_attributes_are_copied_as_they_are(opset, tmp_path):
    """The nodes of the body have the attributes of the model's nodes, bit by bit."""
    proto = chain(opset)
    (function,) = plans.written(plans.fused(proto, ["a b c d e f"]), tmp_path / "m.onnx").functions
    body = [n for n in function.node if n.op_type not in ("Constant", "Cast")]
    for mine, theirs in zip(body, proto.graph.node, strict=False):
        assert mine.op_type == theirs.op_type
        assert sorted(a.SerializeToString() for a in mine.attribute) == sorted(
            a.SerializeToString() for a in theirs.attribute
        )


def test_an_attribute_has_the_type_that_its_operator_declares():
    """Python says 1 or () where ONNX says 1.0, an empty list of integers, or of floats."""
    kind = onnx.AttributeProto
    assert attribute_proto("alpha", 1, kind.FLOAT).f == 1.0
    assert attribute_proto("scales", (1, 2), kind.FLOATS).type == kind.FLOATS
    assert attribute_proto("axes", (), kind.INTS).type == kind.INTS
    assert attribute_proto("mode", b"linear").s == attribute_proto("mode", "linear").s == b"linear"


def test_ir_version_is_raised_for_functions_and_never_lowered(tmp_path):
    for before, after in ((3, 8), (7, 8), (8, 8), (10, 10)):
        proto = chain(7)
        proto.ir_version = before
        if before == 3:  # then, initializers had to be inputs
            proto = chain(13)
            proto.ir_version = before
            held = [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in proto.graph.initializer]
            proto.graph.input.extend(held)
        written = plans.written(plans.fused(proto, ["a b c d e f"]), tmp_path / f"{before}.onnx")
        assert written.ir_version == after
        assert [v.name for v in written.graph.input] == ["x"]
        plans.assert_same(proto, tmp_path / f"{before}.onnx", {"x": plans.random(3, 4, 6)})


def test_readable_names():
    """Operators, shortened; the element type when it is not float32."""
    graph = plans.graph_of(chain(17))
    (whole,) = plans.bodied(graph, [plans.group(graph, "a b c d e f")])
    assert whole.op.startswith("Clip_ReduceMean_ReduceSum_") and len(whole.op.rsplit("_", 1)[1]) == 8
    assert readable(whole.body) == "Clip_ReduceMean_ReduceSum"
    long = type(whole.body)(
        (), ("out0",), (), ("LayerNormalization", "MatMul", "Add", "InstanceNormalization"), (F32,), 17
    )
    assert readable(long) == "LayerNormalization_MatMul_Add_x1"
    alone = type(whole.body)((), ("out0",), (), ("LayerNormalization" * 4,), (F32,), 17)
    assert len(readable(alone)) <= 40
