"""Models that ONNX Runtime saved after its own optimizations become kernels, as those do from which it made them.

The runtime writes all domains that it knows into them, onnxfuse's own too once it has opened a model with kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from models.quantized import dynamically_quantized, quantized
from onnxfuse import optimize
from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.runtime.engine import open_session, options, saturates
from onnxfuse.runtime.session import session
from tests.load.models import parse
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

Array = np.ndarray[Any, Any]
LEVELS = ort.GraphOptimizationLevel
# Filters of whole blocks, of part of one, of one channel each; images that enter and leave blocks as they are in ONNX
# and with the channels last, with as many channels as blocks have and with fewer; all that is done with sums.
IMAGES = """g (float[N, 3, 11, 12] x) => (float[N, 5, 11, 12] y, float[N, 6, 6, 24] z, float[N, 32, 1, 1] m)
{
  a0 = Conv<pads = [1, 1, 1, 1]>(x, w24, b24) a = Relu(a0)
  d0 = Conv<pads = [1, 1, 1, 1], group = 24>(a, wd) d = Clip(d0, low, high)
  e0 = Conv(d, w32, b32) e = LeakyRelu<alpha = 0.25>(e0)
  f0 = Conv<pads = [1, 1, 1, 1]>(e, w32x32) f1 = Add(f0, e) f = Relu(f1)
  m = GlobalAveragePool(f)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(f)
  q0 = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(p)
  q1 = Conv(q0, w24x32) q = Tanh(q1)
  r = Erf(q)
  s0 = Conv<pads = [1, 1, 1, 1]>(r, w24x24) s = HardSigmoid<alpha = 0.3, beta = 0.4>(s0)
  z = Transpose<perm = [0, 2, 3, 1]>(s)
  g0 = Conv(f, w5) y = Sigmoid(g0)
}"""
SHAPES = {
    "w24": (24, 3, 3, 3),
    "b24": (24,),
    "wd": (24, 1, 3, 3),
    "w32": (32, 24, 1, 1),
    "b32": (32,),
    "w5": (5, 32, 1, 1),
    "w32x32": (32, 32, 3, 3),
    "w24x32": (24, 32, 1, 1),
    "w24x24": (24, 24, 3, 3),
}
CODED = """g (float[1, 3, 12, 12] x) => (float[1, 8, 1, 1] y) {
  a0 = Conv<pads = [1, 1, 1, 1]>(x, w, b) a = Relu(a0)
  p = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a)
  c = Conv<pads = [1, 1, 1, 1], group = 8>(p, v)
  s = Add(c, p)
  y = GlobalAveragePool(s)
}"""
PRODUCTS = """g (float[N, 16] x) => (float[N, 24] y, float[N, 24] z) {
  a = MatMul(x, u) b = MatMul(x, v) c = Add(a, k) d = Tanh(b)
  y = Mul(c, d) z = MatMul(y, w)
}"""


def model(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """A model whose constants are random."""
    made, rng = parse(text, opset=17), np.random.default_rng(2)
    drawn = {k: rng.normal(0, 1 / np.sqrt(np.prod(v[1:]) or 1), v).astype(np.float32) for k, v in shapes.items()}
    limits = {"low": np.float32(-0.5), "high": np.float32(0.75)} if "low" in text else {}
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in (drawn | limits).items())
    return made


def saved(plain: onnx.ModelProto, folder: Path, level: Any) -> Path:
    """The model as the runtime saves it."""
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.optimized_model_filepath = str(folder / "saved.onnx")
    ort.InferenceSession(plain.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return folder / "saved.onnx"


def codes_of_images() -> onnx.ModelProto:
    plain = model(CODED, w=(8, 3, 3, 3), b=(8,), v=(8, 1, 3, 3))
    x = np.random.default_rng(3).standard_normal((1, 3, 12, 12)).astype(np.float32)
    return quantized(plain, {"x": x}, form="QDQ", codes="QUInt8")


# By what is saved: the model, at which level, operators that only the runtime has, and how many nodes may stay.
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Any, set[str], int]] = {
    "images in blocks": (
        lambda: model(IMAGES, **SHAPES),
        LEVELS.ORT_ENABLE_ALL,
        {"Conv", "MaxPool", "AveragePool", "GlobalAveragePool", "ReorderInput", "ReorderOutput"},
        0,
    ),
    "codes with the channels last": (codes_of_images, LEVELS.ORT_ENABLE_ALL, {"QLinearConv", "NhwcMaxPool"}, 0),
    "products of codes": (
        lambda: dynamically_quantized(model(PRODUCTS, u=(16, 24), v=(16, 24), w=(24, 24), k=(24,))),
        LEVELS.ORT_ENABLE_EXTENDED,
        {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"},
        0,
    ),
}


@needs_compiler
@pytest.mark.parametrize("what", MODELS)
def test_a_saved_model_becomes_kernels(what: str, tmp_path: Path) -> None:
    make, level, own, most = MODELS[what]
    path = saved(make(), tmp_path, level)
    found = {n.op_type for n in onnx.load(path).graph.node if n.domain.startswith("com.microsoft")}
    if not own <= found:
        pytest.skip(f"the runtime saved no {', '.join(sorted(own - found))} on this machine")
    made = optimize(path, tmp_path / "f.onnx", gain=False, min_group=1, cache_dir=str(CACHE), jobs=1)
    assert made.verify is not None and made.verify.ok
    kept = [n.op_type for n in onnx.load(tmp_path / "f.onnx").graph.node if not n.domain.startswith("onnxfuse.")]
    inexact = "NhwcMaxPool" in own and saturates()  # saturated whatever is asked: kernels differ, and stay out
    assert len(kept) <= most or inexact, kept
    first = open_session(path, options(lean=True))  # elsewhere it is asked for exact products
    shape = first.get_inputs()[0].shape
    x = np.random.default_rng(5).standard_normal([2 if isinstance(e, str) else e for e in shape]).astype(np.float32)
    for want, got in zip(first.run(None, {"x": x}), session(tmp_path / "f.onnx").run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_model_stays_in_blocks_where_one_of_its_operators_has_no_other_form(opset: int) -> None:
    """Between blocks and images there would be no way back; older opsets pad and clip otherwise."""
    scaled = "Upsample<scales = [1, 1, 2, 2]>" if opset > 11 else "GlobalMaxPool"
    made = parse(
        f"g (float[1, 16, 4, 4] x) => (float[1, 16, 8, 8] y) {{ a = com.microsoft.nchwc.ReorderInput(x) "
        f"b = com.microsoft.nchwc.{scaled}(a) y = com.microsoft.nchwc.ReorderOutput<channels = 16>(b) }}",
        opset=opset,
        imports=', "com.microsoft.nchwc": 1',
    )
    found = [n.op for n in load(made.SerializeToString(), Options()).nodes]
    assert found == ["ReorderInput", scaled.partition("<")[0], "ReorderOutput"]
