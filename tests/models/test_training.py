"""BatchNormalization in training mode is fused since opset 14; before, it stays unchanged, with all its outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.models.fused import Array
from tests.models.test_bodies import built, worst
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
PARTS = {"s": (4,), "t": (4,), "mean": (4,), "var": (4,), "w": (4, 3, 3, 3)}


def network(opset: int, outputs: int, read: bool, **attrs: int) -> onnx.ModelProto:
    """A convolution, a normalization with so many outputs, and an activation; its statistics are read or not."""
    made = ["b", "mean1", "var1", "mean2", "var2"][:outputs]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("LeakyRelu", ["c"], ["d"]),
        helper.make_node("BatchNormalization", ["d", "s", "t", "mean", "var"], made, **attrs),
        helper.make_node("Sigmoid", ["b"], ["e"]),
        helper.make_node("Mul", ["e", "b"], ["y"]),
    ]
    random = np.random.default_rng(4)
    stored = [numpy_helper.from_array(random.random(shape, np.float32), name) for name, shape in PARTS.items()]
    x = helper.make_tensor_value_info("x", 1, ["N", 3, "H", 7])
    outs = [helper.make_tensor_value_info(v, 1, None) for v in ["y", *(made[1:] if read else ())]]
    graph = helper.make_graph(nodes, "g", [x], outs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def images() -> list[dict[str, Array]]:
    """Batches of several sizes."""
    random = np.random.default_rng(5)
    return [{"x": random.normal(size=(n, 3, h, 7)).astype(np.float32)} for n, h in ((1, 1), (2, 5), (5, 16))]


def test_what_is_trained_without_running_statistics_stays(tmp_path: Path) -> None:
    """Before opset 14 the runtime gives none of the statistics."""
    result = built(network(9, 5, read=False), tmp_path)
    (refused,) = [r for r in result.refusals if "training mode" in r.reason]
    assert (result.kernels, result.nodes_left, refused.code) == (2, 1, "E-NO-KERNEL")
    assert worst(tmp_path, result, images()) <= 2e-6


@pytest.mark.parametrize(("opset", "read"), [(15, True), (14, False)])
def test_what_is_trained_is_fused(opset: int, read: bool, tmp_path: Path) -> None:
    result = built(network(opset, 3, read, training_mode=1), tmp_path)
    assert result.nodes_left == 0, result.refusals
    assert worst(tmp_path, result, images()) <= 5e-6


def test_standardized_weights_are_constants(tmp_path: Path) -> None:
    """Networks without normalized values export the standardization of weights as such a node.

    The runtime computes it with running statistics in the memory of those before, so that these have no other reader.
    """
    random = np.random.default_rng(6)
    stored = {"v": random.normal(size=(1, 8, 27)), **{name: random.random(8) for name in ("s", "t", "mean", "var")}}
    nodes = [
        helper.make_node("BatchNormalization", ["v", "s", "t", "mean", "var"], ["b", "m", "n"], training_mode=1),
        helper.make_node("Reshape", ["b", "to"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    kept = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()]
    kept.append(numpy_helper.from_array(np.array([8, 3, 3, 3]), "to"))
    x, y = helper.make_tensor_value_info("x", 1, ["N", 3, "H", 7]), helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph(nodes, "g", [x], [y], kept)
    result = built(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    assert worst(tmp_path, result, images()) <= 2e-6


def test_what_was_trained_is_fused(tmp_path: Path) -> None:
    result = built(network(15, 1, read=False, training_mode=0), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
