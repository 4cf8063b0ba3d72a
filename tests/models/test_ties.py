"""Quantized values are those of the runtime at any number of rows, also where many elements lie on a rounding tie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.pipeline import optimize
from onnxfuse.runtime import engine
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

ROWS = (1, 2, 7, 50, 64, 300)


def saturating(path: Path) -> Path:
    """Tanh of large numbers, which is 1 or -1 for the most part, as codes of a product."""
    random = np.random.default_rng(3)
    nodes = [
        helper.make_node("Mul", ["x", "k"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["a"]),
        helper.make_node("Tanh", ["a"], ["t"]),
        helper.make_node("DynamicQuantizeLinear", ["t"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["c", "s"], ["y"]),
    ]
    weights = {"k": np.float32(6.0), "b": random.standard_normal(64).astype(np.float32)}
    weights |= {"w": random.integers(-127, 128, (64, 32)).astype(np.int8)}
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", d]) for n, d in (("x", 64), ("y", 32))]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@needs_compiler
def test_codes_of_a_saturated_function_are_those_of_the_runtime(tmp_path: Path) -> None:
    original = saturating(tmp_path / "m.onnx")
    result = optimize(original, tmp_path / "f.onnx", verify=True, gain=False, cache_dir=str(CACHE), jobs=1)
    assert result.kernels > 0 and result.output.library is not None
    plain = engine.open_session(str(original), engine.options())
    fused = engine.open_session(str(tmp_path / "f.onnx"), engine.options(libraries=[result.output.library]))
    for rows in ROWS:
        x = {"x": np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)}
        (expected,), (found,) = engine.run(plain, x), engine.run(fused, x)
        assert np.linalg.norm(found - expected) <= 1e-3 * np.linalg.norm(expected), rows
