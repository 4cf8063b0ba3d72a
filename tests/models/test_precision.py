"""`--precision`: 16-bit weights of products, and a reported error that is explained by the format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.backends.cpu import half_for
from onnxfuse.config import Options
from onnxfuse.ir.dtype import BF16, F16, F32
from onnxfuse.ir.graph import Constant
from onnxfuse.ir.products import DOT_BF16
from onnxfuse.pipeline import optimize
from onnxfuse.report.result import Result
from onnxfuse.target import has_features
from onnxfuse.verify import verify_models
from onnxfuse.verify.compare import ROUNDINGS, rounded
from tests.calls import on_cpu
from tests.models.fused import CACHE
from tests.models.planted import Planted
from tests.models.test_networks import needs_compiler

RNG = np.random.default_rng(5)
TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
m (float[1, 32, 64] x, float[1, 16, 10, 10] image) => (float[1, 32, 64] y, float[1, 24, 10, 10] z) {
  h = MatMul (x, w1)
  a = Relu (h)
  p = MatMul (a, w2)
  y = Add (p, x)
  c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, w3)
  z = Relu (c)
}
"""


@pytest.fixture
def original(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(TEXT)
    for name, shape in (("w1", (64, 80)), ("w2", (80, 64)), ("w3", (24, 16, 3, 3))):
        weights = RNG.normal(size=shape).astype(np.float32) / np.float32(shape[0] if len(shape) == 2 else 144) ** 0.5
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def made(original: Path, precision: str, **changes: object) -> Result:
    out = original.with_name(f"{precision}.onnx")
    changes = {"verify": True, "gain": False, "strict": True, "cache_dir": str(CACHE)} | changes
    return optimize(original, out, precision=precision, **changes)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("arch", ["native", "x86-64-v3"])
@pytest.mark.parametrize(("precision", "held"), [("bf16", TensorProto.BFLOAT16), ("fp16", TensorProto.FLOAT16)])
def test_weights_are_stored_in_16_bits_and_the_error_is_reported(
    original: Path, precision: str, held: int, arch: str
) -> None:
    result = made(original, precision, arch=arch)
    assert result.kernels == 3 and result.verify is not None and result.verify.max_error is not None
    u = ROUNDINGS[precision]
    assert u / 16 < result.verify.max_error < 2 * u  # some layers
    least = rounded(precision, 0.0)
    assert result.verify.limit is not None and least <= result.verify.limit < 1.5 * least
    weights = {t.data_type for t in onnx.load(original.with_name(f"{precision}.onnx")).graph.initializer}
    assert weights == {held}
    document = result.to_json()
    assert document["precision"] == precision and document["verify"]["max_error"] == result.verify.max_error
    build = json.loads(original.with_name(f"{precision}.fuse.json").read_text())["build"]
    assert (build["precision"], build["max_error"]) == (precision, result.verify.max_error)
    dots = precision == "bf16" and arch == "native" and set(DOT_BF16.features) <= set(build["features"])
    assert set(build["features"]).isdisjoint(DOT_BF16.features) or dots


IMAGES = """
<ir_version: 9, opset_import: ["" : 17]>
m (float[1, 3, 25, 25] image) => (float[1, 24, 7, 7] y, float[1, 32, 13, 13] shown) {
  a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (image, w1)
  stem = Relu (a)
  pooled = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (stem)
  b = Conv <kernel_shape = [1, 1]> (pooled, w2)
  wide = Relu (b)
  c = Conv <group = 48, kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (wide, w3)
  deep = Clip (c, zero, six)
  d = Conv <kernel_shape = [1, 1]> (deep, w4)
  narrow = Add (d, pooled)
  both = Concat <axis = 1> (narrow, wide)
  e = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (both, w5)
  y = Relu (e)
  shown = Sigmoid (stem)
}
"""


@needs_compiler
def test_images_between_kernels_are_stored_in_16_bits(tmp_path: Path) -> None:
    """Pools, depthwise and other convolutions, residuals and joined images, each compared with its body."""
    model = onnx.parser.parse_model(IMAGES)
    shapes = {
        "w1": (32, 3, 3, 3),
        "w2": (48, 32, 1, 1),
        "w3": (48, 1, 3, 3),
        "w4": (32, 48, 1, 1),
        "w5": (24, 80, 3, 3),
    }
    tensors = {name: RNG.normal(size=s).astype(np.float32) / np.prod(s[1:]) ** 0.5 for name, s in shapes.items()}
    tensors |= {"zero": np.float32(0), "six": np.float32(6)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(t, np.float32), n) for n, t in tensors.items())
    onnx.save(model, tmp_path / "m.onnx")
    result = made(tmp_path / "m.onnx", "bf16", min_group=1)
    assert result.verify is not None and result.verify.ok
    assert not {"E-NUMERICS", "E-NO-KERNEL", "E-OPSET"} & {r.code for r in result.refusals}
    graph = onnx.load(tmp_path / "bf16.onnx").graph
    types = {each.name: each.type.tensor_type.elem_type for each in graph.value_info}
    wanted = TensorProto.BFLOAT16 if has_features(DOT_BF16.features) else TensorProto.FLOAT
    assert {"stem", "pooled", "wide", "deep"} <= types.keys() and set(types.values()) == {wanted}
    assert {each.type.tensor_type.elem_type for each in graph.output} == {TensorProto.FLOAT}


@needs_compiler
def test_weights_stay_as_they_are_by_default(original: Path) -> None:
    result = made(original, "fp32")
    assert result.precision == "fp32" and result.verify is not None
    assert result.verify.max_error is not None and result.verify.max_error < 1e-5
    assert {t.data_type for t in onnx.load(original.with_name("fp32.onnx")).graph.initializer} == {TensorProto.FLOAT}


@needs_compiler
def test_a_fault_hidden_by_rounded_weights_is_found(original: Path) -> None:
    """A kernel whose results are 1 % too large differs from its body by more than its roundings account for."""
    planted = Planted(0)
    result = made(original, "fp16", calls=on_cpu(render=planted), verify=None)
    assert any(r.code == "E-NUMERICS" and planted.name in r.reason for r in result.refusals)
    assert result.kernels == 2


@needs_compiler
def test_another_network_is_no_rounding(original: Path, tmp_path: Path) -> None:
    made(original, "bf16", verify=False)
    model = onnx.load(original)
    weights = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(1.2)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w1"))
    onnx.save(model, tmp_path / "other.onnx")
    assert verify_models(original, tmp_path / "bf16.onnx", precision="bf16").ok
    assert not verify_models(tmp_path / "other.onnx", tmp_path / "bf16.onnx", precision="bf16").ok


def constants(*largest: float) -> list[Constant]:
    return [Constant.of(np.array([0.0, -each], np.float32), F32) for each in largest]


def test_weights_that_float16_cannot_hold_stay_float32() -> None:
    fp16 = Options(precision="fp16")
    assert half_for(fp16, constants(1.0, 65504.0)) == F16
    assert half_for(fp16, constants(1.0, 65536.0)) is None
    assert half_for(fp16, constants(1e-5)) is None  # all of them subnormal, or nearly
    assert half_for(fp16, constants(0.0)) == F16
    assert half_for(fp16, constants(np.nan)) is None
    assert half_for(Options(precision="bf16"), constants(1e30, 1e-30)) == BF16
    assert half_for(Options(), constants(1.0)) is None


def test_a_network_that_enlarges_errors_may_be_further_away() -> None:
    assert rounded("fp32", 0.0) == 0.0
    assert rounded("bf16", 0.0) == rounded("bf16", 2.0**-8) == 2.0**-4
    assert rounded("bf16", 0.01) == pytest.approx(0.16)
    assert rounded("bf16", 1.0) == 0.5
