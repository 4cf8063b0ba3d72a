"""What runtimes round is no fault of kernels: sigmoids that are nearly 0 everywhere, and 16 bits between operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse import optimize
from onnxfuse.verify import scales
from tests.models.test_networks import needs_compiler


def logistic(last: str, bias: float = -60.0) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, 400] x) => (float[n, 96] y)
        <float[400, 96] w, float[96] b> {{ p = MatMul (x, w)  q = Add (p, b)  s = Sigmoid (q)  {last} }}"""
    model = onnx.parser.parse_model(text)
    w = np.random.default_rng(0).standard_normal((400, 96)).astype(np.float32) / 4
    tensors = {"w": w, "b": np.full(96, bias, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in tensors.items())
    return model


@needs_compiler
def test_a_kernel_is_kept_where_all_results_are_nearly_0(tmp_path: Path):
    onnx.save(logistic("y = Identity (s)"), tmp_path / "m.onnx")
    made = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", cache_dir=tmp_path / "c", min_group=1, gain=False)
    assert not [refusal for refusal in made.refusals if refusal.code == "E-NUMERICS"]
    assert made.groups and made.verify is not None and made.verify.ok is True


def test_scales_of_outputs():
    assert scales.scales_of(logistic("t = Transpose (s)  y = Transpose (t)")) == [scales.OF_SIGMOIDS]
    assert scales.scales_of(logistic("y = Mul (s, q)")) == [0.0]


@needs_compiler
def test_an_output_that_is_listed_twice_is_compared_once(tmp_path: Path):
    model = logistic("y = Identity (s)")
    model.graph.output.append(model.graph.output[0])
    onnx.save(model, tmp_path / "m.onnx")
    made = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", cache_dir=tmp_path / "c", min_group=1, gain=False)
    assert made.kernels and made.verify is not None and made.verify.ok is True


def test_scales_of_functions():
    """As bodies of kernels are: what counts is the output that a node calls, and its own nodes."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "d": 1]> g (float[4] x) => (float[4] y, float[4] z)
        { y, z = d.both (x) }
        <opset_import: ["": 17], domain: "d"> both (x) => (a, b) { a = Neg (x)  s = Sigmoid (a)  b = Identity (s) }"""
    )
    assert scales.scales_of(model) == [0.0, scales.OF_SIGMOIDS]


@needs_compiler
def test_a_kernel_that_rounds_in_between_is_kept(tmp_path: Path):
    """Exports in float16 keep Resize in float32, with a Cast on either side, and their outputs."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 15]> g (float[1, 1, 32, 32] x) => (float[1, 1, 128, 128] y)
        {   r = Resize <mode = "linear"> (x, , s)
            h = Cast <to = 10> (r)
            p = Sigmoid (h)
            y = Cast <to = 1> (p) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 4, 4], np.float32), "s"))
    onnx.save(model, tmp_path / "m.onnx")
    made = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", cache_dir=tmp_path / "c", gain=False)
    assert not [refusal for refusal in made.refusals if refusal.code == "E-NUMERICS"]
    assert max(len(group.nodes) for group in made.groups) >= 3
