"""Models of each class of convolutions between images that lie line by line: kernels are made, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxfuse
from models.convolutions import models
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
SMALLEST = {name: min(sizes) for name, (_, sizes) in models().items()}


@pytest.mark.parametrize("name", SMALLEST)
def test_a_class_has_kernels_that_are_right(name: str, tmp_path: Path) -> None:
    build, _ = models()[name]
    model = build(SMALLEST[name])
    onnx.save(model, tmp_path / "model.onnx")
    result = onnxfuse.optimize(tmp_path / "model.onnx", tmp_path / "fused.onnx", min_group=1, verify=True)
    assert result.kernels, result
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    fused = onnxfuse.session(tmp_path / "fused.onnx")
    (y,) = fused.run(None, {"x": x})
    assert np.isfinite(y).all()
    assert 0.05 < np.sqrt((y**2).mean()) < 20  # alive
    if name == "detector":  # its normalization spreads what is no number over the image
        return
    x.reshape(-1)[len(x.reshape(-1)) // 3] = np.nan
    x.reshape(-1)[-1] = np.inf
    runtime = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (there,), (here,) = runtime.run(None, {"x": x}), fused.run(None, {"x": x})
    assert np.array_equal(np.isfinite(there), np.isfinite(here))
    finite = np.isfinite(there)
    steps = int(np.prod(onnx.numpy_helper.to_array(model.graph.initializer[0]).shape[1:]))
    assert np.allclose(there[finite], here[finite], rtol=0, atol=20 * np.finfo(np.float32).eps * steps**0.5)
