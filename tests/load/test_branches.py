"""Ifs with conditions known at load time are replaced by the branch that runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import load
from onnxfuse.load.branches import Again, opened

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


def test_an_extent_that_no_size_makes_one_decides() -> None:
    """What is squeezed "if it has one element" is a multiple of 512 long."""
    model = onnx.parser.parse_model(
        HEAD
        + """squeezed (float[1, T] x) => (float[P, Q] y)
        <int64[1] one = {1}, int64[1] at = {1}, int64[2] to = {1, -1}> {
          wide = Concat <axis = 0> (x, x, x)
          flat = Reshape (wide, to)
          s = Shape (flat)
          n = Gather <axis = 0> (s, at)
          none = Equal (n, one)
          y = If (none) <
            then_branch = then () => (float[P] z) { z = Squeeze (flat, at) },
            else_branch = else () => (float[P, Q] v) { v = Identity (flat) }
          >
        }"""
    )
    graph = load(model.SerializeToString(), Options())
    assert "If" not in ops(graph) and repr(graph.types["y"]) == "float32[1, 3*T]"


def test_one_that_depends_on_the_input_stays() -> None:
    _, graph = loaded()
    assert ops(graph).count("If") == 2


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


RECURRENT = """recurrent (float[N, 6, T] x, bool c) => (float[1, M, 4] h)
<int64[1] one = {1}, int64[1] last = {-1}, int64[1] first = {0}, int64 two = {2}> {
  s = Shape (x)
  t = Gather <axis = 0> (s, last)
  is1 = Equal (t, one)
  z = If (is1) <
    then_branch = then () => (float[P, Q] a) { a = Squeeze (x, last) },
    else_branch = else () => (float[P, Q, R] b) { b = Identity (x) }
  >
  zs = Shape (z)
  rank = Size (zs)
  flat = Equal (rank, two)
  q = If (flat) <
    then_branch = then2 () => (float[] a2) { a2 = Identity (z) },
    else_branch = else2 () => (float[] b2) { b2 = Unsqueeze (z, first) }
  >
  q3 = Unsqueeze (q, first)
  y, h1 = LSTM <hidden_size = 4> (q3, w, r)
  h = %s (h1)
}"""


def recurrent(op: str, *dim: str) -> tuple[onnx.ModelProto, Graph]:
    model = onnx.parser.parse_model(HEAD + RECURRENT % op)
    random = np.random.default_rng(2)
    for name, shape in (("w", (1, 16, 6)), ("r", (1, 16, 4))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name))
    return model, load(model.SerializeToString(), Options(dim=dim))


def test_where_one_branch_ends_every_run_the_other_one_is_opened() -> None:
    model, graph = recurrent("Relu")
    assert ops(graph).count("If") == 0 and "Squeeze" in ops(graph)
    t = graph.types["h"]
    assert t is not None and len(t.shape) == 3
    sessions = [ort.InferenceSession(m.SerializeToString()) for m in (model, graph.source.proto)]
    for n in (1, 5):
        feeds = {"x": np.random.default_rng(n).normal(size=(n, 6, 1)).astype(np.float32)}
        got = [s.run(None, feeds | ({"c": np.array(True)} if len(s.get_inputs()) > 1 else {}))[0] for s in sessions]
        assert np.array_equal(*got)
    for s in sessions:  # and neither takes another extent
        with pytest.raises(Exception, match=r"(?i)dimension|rank|shape"):
            s.run(None, {"x": np.zeros((2, 6, 3), np.float32), "c": np.array(True)})


def test_a_branch_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first branch runs, so that the second ends every run: the graph with the first is the one that was tried."""
    loads: list[onnx.ModelProto] = []

    def counting(graph: Graph, again: Again) -> Graph:
        return opened(graph, lambda proto: (loads.append(proto), again(proto))[1])

    monkeypatch.setattr("onnxfuse.load.model.opened", counting)
    recurrent("Relu")
    assert len(loads) == 4  # with either branch, and with what is constant then, which makes one more constant
