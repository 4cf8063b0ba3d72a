"""Operators that are a kernel by themselves, at types and values where definitions and the runtime come apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.models.fused import Array
from tests.models.sizes import built, wrong
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
_RANDOM = np.random.default_rng(2)
_WHOLE = _RANDOM.integers(-9, 9, (2, 3)).astype(np.int32)
_IMAGE = _RANDOM.standard_normal((1, 8, 4, 4)).astype(np.float32)
# By name: a graph, and values for x. The runtime sums exponentials of integers as integers; codes of nothing but zeros
# have the scale 1; EyeLike and MeanVarianceNormalization have to run as function bodies too.
CASES: dict[str, tuple[str, list[Array]]] = {
    "exponentials-of-integers": (
        "(int32[2, 3] x) => (int32[2, 3] y) { t = ReduceLogSumExp <axes = [1], keepdims = 1> (x)  y = Add (t, x) }",
        [_WHOLE, np.zeros_like(_WHOLE)],
    ),
    "codes-of-zeros": (
        "(float[4] x) => (uint8[4] a, float b, uint8 c) { a, b, c = DynamicQuantizeLinear (x) }",
        [np.zeros(4, np.float32), np.array([-0.0, 0, 0, 0], np.float32), np.full(4, 3, np.float32)],
    ),
    "ones-on-a-diagonal": (
        "(float[4, 13] x) => (float[4, 13] y) { y = EyeLike <k = -2> (x) }",
        [np.ones((4, 13), np.float32)],
    ),
    "mean-and-variance": (
        "(float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y) { y = MeanVarianceNormalization (x) }",
        [_IMAGE, 100 * _IMAGE],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_lone_operator_equals_the_runtime_with_and_without_library(name: str, tmp_path: Path) -> None:
    text, values = CASES[name]
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> g {text}')
    result = built(model, tmp_path, strict=True, min_group=1)
    assert result.kernels == 1
    assert wrong(tmp_path, result, [{"x": x} for x in values], 1e-5) == {}


def layer(op: str, gates: int, units: int, batch: int | str) -> onnx.ModelProto:
    """A recurrent layer of any number of steps, over as many features as it has units."""
    weights = [_RANDOM.standard_normal((1, gates * units, units)) / units**0.5 for _ in range(2)]
    held = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in zip("wr", weights, strict=True)]
    shapes = {"x": ["T", batch, units], "y": ["T", 1, batch, units]}
    x, y = (helper.make_tensor_value_info(v, onnx.TensorProto.FLOAT, shape) for v, shape in shapes.items())
    node = helper.make_node(op, ["x", "w", "r"], ["y"], hidden_size=units)
    graph = helper.make_graph([node], "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_recurrent_layer_alone_is_a_kernel_where_it_is_predicted_faster(tmp_path: Path) -> None:
    result = built(layer("RNN", 1, 64, "N"), tmp_path, strict=True)
    assert result.kernels == 1
    inputs = [{"x": _RANDOM.standard_normal((t, n, 64)).astype(np.float32)} for t, n in ((1, 1), (9, 1), (5, 7))]
    assert wrong(tmp_path, result, inputs, 1e-5) == {}


def test_one_sequence_of_many_units_stays_with_the_runtime(tmp_path: Path) -> None:
    """The runtime divides the products of a step among threads; said of one class of machines, whatever this one is."""
    model, arch = layer("LSTM", 4, 512, 1), ("x86-64-v3",)
    assert built(model, tmp_path, strict=True, arch=arch, min_group=1).kernels == 1
    result = built(model, tmp_path, strict=True, arch=arch)
    assert result.kernels == 0
    assert any(r.code == "E-COST" and "predicted to take" in r.reason for r in result.refusals)
