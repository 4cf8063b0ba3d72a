"""Products of rows that a Loop reads one after the other are taken before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from onnxfuse.config import Options
from onnxfuse.ir.graph import Graph
from onnxfuse.load import load

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
# A cell as tf2onnx writes it: it counts its steps itself, in int32, and carries its weights.
CELL = """g (int64 k, float[T, B, 4] x) => (float[B, 3] y, float[s, B, 3] each)
<bool go = {{1}}, int32 zero = {{0}}, int32 one = {{1}}> {{
  first = Gather (x, zero) h0 = MatMul (first, w)
  end, y, u, each = Loop (k, go, zero, h0, w) <body = l (int64 i, bool on, int32 t, float[B, 3] h, float[4, 3] w1)
    => (bool on2, int32 t2, float[B, 3] h2, float[4, 3] w2, float[B, 3] e) {{
      on2 = Identity (on) t2 = Add ({next}) row = Gather (x, {at})
      own = MatMul (row, w1) sum = Add (own, h) h2 = Tanh (sum) {more} w2 = Identity (w1) }}> }}"""
PLAIN = {"next": "t, one", "at": "t", "more": "e = Relu (h2)"}
READ_AGAIN = {**PLAIN, "more": "r = ReduceMax <keepdims = 1, axes = [1]> (row) e = Mul (h2, r)"}
NUMBERED = {**PLAIN, "at": "i"}
TURNED = {**PLAIN, "next": "one, t"}
BACKWARD = {**PLAIN, "next": "t, t"}


def made(how: dict[str, str]) -> onnx.ModelProto:
    model = parser.parse_model(HEAD + CELL.format(**how))
    weights = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def loaded(model: onnx.ModelProto) -> Graph:
    return load(model.SerializeToString(), Options())


def runs(proto: onnx.ModelProto, trips: int) -> list[Any]:
    x = np.random.default_rng(6).normal(size=(5, 2, 4)).astype(np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"k": np.array(trips, np.int64), "x": x}))


@pytest.mark.parametrize("how", [PLAIN, READ_AGAIN, NUMBERED, TURNED])
def test_the_product_of_all_rows_is_taken_before_the_loop(how: dict[str, str]):
    model = made(how)
    graph = loaded(model)
    assert [n.op for n in graph.nodes if n.op in ("MatMul", "Loop")] == ["MatMul", "MatMul", "Loop"]
    (body,) = (each.graph for each in graph.source.bodies)
    assert "MatMul" not in [n.op for n in body.nodes]
    assert sum(n.op == "Gather" for n in body.nodes) == (2 if how is READ_AGAIN else 1)
    for trips in (0, 1, 4):
        for have, want in zip(runs(graph.source.proto, trips), runs(model, trips), strict=True):
            np.testing.assert_allclose(have, want, rtol=1e-6)


def test_rows_that_do_not_follow_each_other_are_multiplied_in_the_loop():
    (body,) = (each.graph for each in loaded(made(BACKWARD)).source.bodies)
    assert "MatMul" in [n.op for n in body.nodes]


def test_a_matrix_that_the_body_makes_or_of_unknown_rank_is_multiplied_there():
    text = """g (int64 k, float[T, B, 4] x, float[C, D] v) => (float[s, B, E] each) <bool go = {1}> {
      each = Loop (k, go) <body = l (int64 i, bool on) => (bool on2, float[B, E] e) {
        on2 = Identity (on) row = Gather (x, i) twice = Add (v, v) a = MatMul (row, twice) b = MatMul (row, v)
        e = Add (a, b) }> }"""
    (body,) = (each.graph for each in loaded(parser.parse_model(HEAD + text)).source.bodies)
    assert [n.op for n in body.nodes].count("MatMul") == 2


@pytest.mark.parametrize(
    ("x", "step", "w"),
    [("float[T]", "int32[C]", (4, 3)), ("float[T]", "int32[C]", (1, 3)), ("float[T]", "int32", (1, 3))],
)
def test_what_may_not_be_a_row_is_multiplied_in_the_loop(x: str, step: str, w: tuple[int, int]):
    """Elements that a vector of steps looks up, and a matrix of one row, which may be multiplied by one element."""
    text = f"""g (int64 k, {x} x, {step} first) => (float[s, E] each) <bool go = {{1}}, int32 one = {{1}}> {{
      last, each = Loop (k, go, first) <body = l (int64 i, bool on, {step} t) => (bool on2, {step} t2, float[E] e) {{
        on2 = Identity (on) t2 = Add (t, one) row = Gather (x, t) e = MatMul (row, w) }}> }}"""
    model = parser.parse_model(HEAD + text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(w, np.float32), "w"))
    (body,) = (each.graph for each in loaded(model).source.bodies)
    assert "MatMul" in [n.op for n in body.nodes]


def test_rows_of_a_table_are_multiplied_in_the_loop():
    model = made(PLAIN)
    model.graph.input.remove(next(v for v in model.graph.input if v.name == "x"))
    table = np.random.default_rng(7).normal(size=(5, 2, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "x"))
    (body,) = (each.graph for each in loaded(model).source.bodies)
    assert "MatMul" in [n.op for n in body.nodes]


def test_names_of_products_are_new():
    model = made(PLAIN)
    model.graph.node.append(onnx.helper.make_node("Neg", ["y"], ["own/rows"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("own/rows", 1, None))
    assert {"own/rows", "own/rows'"} <= {o for n in loaded(model).nodes for o in n.outputs}


@pytest.mark.parametrize(
    "lines",
    [
        "a = Identity (b) b = Identity (a) row = Gather (x, a) e = MatMul (row, w)",
        "a = Identity () row = Gather (x, a) e = MatMul (row, w)",
        "row = Gather (x, i) e = MatMul (row)",
        "e = MatMul ()",
    ],
)
def test_what_no_operator_allows_is_left_in_the_loop(lines: str):
    """The runtime refuses such a body; loading it ends, and changes nothing."""
    text = f"""g (int64 k, float[T, 2, 4] x) => (float[s, 2, 3] each) <bool go = {{1}}> {{
      each = Loop (k, go) <body = l (int64 i, bool on) => (bool on2, float[B, 3] e) {{
        on2 = Identity (on) {lines} }}> }}"""
    model = parser.parse_model(HEAD + text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    body = loaded(model).source.proto.graph.node[-1].attribute[0].g
    assert [n.op_type for n in body.node].count("MatMul") == 1


def test_a_loop_without_inputs_is_loaded():
    text = """g (float[N] x) => (float[N] y, float[s] each) { y = Neg (x)
      each = Loop () <body = l () => (bool on, float e) { on = Constant <value = bool {1}> ()
        e = Constant <value = float {1}> () }> }"""
    assert "Loop" in [n.op for n in loaded(parser.parse_model(HEAD + text)).nodes]
