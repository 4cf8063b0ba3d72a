"""Values in float16 between the operators of a kernel: they overflow where those of the runtime do, casts round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onnxfuse import optimize, session
from tests.models.test_networks import needs_compiler

NORMAL = """s = Mul (x, x)  m = ReduceMean <axes = [-1], keepdims = 1> (s)  e = Add (m, tiny)  r = Sqrt (e)
    q = Div (x, r)  y = Mul (q, w)"""
SCORES = """t = Transpose <perm = [1, 0]> (x)  p = MatMul (x, t)  s = Mul (p, tiny)  a = Softmax <axis = -1> (s)
    y = MatMul (a, x)"""
CAST = "f = Cast <to = 1> (x)  h = Mul (f, wide)  c = Cast <to = 10> (h)  d = Add (c, c)  y = Sub (d, x)"


def model(nodes: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float16[n, 64] x) => (float16[n, 64] y)
        <float16[64] w, float16 tiny, float wide> {{ {nodes} }}"""
    made = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).standard_normal(64).astype(np.float16)
    tensors = {"w": w, "tiny": np.float16(2**-10), "wide": np.float32(1.0007)}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in tensors.items())
    return made


def results(model_path: Path, folder: Path, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Those of the runtime, and of one kernel."""
    made = optimize(model_path, folder / "o.onnx", cache_dir=folder / "c", min_group=1, gain=False, verify=False)
    assert len(made.groups) == 1
    theirs = onnxruntime.InferenceSession(str(model_path), providers=["CPUExecutionProvider"])
    outputs = [s.run(None, {"x": x})[0] for s in (theirs, session(folder / "o.onnx"))]
    return tuple(np.asarray(y, np.float64) for y in outputs)


@needs_compiler
@pytest.mark.parametrize("nodes", [NORMAL, SCORES], ids=["squares", "scores"])
def test_what_only_lies_between_operators_does_not_overflow(nodes: str, tmp_path: Path):
    """Squares of 900 are beyond float16, and so are products of rows of such values."""
    onnx.save(model(nodes), tmp_path / "m.onnx")
    x = (np.random.default_rng(1).standard_normal((9, 64)) * 300).astype(np.float16)
    theirs, ours = results(tmp_path / "m.onnx", tmp_path, x)
    np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


@needs_compiler
def test_a_cast_of_the_model_rounds(tmp_path: Path):
    onnx.save(model(CAST), tmp_path / "m.onnx")
    x = np.linspace(1, 2, 576, dtype=np.float16).reshape(9, 64)
    _, ours = results(tmp_path / "m.onnx", tmp_path, x)
    rounded = (x.astype(np.float32) * np.float32(1.0007)).astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(ours, (2 * rounded - x.astype(np.float64)).astype(np.float16))
