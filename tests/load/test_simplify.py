"""Shape arithmetic with a known result is removed, and nothing else."""

from __future__ import annotations

import numpy as np

from onnxfuse.load import simplify_shapes
from tests.load.models import graph_of, parse, text

RESHAPE = """g (float[N, 4, 6] x) => (float[a, b] y)
<int64[1] at = {1}, int64[1] minus = {-1}>
{ s = Shape(x)
  c = Gather(s, at)
  t = Concat<axis = 0>(c, minus)
  u = Transpose<perm = [1, 0, 2]>(x)
  y = Reshape(u, t)
  dead = Relu(x) }"""


def test_known_integers_become_constants_and_dead_nodes_go():
    graph = graph_of(RESHAPE)
    simple = simplify_shapes(graph)
    simple.verify()
    assert [n.op for n in simple.nodes] == ["Transpose", "Reshape"]
    assert simple.constants.keys() == {"t"} and simple.constants["t"].load().tolist() == [4, -1]
    assert simple.constants["t"].load().dtype == np.int64
    assert (simple.types, simple.known, simple.source) == (graph.types, graph.known, graph.source)


def test_what_depends_on_a_symbol_stays():
    graph = simplify_shapes(graph_of(RESHAPE.replace("at = {1}", "at = {0}")))
    assert [n.op for n in graph.nodes] == ["Shape", "Gather", "Concat", "Transpose", "Reshape"]
    assert list(map(repr, graph.known["t"])) == ["N", "-1"] and text(graph.types["y"]) == "float32[N, 24]"


def test_a_node_that_makes_an_output_stays():
    graph = simplify_shapes(graph_of("g (float[2, 3] x) => (int64[2] y, int64[2] z) { y = Shape(x)\n z = Neg(y) }"))
    assert [n.op for n in graph.nodes] == ["Shape", "Neg"]


def test_what_a_subgraph_reads_stays():
    graph = simplify_shapes(
        graph_of(
            """g (float[2, 3] x, bool c) => (int64[2] y)
            { s = Shape(x)\n t = Neg(s)\n r = Relu(x)\n h = Abs(r)
              y = If(c) < then_branch = a () => (int64[2] o) { o = Add(t, t) },
                          else_branch = b () => (int64[2] o) { o = Shape(r) } > }"""
        )
    )
    assert [n.op for n in graph.nodes] == ["Relu", "If"]
    assert graph.constants["t"].load().tolist() == [-2, -3]


def test_operators_of_others_may_do_more_than_make_values():
    model = parse("g (float[2] x) => (float[2] y) { l = mine.Log(x)\n y = Relu(x) }", imports=', "mine": 1')
    assert [n.op for n in simplify_shapes(graph_of(model)).nodes] == ["Log", "Relu"]


def test_several_outputs_and_types():
    graph = simplify_shapes(
        graph_of(
            """g (float[8, 3] x) => (float[a, b] y) <int64[2] one = {1, 1}>
            { s = Shape(x)\n h, w = Split(s, one)\n n = Cast<to = 6>(h)\n m = Cast<to = 7>(n)
              t = Concat<axis = 0>(w, m)\n y = Reshape(x, t) }"""
        )
    )
    assert [n.op for n in graph.nodes] == ["Reshape"] and text(graph.types["y"]) == "float32[3, 8]"
