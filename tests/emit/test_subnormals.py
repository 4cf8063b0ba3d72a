"""Subnormal weights of sums are stored as zeros, where that is less than a rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse.emit.weights import without_subnormals
from onnxfuse.pipeline import optimize
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

EDGES = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1.1754942e-38, 1.1754944e-38, -1.1754944e-38, np.inf, np.nan], np.float32
)


def test_exactly_the_subnormals_go() -> None:
    weights = np.concatenate([np.full(70_000, 0.5, np.float32), EDGES]).reshape(-1, 2)
    before, found = weights.copy(), without_subnormals(weights).reshape(-1)
    assert np.array_equal(before, weights, equal_nan=True), "the loaded weights are not changed"
    kept = np.where((np.abs(EDGES) < 1.1754944e-38) & (EDGES != 0), np.float32(0), EDGES)
    assert np.array_equal(found[70_000:], kept, equal_nan=True)
    assert np.array_equal(np.signbit(found[70_000:70_002]), [False, True])
    assert np.all(found[:70_000] == 0.5)


@pytest.mark.parametrize("largest", [1e-39, 1e-31])
def test_where_no_weight_is_large_they_count(largest: float) -> None:
    weights = np.array([[largest, 1e-40]], np.float32)
    assert np.array_equal(without_subnormals(weights), weights)


@needs_compiler
@pytest.mark.parametrize("operator", ["MatMul", "Conv"])
def test_a_model_with_subnormal_weights(operator: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shape, x = ((256, 64), "n, 256") if operator == "MatMul" else ((64, 16, 3, 3), "n, 16, 9, 7")
    weights = random.normal(size=shape).astype(np.float32)
    dead = random.random(shape) < 0.5
    weights[dead] *= np.float32(1e-40)
    assert np.count_nonzero((np.abs(weights) < np.finfo(np.float32).tiny) & (weights != 0)) > 1000
    body = f"g (float[{x}] x) => (float y) {{ a = {operator} (x, w)  y = Relu (a) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {body}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    result = optimize(
        tmp_path / "m.onnx", tmp_path / "o.onnx", verify=True, gain=False, strict=True, min_group=1, winograd=False,
        cache_dir=str(CACHE),
    )  # fmt: skip
    assert result.kernels == 1
    stored = [onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "o.onnx").graph.initializer]
    (packed,) = [a for a in stored if a.size >= weights.size]
    assert np.count_nonzero(packed) == np.count_nonzero(~dead)
