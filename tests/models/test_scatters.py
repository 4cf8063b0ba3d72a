"""Scatters at computed indices: graph networks with any number of nodes and edges, and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxfuse.runtime.engine import open_session, options
from tests.models.fused import Array, Feeds
from tests.models.test_bodies import built, worst
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
RANDOM = np.random.default_rng(21)
# A layer of message passing: what edges carry is made of both ends, and added up at one of them.
MESSAGES = """messages (float[N, 24] x, int64[2, E] edges, float[E, 5] about) => (float[N, 24] y)
  <int64 zero = {0}, int64 one = {1}, int64[1] second = {1}> {
  source = Gather <axis = 0> (edges, zero)
  target = Gather <axis = 0> (edges, one)
  sent = Gather <axis = 0> (x, source)
  both = Concat <axis = -1> (sent, about)
  hidden = MatMul (both, w)
  message = Relu (hidden)
  wide = Shape (message)
  target2 = Unsqueeze (target, second)
  at = Expand (target2, wide)
  nodes = Shape (x)
  empty = ConstantOfShape (nodes)
  sum = ScatterElements <axis = 0, reduction = "add"> (empty, at, message)
  changed = MatMul (sum, u)
  residual = Add (changed, x)
  y = Tanh (residual)
}"""
# Attention over the edges that end in a node, of two heads: the largest weight, and the sum, are combined there.
ATTENTION = """attention (float[N, 2, 8] x, int64[2, E] edges) => (float[N, 2, 8] y)
  <int64 zero = {0}, int64 one = {1}, int64[1] second = {1}, int64[1] third = {2}, int64[1] last = {-1},
   int64[2] behind = {1, 2}, float low = {-1e30}, float tiny = {1e-9}> {
  source = Gather <axis = 0> (edges, zero)
  target = Gather <axis = 0> (edges, one)
  of = Gather <axis = 0> (x, source)
  to = Gather <axis = 0> (x, target)
  product = Mul (of, to)
  weight = ReduceSum <keepdims = 0> (product, last)
  heads = Shape (weight)
  target2 = Unsqueeze (target, second)
  at2 = Expand (target2, heads)
  all = ReduceSum <keepdims = 0> (x, last)
  nodes = Shape (all)
  empty = ConstantOfShape (nodes)
  lowest = Add (empty, low)
  most = ScatterElements <axis = 0, reduction = "max"> (lowest, at2, weight)
  most_here = Gather <axis = 0> (most, target)
  less = Sub (weight, most_here)
  part = Exp (less)
  sum = ScatterElements <axis = 0, reduction = "add"> (empty, at2, part)
  part3 = Unsqueeze (part, third)
  weighted = Mul (of, part3)
  wide = Shape (weighted)
  target3 = Unsqueeze (target, behind)
  at3 = Expand (target3, wide)
  image = Shape (x)
  nothing = ConstantOfShape (image)
  taken = ScatterElements <axis = 0, reduction = "add"> (nothing, at3, weighted)
  sum3 = Unsqueeze (sum, third)
  sum4 = Add (sum3, tiny)
  y = Div (taken, sum4)
}"""
# New keys are written into a cache at places that are inputs, and the whole cache is read.
CACHE = """cache (float[B, 16, 8] past, int64[T, 1] where, float[T, B, 8] new) => (float[B, 16, 8] y) {
  turned = Transpose <perm = [1, 0, 2]> (past)
  scaled = Mul (new, new)
  written = ScatterND (turned, where, scaled)
  back = Transpose <perm = [1, 0, 2]> (written)
  y = Sigmoid (back)
}"""
SIZES = ((1, 1), (5, 0), (2, 7), (7, 64), (67, 31))


def floats(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def made(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(HEAD + text)
    if text is MESSAGES:
        for name, rows in (("w", 29), ("u", 24)):
            model.graph.initializer.append(numpy_helper.from_array(floats(rows, 24), name))
    return model


def feeds(text: str, n: int, e: int) -> Feeds:
    edges = RANDOM.integers(-n, n, (2, e))
    if text is MESSAGES:
        return {"x": floats(n, 24), "edges": edges, "about": floats(e, 5)}
    if text is ATTENTION:
        return {"x": floats(n, 2, 8), "edges": edges}
    places = RANDOM.permutation(16)[: e % 17, None]
    return {"past": floats(n, 16, 8), "where": places, "new": floats(len(places), n, 8)}


@pytest.mark.parametrize(("text", "kernels"), [(MESSAGES, 2), (ATTENTION, 1), (CACHE, 1)], ids=["m", "a", "c"])
def test_nothing_of_a_network_over_graphs_is_left_to_the_runtime(text: str, kernels: int, tmp_path: Path) -> None:
    result = built(made(text), tmp_path)
    assert result.kernels <= kernels and result.nodes_left == 0, result.refusals
    sizes = [size for size in SIZES if text is not ATTENTION or all(size)]  # the runtime fails to sum none of a rank
    assert worst(tmp_path, result, [feeds(text, *size) for size in sizes]) <= 2e-6


def test_places_outside_are_an_error(tmp_path: Path) -> None:
    result = built(made(MESSAGES), tmp_path)
    session = open_session(str(tmp_path / "fused.onnx"), options(libraries=[str(result.output.library)]))
    for bad in (5, -6):
        given = feeds(MESSAGES, 5, 9)
        given["edges"][1, 4] = bad
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument):
            session.run(None, given)


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_sums_are_those_of_the_runtime_bit_by_bit(op: str, tmp_path: Path) -> None:
    """In the order of the updates, onto what was there before, whoever runs which part."""
    places = "int64[E, 40]" if op == "ScatterElements" else "int64[E, 1]"
    text = f"""sums (float[N, 40] x, {places} at, float[E, 40] u) => (float[N, 40] y) {{
      y = {op} <reduction = "add"> (x, at, u)
    }}"""
    result = built(onnx.parser.parse_model(HEAD + text), tmp_path, min_group=1)
    assert (result.kernels, result.nodes_left) == (1, 0), result.refusals
    width = 40 if op == "ScatterElements" else 1
    sizes = ((3, 300), (1, 50), (200, 1000))
    sets = [{"x": floats(n, 40), "at": RANDOM.integers(-n, n, (e, width)), "u": floats(e, 40) * 100} for n, e in sizes]
    assert worst(tmp_path, result, sets) == 0
