"""Transcendental functions stay with the runtime exactly where their results are quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.load import load, simplify_shapes
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.rewrite import rewrite

STATIC = "q = QuantizeLinear (t, s, z)  y = DequantizeLinear (q, s, z)"
DYNAMIC = "q, qs, qz = DynamicQuantizeLinear (t)  y = DequantizeLinear (q, qs, qz)"
FUNCTIONS = ("t = Tanh (a)", "t = Sigmoid (a)", "t = Erf (a)", "u = Tanh (a)  v = Mul (u, k)  t = Reshape (v, flat)",
             "u = Sigmoid (a)  t = Concat <axis: int = 0> (u, u)")  # fmt: skip
OTHERS = ("u = Sigmoid (a)  t = Mul (a, u)", "u = Erf (a)  v = Add (u, k)  t = Mul (a, v)", "t = Relu (a)",
          "t = Softmax (a)")  # fmt: skip


def left(text: str, folder: Path) -> list[str]:
    """Names of nodes that are left for this reason."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[8, 64] x) => (float[N, M] y) {{
        p = Mul (x, k)  a = Add (p, k)  {text} }}"""
    )
    constants: dict[str, Any] = {"k": np.full(64, 3.0, np.float32), "s": np.float32(2 / 255), "z": np.uint8(128)}
    constants |= {"flat": np.array([64, 8])}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    onnx.save(proto, folder / "m.onnx")
    graph = simplify_shapes(load(folder / "m.onnx", Options()))
    made = plan(rewrite(graph, Options())[0], ROWS, Options())
    inside = {n.name for g in made.groups for n in g.nodes}
    found = [name for d in made.decisions if d.code == "E-NUMERICS" for name in d.nodes]
    assert not inside.intersection(found)
    return found


@pytest.mark.parametrize("coding", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_with_quantized_results_stay(function: str, coding: str, tmp_path: Path):
    op = function.split(" = ")[1].split(" ")[0]
    assert [name.split("_")[0] for name in left(f"{function} {coding}", tmp_path)] == [op]


@pytest.mark.parametrize("coding", [STATIC, DYNAMIC], ids=["static", "dynamic"])
@pytest.mark.parametrize("function", OTHERS)
def test_functions_without_quantized_results_may_be_fused(function: str, coding: str, tmp_path: Path):
    assert left(f"{function} {coding}", tmp_path) == []


def test_without_quantizers_nothing_stays(tmp_path: Path):
    assert left("t = Tanh (a)  y = Neg (t)", tmp_path) == []
