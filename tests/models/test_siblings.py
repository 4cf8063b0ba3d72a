"""Sibling operators on one value in one kernel: correct at every size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.models.test_bodies import built, worst
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
REDUCED = """reduced (float[N, W] x) => (float[N, 1] a, float[N, 1] b, float[N, 1] c) {
  a = ReduceMax <axes = [1]> (x)
  b = ReduceMean <axes = [1]> (x)
  e = ReduceL2 <axes = [1]> (x)
  c = Sqrt (e)
}"""
CHAINS = """chains (float[N, W] x, float[W] z) => (float[N, W] a, float[N, W] b) {
  s = Sin (x)
  a = Mul (s, z)
  b = Cos (x)
}"""
# Statistics of columns and of what follows them; the second normalization has its own scale.
NORMS = """norms (float[N, W, 24] x) => (float[N, W, 24] a, float[N, W, 24] b)
<float[24] g = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}> {
  t = Neg (g)
  a = LayerNormalization <axis = -1> (x, g)
  b = LayerNormalization <axis = -1> (x, t)
}"""


@pytest.mark.parametrize("text", [REDUCED, CHAINS, NORMS], ids=["reduced", "chains", "norms"])
def test_one_kernel_reads_a_value_for_several_results(text: str, tmp_path: Path) -> None:
    result = built(onnx.parser.parse_model(HEAD + text), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    random = np.random.default_rng(5)
    sets = []
    for n, w in ((1, 1), (3, 7), (64, 31), (2, 1024)):
        feeds = {"x": random.normal(size=(n, w, 24) if text is NORMS else (n, w)).astype(np.float32)}
        sets.append(feeds | ({"z": random.normal(size=w).astype(np.float32)} if text is CHAINS else {}))
    assert worst(tmp_path, result, sets) <= 1e-6
