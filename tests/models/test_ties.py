"""Quantized values are those of the runtime at any number of rows, also where many elements lie on a rounding tie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
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
    plain = engine.open_session(str(original), engine.options(lean=True))
    fused = engine.open_session(str(tmp_path / "f.onnx"), engine.options(libraries=[result.output.library], lean=True))
    for rows in ROWS:
        x = {"x": np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)}
        (expected,), (found,) = engine.run(plain, x), engine.run(fused, x)
        assert np.linalg.norm(found - expected) <= 1e-3 * np.linalg.norm(expected), rows


def dequantized(path: Path, operator: str) -> Path:
    """Two layers of integer products with scales, biases and Relu, as dynamic quantization writes them."""
    random = np.random.default_rng(11)
    convolution = operator == "ConvInteger"
    image: list[int | str] = [1, 16, "H", 13] if convolution else ["N", 48]
    nodes, weights = [], {}
    for i, (x, y) in enumerate((("x", "h"), ("h", "y"))):
        channels = 16 if convolution else 48
        kernel = (3, 3) if convolution else ()
        weights[f"w{i}"] = random.integers(-127, 128, (channels, channels, *kernel)).astype(np.int8)
        weights[f"k{i}"] = np.float32(0.0123)
        weights[f"b{i}"] = random.standard_normal((channels, 1, 1) if convolution else channels).astype(np.float32)
        pads = {"pads": [1] * 4} if convolution else {}
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [f"q{i}", f"s{i}", f"z{i}"]),
            helper.make_node(operator, [f"q{i}", f"w{i}", f"z{i}"], [f"p{i}"], **pads),
            helper.make_node("Cast", [f"p{i}"], [f"f{i}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"s{i}", f"k{i}"], [f"m{i}"]),
            helper.make_node("Mul", [f"f{i}", f"m{i}"], [f"d{i}"]),
            helper.make_node("Add", [f"d{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [y]),
        ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, image) for n in "xy"]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@needs_compiler
@pytest.mark.parametrize("arch", [(), ("x86-64-v3",)], ids=["native", "x86-64-v3"])
@pytest.mark.parametrize("operator", ["MatMulInteger", "ConvInteger"])
def test_dequantized_sums_are_bit_by_bit_those_of_the_runtime(
    operator: str, arch: tuple[str, ...], tmp_path: Path
) -> None:
    original = dequantized(tmp_path / "m.onnx", operator)
    result = optimize(
        original, tmp_path / "f.onnx", arch=arch, min_group=1, verify=True, gain=False, cache_dir=str(CACHE), jobs=1
    )
    assert result.nodes_left == 0 and result.output.library is not None
    plain = engine.open_session(str(original), engine.options(lean=True))
    fused = engine.open_session(str(tmp_path / "f.onnx"), engine.options(libraries=[result.output.library], lean=True))
    for extent in ROWS:
        shape = (1, 16, extent, 13) if operator == "ConvInteger" else (extent, 48)
        x = {"x": np.random.default_rng(extent).standard_normal(shape).astype(np.float32)}
        (expected,), (found,) = engine.run(plain, x), engine.run(fused, x)
        np.testing.assert_array_equal(found, expected, err_msg=f"{extent}")
