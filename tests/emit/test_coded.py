"""Weights that were 8-bit codes times scales are stored as codes, and made again where the model is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper, parser

from onnxfuse.emit.coded import coding
from onnxfuse.load.names import rename
from onnxfuse.pipeline import optimize
from onnxfuse.runtime.engine import open_session, options
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

Floats = NDArray[np.float32]
HEAD = '<ir_version: 8, opset_import: ["": 17]>\n'
K, N = 192, 320
PER_TENSOR = "f = Cast <to = 1> (codes)  w = Mul (f, scale)  p = MatMul (x, w)"
JOINED = "f = Cast <to = 1> (codes)  w = Mul (f, scale)  p0 = MatMul (x, w)  p = Mul (p0, third)"
PER_COLUMN = "w = DequantizeLinear <axis = 1> (codes, scales, zeros)  t = Transpose <perm = [1, 0]> (w)  " \
             "p = Gemm <transB = 1> (x, t)"  # fmt: skip
BRANCHES = (
    "f = Cast <to = 1> (codes)  w = Mul (f, scale)  s = ReduceSum <keepdims = 0> (x)  c = Greater (s, third)  "
    "p = If (c) <then_branch = a () => (float[M, 320] u) { u0 = MatMul (x, w)  u = Tanh (u0) }, "
    "else_branch = b () => (float[M, 320] v) { v0 = MatMul (x, w)  v = Sigmoid (v0) }>"
)


def saved(folder: Path, body: str, codes: NDArray[np.int8]) -> Path:
    model = parser.parse_model(f"{HEAD}g (float[M, 192] x) => (float[M, 320] y) {{ {body} y = Tanh (p) }}")
    random = np.random.default_rng(3)
    tensors = {
        "codes": codes,
        "scale": np.array(0.0123, np.float32),
        "scales": random.uniform(0.001, 0.02, N).astype(np.float32),
        "zeros": random.integers(-9, 9, N).astype(np.int8),
        "third": np.array(1 / 3, np.float32),
    }
    read = set(body.replace(",", " ").replace("(", " ").replace(")", " ").split())
    model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in tensors.items() if name in read)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def random_codes() -> NDArray[np.int8]:
    return np.random.default_rng(1).integers(-128, 128, (K, N)).astype(np.int8)


@needs_compiler
@pytest.mark.parametrize("body", [PER_TENSOR, JOINED, PER_COLUMN, BRANCHES])
def test_files_of_codes_stay_small(body: str, tmp_path: Path) -> None:
    """With the library, without it, and where the runtime folds no constants; no node that is folded is counted."""
    original, made = saved(tmp_path, body, random_codes()), tmp_path / "o.onnx"
    result = optimize(original, made, gain=False, strict=True, min_group=1, cache_dir=str(CACHE))
    assert made.stat().st_size < 1.2 * original.stat().st_size
    assert result.kernels >= 1
    assert result.verify is not None
    assert result.verify.ok
    assert result.nodes_left <= (3 if body is BRANCHES else 0)
    with_library = [options(libraries=[str(tmp_path / "libo.so")]) for _ in range(2)]
    exact = options()  # the runtime quantizes what it multiplies by dequantized weights
    for each in (exact, with_library[1]):
        each.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    ways = [open_session(str(original), exact)]
    ways += [open_session(str(made), each) for each in (options(), *with_library)]
    for rows in (1, 7, 64):
        x = np.random.default_rng(rows).normal(size=(rows, K)).astype(np.float32)
        wanted, *found = (way.run(None, {"x": x})[0] for way in ways)
        for each in found:
            np.testing.assert_allclose(each, wanted, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_names_of_parts_are_free(tmp_path: Path) -> None:
    """A model may have a value of each name that a part of its weights would have."""
    body = PER_TENSOR.replace("p = MatMul (x, w)", "h = Neg (x)  p = MatMul (h, w)")
    original, made = saved(tmp_path, body, random_codes()), tmp_path / "o.onnx"
    model = onnx.load(original)
    rename(model.graph, {"h": "w.packed.codes", "y": "w.packed.scale"})
    onnx.save(model, original)
    optimize(original, made, gain=False, strict=True, min_group=1, cache_dir=str(CACHE))
    names = [t.name for t in onnx.load(made).graph.initializer]
    assert len({*names, "w.packed.codes", "w.packed.scale"}) == len(names) + 2


@pytest.mark.parametrize("shape", [(5, 96, 32), (3, 37, 3, 16), (77, 40)])
@pytest.mark.parametrize("zero", [0, 13, 200])
def test_codes_of_every_scale_are_found(shape: tuple[int, ...], zero: int) -> None:
    """Whatever the zero point is, exactly where one product made a weight and nearly where two did."""
    random = np.random.default_rng(zero)
    columns = [n if at in (0, len(shape) - 1) and len(shape) > 2 else 1 for at, n in enumerate(shape)]
    columns[-1] = shape[-1]
    codes = random.integers(0, 256, shape)
    codes.reshape(-1)[:2] = 0, 255
    scales = random.lognormal(-4, 2, columns).astype(np.float32)
    weights = (codes - zero).astype(np.float32) * scales
    np.testing.assert_array_equal(_again(weights), weights)
    twice = weights * np.float32(1 / 3)
    np.testing.assert_allclose(_again(twice), twice, rtol=3e-7)


def _again(weights: Floats) -> Floats:
    found = coding(weights)
    assert found is not None
    assert found.codes(weights).shape == weights.shape
    return (found.codes(weights).astype(np.float32) - found.offset) * found.scale


@pytest.mark.parametrize("change", ["random", "one", "nan", "infinite", "nine bits", "vector", "empty"])
def test_other_weights_are_not_codes(change: str) -> None:
    random = np.random.default_rng(0)
    weights = random.integers(-128, 128, (4, 60, 32)).astype(np.float32) * np.float32(0.01)
    odd = {"one": 0.123456, "nan": np.nan, "infinite": np.inf, "nine bits": 4.0}
    if change in odd:
        weights[3, 59, 31] = odd[change]
    weights = {
        "random": random.normal(size=weights.shape).astype(np.float32),
        "vector": weights.reshape(-1),
        "empty": weights[:, :0],
    }.get(change, weights)
    assert coding(weights) is None
