"""Operators that are a kernel by themselves, at types and values where definitions and the runtime come apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

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
