"""Duplicate names and constants are resolved as by the runtime, and do not collide with the compiler's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.load.names import OWN
from tests.emit import plans

Array = np.ndarray[Any, Any]
X, Y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 5]) for name in "xy")
FEEDS = {"x": np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)}


def model(nodes: list[onnx.NodeProto], held: dict[str, float] | None = None, more: tuple[str, ...] = ()) -> Any:
    stored = [numpy_helper.from_array(np.full(5, v, np.float32), name) for name, v in (held or {}).items()]
    inputs = [X, *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [5]) for name in more)]
    graph = helper.make_graph(nodes, "g", inputs, [Y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def constant(value: float, name: str = "c") -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.full(5, value, np.float32)))


def original(proto: onnx.ModelProto, feeds: dict[str, Array] = FEEDS) -> list[Array]:
    return list(ort.InferenceSession(proto.SerializeToString()).run(None, feeds))


ADD = helper.make_node("Add", ["x", "c"], ["t"])
END = helper.make_node("Relu", ["t"], ["y"])


@pytest.mark.parametrize(
    "proto",
    [
        model([constant(1.0), ADD, END], {"c": 2.0}),
        model([constant(1.0), constant(3.0), ADD, END]),
        model([helper.make_node("Constant", [], ["c"], value_floats=[4.0] * 5), ADD, END], {"c": 2.0}),
    ],
    ids=["initializer", "twice", "floats"],
)
def test_of_constants_of_one_name_the_last_node_counts(proto: onnx.ModelProto, tmp_path: Path) -> None:
    expected = original(proto)
    plans.written(plans.fused(proto, ["t y"]), tmp_path / "m.onnx")
    for a, b in zip(expected, plans.outputs(tmp_path / "m.onnx", FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("held", [{}, {"c": 2.0}], ids=["alone", "with an initializer"])
def test_a_constant_that_is_an_input_is_its_default(held: dict[str, float], tmp_path: Path) -> None:
    proto = model([constant(1.0), ADD, END], held, ("c",))
    plans.written(plans.fused(proto, ["t y"]), tmp_path / "m.onnx", full=False)
    for feeds in (FEEDS, {**FEEDS, "c": np.full(5, 9.0, np.float32)}) if held else ({**FEEDS, "c": FEEDS["x"][0]},):
        np.testing.assert_array_equal(plans.outputs(tmp_path / "m.onnx", feeds)[0], original(proto, feeds)[0])


OTHERS = ["y%exp", "y%max", "y%sum", "%v0", "%acc", "s%exp", "%", "in%0"]


def named_like_ours(other: str) -> onnx.ModelProto:
    """A softmax beside a value whose name is `other`."""
    nodes = [
        helper.make_node("Relu", ["x"], [other]),
        helper.make_node("Softmax", ["x"], ["s"], axis=1),
        helper.make_node("Add", ["s", other], ["z"]),
        helper.make_node("Mul", ["z", other], ["y"]),
    ]
    return model(nodes)


@pytest.mark.parametrize("other", OTHERS)
def test_names_like_ours_are_others_while_they_are_worked_on(other: str) -> None:
    graph = load(named_like_ours(other).SerializeToString(), Options())
    assert not any(OWN in value for value in (*graph.types, *graph.constants))
    assert list(graph.source.spelled.values()) == [other]


@pytest.mark.parametrize("taken", [False, True])
def test_names_like_ours_are_in_the_file_again(taken: bool, tmp_path: Path) -> None:
    """Of inputs, outputs and weights too, and where the plain name is another value's."""
    nodes = [
        helper.make_node("Add", ["x%0", "w%"], ["t"]),
        helper.make_node("Relu", ["t"], ["x_0" if taken else "u"]),
        helper.make_node("Neg", ["x_0" if taken else "u"], ["y%"]),
    ]
    inputs, outputs = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 5]) for n in ("x%0", "y%"))
    weights = [numpy_helper.from_array(np.ones(5, np.float32), "w%")]
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    written = plans.written(plans.fused(proto, ["t " + ("x_0" if taken else "u")]), tmp_path / "m.onnx")
    assert [v.name for v in written.graph.input] == ["x%0"] and [v.name for v in written.graph.output] == ["y%"]
    assert [t.name for t in written.graph.initializer] == ["w%"]
    feeds = {"x%0": FEEDS["x"]}
    np.testing.assert_array_equal(plans.outputs(tmp_path / "m.onnx", feeds)[0], original(proto, feeds)[0])


@pytest.mark.parametrize("other", OTHERS[:4])
def test_a_kernel_beside_a_name_like_ours_is_right(other: str, tmp_path: Path) -> None:
    proto = named_like_ours(other)
    made = onnxfuse.optimize(proto.SerializeToString(), tmp_path / "m.onnx", verify=False)
    assert made.kernels
    found = onnxfuse.session(tmp_path / "m.onnx").run(None, FEEDS)
    np.testing.assert_allclose(found[0], original(proto)[0], rtol=1e-5, atol=1e-6)


def test_a_shape_is_given_by_the_name_in_the_file() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x%"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x%", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = load(proto.SerializeToString(), Options(input_shape=("x%:3,5",)))
    shape = found.types["y"]
    assert shape is not None and shape.static_shape == (3, 5)
