"""Small floating-point tensors that nodes compute from constants are constants before types are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.load.models import graph_of, parse
from tests.models.test_bodies import built, worst
from tests.models.test_networks import needs_compiler

# Scales as torch and onnxconverter-common write them for an open batch: joined, and in half precision first.
SCALES = {
    "joined": "scales = Concat <axis = 0> (kept, grown)",
    "half": """a = Cast <to = 10> (kept)\n b = Cast <to = 10> (grown)\n ab = Concat <axis = 0> (a, b)
      scales = Cast <to = 1> (ab)""",
    "shrunk": "less = Reciprocal (grown)\n scales = Concat <axis = 0> (kept, less)",
    "from integers": "i = Cast <to = 1> (whole)\n scales = Concat <axis = 0> (kept, i)",
}


def resized(scales: str) -> str:
    return f"""resized (float[N, 3, H, W] x) => (float[N, 3, h, w] y)
    <float[2] kept = {{1, 1}}, float[2] grown = {{2, 2}}, int64[2] whole = {{3, 3}}> {{
      {scales}
      r = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
        (x, , scales)
      s = Relu (r)
      y = Mul (s, s) }}"""


@pytest.mark.parametrize(
    ("how", "shape"),
    [
        ("joined", "N, 3, 2*H, 2*W"),
        ("half", "N, 3, 2*H, 2*W"),
        ("shrunk", "N, 3, (H)//2, (W)//2"),
        ("from integers", "N, 3, 3*H, 3*W"),
    ],
)
def test_computed_scales_tell_the_size_of_what_is_resized(how: str, shape: str):
    graph = graph_of(resized(SCALES[how]))
    assert repr(graph.types["r"]) == f"float32[{shape}]"
    assert [n.op for n in graph.nodes] == ["Resize", "Relu", "Mul"]


def test_what_is_no_finite_number_or_rounded_by_libraries_is_left_to_the_model():
    graph = graph_of("""g (float[N] x) => (float[N] y, float[1] c) <float[1] none = {0}, float[1] two = {2}> {
      a = Div(none, none)\n b = Exp(two)\n c = Add(two, two)\n d = Add(x, a)\n e = Add(d, b)\n y = Add(e, c) }""")
    assert [n.outputs[0] for n in graph.nodes[:3]] == ["a", "b", "c"]  # c is an output of the model


def test_weights_in_codes_stay_codes():
    graph = graph_of("""g (float[N, 2] x) => (float[N, 2] y) <int8[2] codes = {3, 4}, float step = {0.5}> {
      w = DequantizeLinear(codes, step)\n y = Add(x, w) }""")
    assert [n.op for n in graph.nodes] == ["DequantizeLinear", "Add"]


def test_a_body_knows_them_too():
    text = """g (bool b, float[N, 2] x) => (float[N, m] y) {
      y = If (b) <then_branch = t () => (float[N, m] u) <float[1] one = {1}, float[1] two = {2}> {
        scales = Concat <axis = 0> (one, two)\n u = Resize <mode = "nearest"> (x, , scales) },
      else_branch = e () => (float[N, m] v) { v = Concat <axis = 1> (x, x) }>
    }"""
    graph = graph_of(text)
    assert repr(graph.types["y"]) == "float32[N, 4]"


@needs_compiler
def test_resizing_by_computed_scales_is_fused_with_what_reads_it(tmp_path: Path) -> None:
    result = built(parse(resized(SCALES["half"])), tmp_path)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    random = np.random.default_rng(3)
    sets = [
        {"x": random.normal(size=(n, 3, h, w)).astype(np.float32)} for n, h, w in ((1, 1, 1), (2, 7, 64), (7, 2, 33))
    ]
    assert worst(tmp_path, result, sets) <= 1e-6
