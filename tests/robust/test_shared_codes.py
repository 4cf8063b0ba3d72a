"""Sessions whose results are compared multiply 8-bit integers exactly, also where products share a zero point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from onnxfuse.runtime import engine
from onnxfuse.runtime.engine import open_session, options, run
from onnxfuse.runtime.shared_codes import lacks_zero_points, with_codes_apart

DEPTH = 64
# Two products that read one zero point, in a graph and in a function that makes it.
IN_GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
g (uint8[2, 64] x) => (int32[2, 8] y, int32[2, 8] z) {
  y = MatMulInteger (x, w, , zero)
  z = MatMulInteger (x, v, , zero)
}"""
IN_FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
g (uint8[2, 64] x) => (int32[2, 8] y, int32[2, 8] z) { y, z = f.both (x, w, v) }
<domain: "f", opset_import: ["" : 17]>
both (x, w, v) => (y, z) {
  zero = Constant <value = int8 {0}> ()
  y = MatMulInteger (x, w, , zero)
  z = MatMulInteger (x, v, , zero)
}"""


def model(text: str) -> ModelProto:
    proto = onnx.parser.parse_model(text)
    weights = {"w": np.full((DEPTH, 8), 127, np.int8), "v": np.full((DEPTH, 8), -127, np.int8), "zero": np.int8(0)}
    held = [name for name in weights if name != "zero" or text is IN_GRAPH]
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(weights[name]), name) for name in held)
    return proto


@pytest.mark.parametrize("saturates", [False, True])
def test_exact_products_are_asked_for_where_the_runtime_saturates(
    saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere products are exact anyway, and these optimizations make models that do not load, or do not run."""
    monkeypatch.setattr(engine, "saturates", lambda: saturates)
    assert options(lean=True).get_session_config_entry(engine.EXACT_CODES) == ("1" if saturates else "0")


@pytest.mark.parametrize("text", [IN_GRAPH, IN_FUNCTION], ids=["graph", "function"])
@pytest.mark.parametrize("file", [False, True], ids=["bytes", "file"])
def test_products_that_share_a_zero_point_are_exact(
    text: str, file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime saturates sums of two products on machines without VNNI, and fails to do otherwise for these."""
    monkeypatch.setattr(engine, "saturates", lambda: True)
    onnx.save(model(text), tmp_path / "m.onnx")
    given = str(tmp_path / "m.onnx") if file else model(text).SerializeToString()
    found = run(open_session(given, options(lean=True)), {"x": np.full((2, DEPTH), 255, np.uint8)})
    assert [np.unique(each).tolist() for each in found] == [[DEPTH * 255 * 127], [-DEPTH * 255 * 127]]


@pytest.mark.parametrize("text", [IN_GRAPH, IN_FUNCTION], ids=["graph", "function"])
def test_each_node_reads_its_own_constants(text: str) -> None:
    apart = onnx.load_from_string(with_codes_apart(model(text).SerializeToString(), lambda domain: False))
    onnx.checker.check_model(apart, full_check=True)
    names = [name for node in apart.graph.node for name in node.input if name not in ("", "x")]
    assert len(names) == len(set(names)) == 4
    assert {n.op_type for n in apart.graph.node} <= {"MatMulInteger", "Constant"}


def test_functions_with_kernels_stay() -> None:
    kept = onnx.load_from_string(with_codes_apart(model(IN_FUNCTION).SerializeToString(), lambda domain: domain == "f"))
    assert [n.op_type for n in kept.graph.node] == ["both"]


# Weights that are dequantized for two products at once: the runtime makes a QLinearMatMul of each.
SHARED = """<ir_version: 8, opset_import: ["" : 17]>
g (uint8[2, 64] a, uint8[2, 64] b) => (uint8[2, 8] y, uint8[2, 8] z, float[64, 8] w) {
  x = DequantizeLinear (a, one, nil)
  v = DequantizeLinear (b, one, nil)
  w = DequantizeLinear (codes, one, zero)
  p = MatMul (x, w)
  q = MatMul (v, w)
  y = QuantizeLinear (p, step, nil)
  z = QuantizeLinear (q, step, nil)
}"""


def shared_weights() -> ModelProto:
    proto = onnx.parser.parse_model(SHARED)
    held = {"one": np.float32(1), "step": np.float32(DEPTH * 255 * 127 / 200), "nil": np.uint8(0), "zero": np.int8(0)}
    held["codes"] = np.full((DEPTH, 8), 127, np.int8)
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(each), name) for name, each in held.items())
    return proto


def test_products_of_weights_that_are_dequantized_once_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of two products that saturate give 101 for 200; right kernels of such a model differed from it by that."""
    monkeypatch.setattr(engine, "saturates", lambda: True)
    given = {name: np.full((2, DEPTH), 255, np.uint8) for name in "ab"}
    y, z, _ = run(open_session(shared_weights().SerializeToString(), options(lean=True)), given)
    assert np.unique(y).tolist() == np.unique(z).tolist() == [200]


def test_each_node_reads_dequantized_codes_of_its_own() -> None:
    apart = onnx.load_from_string(with_codes_apart(shared_weights().SerializeToString(), lambda domain: False))
    onnx.checker.check_model(apart, full_check=True)
    weights = [node.input[1] for node in apart.graph.node if node.op_type == "MatMul"]
    made = {node.output[0]: node.input[0] for node in apart.graph.node if node.op_type == "DequantizeLinear"}
    assert len({made[name] for name in (*weights, "w")}) == 3


FILTERS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, 4, 5, 6] x) => (float[1, 8, 5, 6] y) {
  w = DequantizeLinear <axis = 0> (codes, scales)
  y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
}"""


@pytest.mark.parametrize("file", [False, True], ids=["bytes", "file"])
def test_codes_of_several_scales_need_no_zero_points(
    file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the option for exact products the runtime gives them one for all, and fails when the model runs."""
    monkeypatch.setattr(engine, "saturates", lambda: True)
    proto, rng = onnx.parser.parse_model(FILTERS), np.random.default_rng(0)
    codes, scales = rng.integers(-127, 128, (8, 4, 3, 3)).astype(np.int8), rng.random(8).astype(np.float32)
    proto.graph.initializer.extend(numpy_helper.from_array(x, n) for x, n in ((codes, "codes"), (scales, "scales")))
    onnx.save(proto, tmp_path / "m.onnx")
    given = str(tmp_path / "m.onnx") if file else proto.SerializeToString()
    assert lacks_zero_points(given) and not lacks_zero_points(model(IN_GRAPH).SerializeToString())
    x = {"x": rng.random((1, 4, 5, 6)).astype(np.float32)}
    (exact,), (usual,) = (run(open_session(given, options(lean=lean)), x) for lean in (True, False))
    np.testing.assert_allclose(exact, usual, rtol=1e-5, atol=1e-3)
