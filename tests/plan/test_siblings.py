"""Siblings that read the same value in the same way join a group; slices of a product are fused into their readers."""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.group import Plan
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legal import Legal, Set, members
from onnxfuse.rewrite import rewrite
from tests.plan.test_best import legal_of

NODES = 12  # of graphs at random
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def planned(text: str, **weights: tuple[int, ...]) -> Plan:
    proto = onnx.parser.parse_model(HEAD + text)
    for name, shape in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    graph, _ = rewrite(load(proto.SerializeToString(), Options()), Options())
    return plan(graph, ROWS, Options())


def ops(made: Plan) -> list[list[str]]:
    return [sorted(n.op for n in g.nodes) for g in made.groups]


def test_two_reductions_of_one_value_are_one_kernel() -> None:
    made = planned("""two (float[N, 64] x) => (float[N, 1] a, float[N, 1] b) {
      a = ReduceMax <axes = [1]> (x)
      b = ReduceMean <axes = [1]> (x)
    }""")
    assert ops(made) == [["ReduceMax", "ReduceMean"]]


def test_two_chains_of_one_value_are_one_kernel() -> None:
    made = planned("""chains (float[N, 64] x) => (float[N, 64] a, float[N, 64] b) {
      s = Sin (x)
      a = Abs (s)
      b = Cos (x)
    }""")
    assert ops(made) == [["Abs", "Cos", "Sin"]]


def test_reductions_over_other_axes_stay_apart() -> None:
    made = planned("""apart (float[32, 64] x) => (float[32, 1] a, float[1, 64] b) {
      a = ReduceMax <axes = [1]> (x)
      b = ReduceMean <axes = [0]> (x)
    }""")
    assert ops(made) == []


def test_pieces_of_a_product_without_bias_belong_to_the_attention_that_reads_them() -> None:
    made = planned(
        """attention (float[B, S, 64] x) => (float[B, S, 64] y)
        <int64[4] heads = {0, 0, 4, 16}, int64[3] flat = {0, 0, 64}> {
          q = MatMul (x, wq)
          k = MatMul (x, wk)
          v = MatMul (x, wv)
          q4 = Reshape (q, heads)
          k4 = Reshape (k, heads)
          v4 = Reshape (v, heads)
          qt = Transpose <perm = [0, 2, 1, 3]> (q4)
          kt = Transpose <perm = [0, 2, 3, 1]> (k4)
          vt = Transpose <perm = [0, 2, 1, 3]> (v4)
          s = MatMul (qt, kt)
          p = Softmax <axis = -1> (s)
          o = MatMul (p, vt)
          u = Transpose <perm = [0, 2, 1, 3]> (o)
          y = Reshape (u, flat)
        }""",
        wq=(64, 64),
        wk=(64, 64),
        wv=(64, 64),
    )
    assert [len(g) for g in ops(made)] == [14] and ops(made)[0].count("Slice") == 3
    outside = {n.name for n in made.graph.nodes} - {n.name for g in made.groups for n in g.nodes}
    assert [n.op for n in made.graph.nodes if n.name in outside] == ["MatMul"]


def test_slices_of_one_value_are_one_kernel() -> None:
    made = planned("""halves (float[4, N, 8] h) => (float[2, N, 8] a, float[2, N, 8] b)
    <int64[1] z = {0}, int64[1] t = {2}, int64[1] f = {4}> {
      a = Slice (h, z, t, z)
      b = Slice (h, t, f, z)
    }""")
    assert ops(made) == [["Slice", "Slice"]]


def test_values_without_inputs_are_recomputed_by_each_reader() -> None:
    made = planned("""zeros (float[N, 8] x) => (float[2, N, 8] a, float[2, N, 8] b)
    <int64[1] z = {0}, int64[1] t = {2}, int64[1] f = {4}, int64[1] e = {8}> {
      s = Shape <start = 0, end = 1> (x)
      w = Concat <axis = 0> (f, s, e)
      h = ConstantOfShape (w)
      a = Slice (h, z, t, z)
      b = Slice (h, t, f, z)
    }""")
    assert ops(made) == [["ConstantOfShape", "Slice", "Slice"]]


def legal_at_random(seed: int) -> Legal:
    """The legality of a graph in which each node adds up one to three values made before it."""
    rng = random.Random(seed)
    lines = [
        f"t{i} = Sum({', '.join(rng.sample(['x', *(f't{k}' for k in range(i))], min(i + 1, rng.randint(1, 3))))})"
        for i in range(NODES)
    ]
    outputs = ", ".join(f"float[4] t{i}" for i in range(NODES))
    return legal_of(f"(float[4] x) => ({outputs}) {{ {' '.join(lines)} }}")


def test_a_group_is_circular_if_and_only_if_the_groups_with_it_have_a_cycle() -> None:
    found = {True: 0, False: 0}
    for seed in range(200):
        legal, rng = legal_at_random(seed), random.Random(seed)
        units = legal.scope.units()
        groups: list[Set] = []
        for _ in range(12):
            i, j = sorted(rng.sample(range(NODES), 2))
            parts = [next((g for g in groups if g >> at & 1), 1 << at) for at in (i, j)]
            whole = parts[0] | parts[1]
            others = [g for g in groups if g not in parts]
            own = {at: g for g in groups for at in members(g)}
            circular = not legal.acyclic([*others, whole])
            assert legal.circular(whole, own) == circular, (seed, groups, whole)
            assert units.closes_cycle(units.group[i], j) == circular, (seed, groups, whole)
            found[circular] += 1
            if not circular and parts[0] != parts[1]:
                units.join(units.group[i], j)
                groups = [*others, whole]
    assert min(found.values()) > 200
