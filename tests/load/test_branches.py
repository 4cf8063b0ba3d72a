"""Ifs whose conditions are known before the model runs are gone: the branch that runs is part of the graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import load
from onnxfuse.load.branches import chosen

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
# By its rank and an extent, as traced squeezes and recurrent layers have them; the inner If stands on the outer one's
# result, and all branches use the same names.
MODEL = """squeezed (float[N, 3, T] x) => (float[M] y)
<int64[1] one = {1}, int64[1] last = {-1}, int64 three = {3}> {
  s = Shape (x)
  t = Gather <axis = 0> (s, last)
  is1 = Equal (t, one)
  z = If (is1) <
    then_branch = then () => (float[P, Q] z) { z = Squeeze (x, last) },
    else_branch = else () => (float[P, Q, R] v) { v = Identity (x) }
  >
  s2 = Shape (z)
  rank = Size (s2)
  is3 = Equal (rank, three)
  u, w = If (is3) <
    then_branch = then2 () => (float[] a, float[] b) {
      v = Relu (z)
      a = ReduceSum <keepdims = 0> (v)
      b = Identity (a)
    },
    else_branch = else2 () => (float[] v, float[] a) {
      b = Neg (z)
      v = ReduceMean <keepdims = 0> (b)
    }
  >
  r = Add (u, w)
  y = Reshape (r, last)
}"""


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]


def loaded(*dim: str) -> tuple[onnx.ModelProto, Graph]:
    model = onnx.parser.parse_model(HEAD + MODEL)
    branch = next(a.g for n in model.graph.node for a in n.attribute if a.g.name == "else2")
    branch.initializer.append(onnx.numpy_helper.from_array(np.float32(5), "a"))  # a result that no node makes
    return model, load(model.SerializeToString(), Options(dim=dim))


@pytest.mark.parametrize("extent", [1, 4])
def test_a_branch_that_is_known_to_run_replaces_its_if(extent: int) -> None:
    model, graph = loaded(f"T={extent}")
    assert "If" not in ops(graph)
    assert ("Neg" in ops(graph)) == (extent == 1)
    t = graph.types["z"]
    assert t is not None and len(t.shape) == (2 if extent == 1 else 3)
    proto = graph.source.proto
    onnx.checker.check_model(proto)
    x = np.random.default_rng(1).normal(size=(2, 3, extent)).astype(np.float32)
    runs = [ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (model, proto)]
    assert np.array_equal(*runs)


def test_one_that_depends_on_the_input_stays() -> None:
    _, graph = loaded()
    assert ops(graph).count("If") == 2 and chosen(graph) is None


def test_ifs_inside_of_branches_that_stay_are_opened_too() -> None:
    text = """outer (bool c, float[2, 3] x) => (float[2, 3] y) <int64[1] two = {2}> {
  y = If (c) <
    then_branch = then () => (float[2, 3] a) {
      s = Shape (x)
      r = Size (s)
      k = Equal (r, two)
      a = If (k) <
        then_branch = then2 () => (float[2, 3] b) { b = Relu (x) },
        else_branch = else2 () => (float[2, 3] b) { b = Neg (x) }
      >
    },
    else_branch = else () => (float[2, 3] b) { b = Identity (x) }
  >
}"""
    model = onnx.parser.parse_model(HEAD + text)
    graph = load(model.SerializeToString(), Options())
    (body, _) = graph.source.bodies
    assert ops(body.graph)[-1] == "Relu" and "If" not in ops(body.graph)
    onnx.checker.check_model(graph.source.proto)
    x = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    session = ort.InferenceSession(graph.source.proto.SerializeToString())
    for c in (True, False):
        assert np.array_equal(session.run(None, {"c": np.array(c), "x": x})[0], np.maximum(x, 0) if c else x)
