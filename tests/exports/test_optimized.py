"""Attention as ONNX Runtime's transformer optimizer writes it becomes kernels, at any batch and number of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse import optimize
from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CUDA
from onnxfuse.runtime.engine import open_session, options
from onnxfuse.runtime.session import session
from tests.load.models import parse
from tests.models.fused import CACHE
from tests.models.test_networks import needs_compiler

RNG = np.random.default_rng(5)
ENCODER = """g (float[B, S, 64] x, int32[B, S] mask) => (float[B, S, 64] y)
{
  a = com.microsoft.Attention<num_heads = 4>(x, w, wb, mask)
  b = MatMul(a, o)
  c = com.microsoft.SkipLayerNormalization(b, x, g, s, ob)
  d = MatMul(c, u)
  e = com.microsoft.BiasGelu(d, ub)
  f = MatMul(e, v)
  y = com.microsoft.SkipLayerNormalization(f, c, g, s, ob)
}"""
DECODER = """g (float[B, S, 64] x, int32[B, T] mask, float[2, B, 4, P, 16] past)
  => (float[B, S, 64] y, float[2, B, 4, T, 16] kept)
{
  a, kept = com.microsoft.Attention<num_heads = 4, unidirectional = 1>(x, w, wb, mask, past)
  b = MatMul(a, o)
  y = com.microsoft.SkipLayerNormalization(b, x, g, s, ob)
}"""
CROSS = """g (float[B, S, 64] x, float[B, L, 64] z, float[B, 4, P, 16] pk, float[B, 4, P, 16] pv)
  => (float[B, S, 64] y, float[B, 4, T, 16] k, float[B, 4, T, 16] v)
{
  q0 = MatMul(x, o) k0 = MatMul(z, o) v0 = MatMul(z, p)
  a, k, v = com.microsoft.MultiHeadAttention<num_heads = 4>(q0, k0, v0, wb, , , pk, pv)
  y = com.microsoft.SkipLayerNormalization(a, x, g, s, ob)
}"""
SHAPES = {
    "w": (64, 192), "wb": (192,), "o": (64, 64), "p": (64, 64), "ob": (64,), "g": (64,), "s": (64,),
    "u": (64, 256), "ub": (256,), "v": (256, 64),
}  # fmt: skip
SIZES = (
    {"B": 1, "S": 1, "L": 1, "P": 1}, {"B": 1, "S": 1, "L": 1, "P": 31}, {"B": 2, "S": 7, "L": 5, "P": 3},
    {"B": 1, "S": 33, "L": 40, "P": 0}, {"B": 3, "S": 16, "L": 16, "P": 17},
)  # fmt: skip


def saved(text: str, folder: Path) -> Path:
    model = parse(text, opset=17, imports=', "com.microsoft": 1')
    read = {v for n in model.graph.node for v in n.input}
    for name, shape in SHAPES.items():
        if name in read:
            array = RNG.standard_normal(shape).astype(np.float32) / np.sqrt(np.float32(shape[0]))
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def feeds(first: Any, sizes: dict[str, int]) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs at these sizes; a mask hides a fifth of the keys."""
    found = {}
    for i in first.get_inputs():
        shape = [sizes[e] if isinstance(e, str) else e for e in i.shape]
        kept = (RNG.random(shape) < 0.8).astype(np.int32)
        found[i.name] = RNG.standard_normal(shape).astype(np.float32) if "float" in i.type else kept
    return found


@needs_compiler
@pytest.mark.parametrize("text", [ENCODER, DECODER, CROSS], ids=["encoder", "decoder", "cross"])
def test_attention_is_in_kernels(text: str, tmp_path: Path) -> None:
    path = saved(text, tmp_path)
    made = optimize(path, tmp_path / "f.onnx", gain=False, cache_dir=str(CACHE), jobs=1)
    assert made.verify is not None and made.verify.ok
    kept = [n.op_type for n in onnx.load(tmp_path / "f.onnx").graph.node if not n.domain.startswith("onnxfuse.")]
    assert not kept
    first, plain = open_session(path, options()), open_session(tmp_path / "f.onnx", options())
    for sizes in SIZES:
        given = feeds(first, sizes | {"T": sizes["P"] + sizes["L" if text == CROSS else "S"]})
        for other in (session(tmp_path / "f.onnx"), plain):
            for want, got in zip(first.run(None, given), other.run(None, given), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("text", [ENCODER, CROSS], ids=["packed", "separate"])
def test_on_gpus_it_stays_the_kernel_that_the_runtime_has(text: str, tmp_path: Path) -> None:
    graph = load(saved(text, tmp_path), Options())
    made = plan(graph, ROWS, Options(target="cuda", arch=("sm_90",)), legality=CUDA)
    assert not [n.op for g in made.groups for n in g.nodes if "Attention" in n.op]
    assert [n.op for g in plan(graph, ROWS, Options()).groups for n in g.nodes if "Attention" in n.op]
