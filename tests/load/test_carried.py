"""Values that a Loop or Scan passes on unchanged are read from outside of its body."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import load

HEAD = '<ir_version: 8, opset_import: ["" : {}]>\n'
# Carried are h, weights that only Identities pass on, and two values that change places.
SWAP = """g (int64 k, float[4] x, float[4] z) => (float[4] y, float[4, 4] v, float[4] p, float[4] q, float[t, 4] each)
<float[4, 4] w = {1, 0, 0, 1, 0, 1, 0, 0, 2, 0, 1, 0, 0, 0, 0, 1}, bool go = {1}> {
  y, v, p, q, each = Loop (k, go, x, w, z, x) <body = l
    (int64 i, bool on, float[4] h, float[4, 4] u, float[4] a, float[4] b)
    => (bool on2, float[4] h2, float[4, 4] u3, float[4] b2, float[4] a2, float[4] e) {
      on2 = Identity (on) m = MatMul (h, u) n = Add (m, a) h2 = Tanh (n)
      u2 = Identity (u) u3 = Identity (u2) b2 = Identity (b) a2 = Identity (a) e = Relu (h2) }> }"""
# w passes through a loop in the loop; each iteration gives it too, so that it has to be a value of the body.
INNER = """g (int64 k, float[4] x, float[4] z) => (float[4] y, float[4] r, float[t, 4] each)
<bool go = {1}, int64 two = {2}, float[4] w = {1, 2, 3, 4}> {
  y, r, s, each = Loop (k, go, x, w, z) <body = l (int64 i, bool on, float[4] h, float[4] u, float[4] c)
    => (bool on2, float[4] h3, float[4] u3, float[4] d, float[4] c) {
      on2 = Identity (on)
      h3, u3 = Loop (two, on, h, u) <body = m (int64 j, bool o, float[4] f, float[4] v)
        => (bool o2, float[4] f2, float[4] v2) { o2 = Identity (o) f1 = Mul (f, v) f2 = Sub (f1, c) v2 = Identity (v) }>
      d = Identity (c) }> }"""
SCAN = """g (int64 k, float[4] x, float[4] z) => (float[4] y, float[4] v, float[3, 4] each)
<float[3, 4] rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
  y, v, each = Scan <num_scan_inputs = 1, body = l (float[4] h, float[4] c, float[4] row)
    => (float[4] h2, float[4] c2, float[4] e) {
      a = Add (h, row) h2 = Mul (a, c) c2 = Identity (c) e = Neg (h2) }> (x, z, rows) }"""
LONE = """g (int64 k, float[4] x, float[4] z) => (float[4] y) <bool go = {1}> {
  y = Loop (k, go, x) <body = l (int64 i, bool on, float[4] h) => (bool on, float[4] h2) { h2 = Identity (h) }> }"""
LISTED = """g (int64 k, float[4] x, float[4] z) => (float[4] y, float[t, 4] each) <bool go = {1}> {
  y, each = Loop (k, go, x) <body = l (int64 i, bool on, float[4] h) => (bool on2, float[4] h2, float[4] e) {
    on2 = Identity (on) h2 = Identity (h) e = Neg (h) }> }"""


def loaded(text: str, opset: int = 17) -> tuple[onnx.ModelProto, Graph]:
    model = parser.parse_model(HEAD.format(opset) + text)
    return model, load(model.SerializeToString(), Options())


def runs(proto: onnx.ModelProto, trips: int) -> list[Any]:
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"k": np.array(trips, np.int64), "x": x, "z": x[::-1].copy()}
    return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))


def carried(graph: Graph) -> list[tuple[str, ...]]:
    """The inputs of each node with a body."""
    return [n.inputs for n in graph.nodes if n.op in ("Loop", "Scan")]


@pytest.mark.parametrize("trips", [0, 1, 3])
@pytest.mark.parametrize("text", [SWAP, INNER, SCAN, LONE, LISTED])
def test_the_results_are_the_same(text: str, trips: int):
    model, graph = loaded(text)
    for have, want in zip(runs(graph.source.proto, trips), runs(model, trips), strict=True):
        np.testing.assert_array_equal(have, want)


def test_weights_are_constants_of_the_body_and_values_that_change_places_are_carried():
    _, graph = loaded(SWAP)
    assert carried(graph) == [("k", "go", "x", "z", "x")]
    (body,) = (each.graph for each in graph.source.bodies)
    assert body.constants["w"] is graph.constants["w"]
    assert [n.op for n in graph.nodes] == ["Loop", "Identity"], "what comes out of it is what was given"


def test_what_passes_through_an_inner_loop_unchanged_is_unchanged():
    _, graph = loaded(INNER)
    assert carried(graph) == [("k", "go", "x", "z")], "c stays: an iteration gives it as it is"
    (body,) = (each.graph for each in graph.source.bodies)
    assert carried(body) == [("two", "on", "h")]


def test_states_of_a_scan():
    assert carried(loaded(SCAN)[1]) == [("x", "rows")]


def test_a_node_keeps_a_value_where_it_must_have_one():
    assert carried(loaded(LONE)[1]) == [("k", "go", "x")], "it would have no result"
    assert carried(loaded(LISTED, 10)[1]) == [("k", "go", "x")], "a Loop of that opset has one"
    assert carried(loaded(LISTED, 11)[1]) == [("k", "go")]
