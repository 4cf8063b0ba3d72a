"""Concatenation and reshapes: kernels of their own, or fused into producers or readers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.group import Plan
from onnxfuse.ir.layout import channels_last
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
joined (float[1, 16, 9, 9] x) => (%s) {
  a = Conv <kernel_shape = [1, 1]> (x, w)
  b = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, v)
  c = Concat <axis = 1> (a, b)
  %s
}"""


def planned(outputs: str, text: str) -> Plan:
    proto = onnx.parser.parse_model(MODEL % (outputs, text))
    for name, shape in (("w", (16, 16, 1, 1)), ("v", (16, 16, 3, 3)), ("u", (16, 32, 3, 3)), ("t", (16, 32, 1, 1))):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    return plan(load(proto.SerializeToString(), Options()), ROWS, Options())


def ops(plan: Plan) -> list[tuple[str, ...]]:
    return [tuple(n.op for n in g.nodes) for g in plan.groups]


def test_what_several_operators_of_images_read_is_a_kernel_that_keeps_channels_last() -> None:
    made = planned(
        "float[N, 16, H, W] y, float[N, 32, P, Q] z",
        "y = Conv <kernel_shape = [3, 3]> (c, u) z = MaxPool <kernel_shape = [3, 3]> (c)",
    )
    assert ops(made) == [("Conv",), ("Conv",), ("Concat",), ("Conv",), ("MaxPool",)]
    assert made.layouts == dict.fromkeys("abc", channels_last(4))


@pytest.mark.parametrize(
    "reader",
    [
        "Conv <kernel_shape = [3, 3]> (c, u)",
        "Conv <kernel_shape = [1, 1]> (c, t)",
        "MaxPool <kernel_shape = [2, 2]> (c)",
    ],
)
def test_a_lone_reader_puts_together_what_it_reads(reader: str) -> None:
    made = planned("float[N, M, H, W] y", f"y = {reader}")
    assert ops(made)[-1] == ("Concat", reader.split()[0])


def test_a_reduction_of_an_image_reads_what_was_put_together() -> None:
    made = planned(
        "float[N, 32] y",
        "r = Relu (c) axes = Constant <value_ints = [2, 3]> () y = ReduceMean <keepdims = 0> (r, axes)",
    )
    assert ops(made)[-2:] == [("Concat",), ("Relu", "ReduceMean")]


def test_what_is_put_together_away_from_images_stays() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    apart (float[4, 6] x, float[4, 2] z) => (float[4, 8] y) { y = Concat <axis = 1> (x, z) }"""
    made = plan(load(onnx.parser.parse_model(text).SerializeToString(), Options()), ROWS, Options())
    assert ops(made) == []


def test_an_image_that_was_normalized_as_rows_is_stored_channels_last() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    grouped (float[1, 16, 9, 9] x) => (float[1, 16, 9, 9] y) {
      a = Conv <kernel_shape = [1, 1]> (x, w)
      rows = Constant <value_ints = [0, 4, -1]> () image = Constant <value_ints = [1, 16, 9, 9]> ()
      b = Reshape (a, rows)
      c = InstanceNormalization (b, s, o)
      d = Reshape (c, image)
      y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (d, v)
    }"""
    proto = onnx.parser.parse_model(text)
    weights = {"w": (16, 16, 1, 1), "v": (16, 16, 3, 3), "s": (4,), "o": (4,)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items())
    made = plan(load(proto.SerializeToString(), Options()), ROWS, Options())
    assert ops(made)[-1] == ("Conv",)
    assert made.layouts["d"] == channels_last(4)


def test_an_add_after_a_product_is_computed_in_its_epilogue() -> None:
    """Enlarged maps are added as they are made; an input that no kernel lays out would be read channel by channel."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    added (float[1, 16, 9, 9] x, float[1, 16, 18, 18] z) => (float[1, 16, 18, 18] y) {
      small = Conv <kernel_shape = [1, 1]> (x, w)
      ends = Constant <value_ints = [1, 16, 18, 18]> ()
      large = Resize <mode = "linear"> (small, , , ends)
      other = %s
      wide = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (z, v)
      y = Add (wide, other)
    }"""

    def grouped(other: str) -> list[tuple[str, ...]]:
        proto = onnx.parser.parse_model(text % other)
        for name, shape in (("w", (16, 16, 1, 1)), ("v", (16, 16, 3, 3))):
            proto.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
        return ops(plan(load(proto.SerializeToString(), Options()), ROWS, Options()))

    assert ("Resize", "Relu", "Conv", "Add") in grouped("Relu (large)")
    apart = grouped("Relu (z)")
    assert ("Conv", "Add") in apart and not any("Relu" in g and "Conv" in g for g in apart)


def test_what_a_cache_is_continued_by_is_made_where_it_is_stored() -> None:
    proto = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    cache (float[B, P, 8] past, float[B, S, 8] x) => (float[B, T, 8] now, float[B, S, T] y) {
      r = Sin (x)
      now = Concat <axis = 1> (past, r)
      k = Transpose <perm = [0, 2, 1]> (now)
      y = MatMul (x, k)
    }""")
    made = plan(load(proto.SerializeToString(), Options()), ROWS, Options())
    assert ("Sin", "Concat") in ops(made)


def test_heads_that_two_products_read_are_made_by_one_kernel() -> None:
    """As in DeBERTa, where keys meet queries and positions, and the size of a sequence is read off its heads."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    heads (float[batch, length, 32] x, float[n, length, 8] q, float[n, 8, 6] p) => (float[n, k, l] y, float[n, k, 6] z)
    <int64[4] split = {0, 0, 4, 8}, int64[1] rest = {-1}, int64[1] eight = {8}, int64 one = {1}, int64[1] zero = {0}> {
      e = Exp(x) h = Reshape(e, split) s = Shape(h) g = Gather(s, one) u = Unsqueeze(g, zero)
      c = Concat<axis = 0>(rest, u, eight) t = Transpose<perm = [0, 2, 1, 3]>(h) k = Reshape(t, c)
      r = Transpose<perm = [0, 2, 1]>(q) y = MatMul(k, r) z = MatMul(k, p)
    }"""
    made = plan(load(onnx.parser.parse_model(text).SerializeToString(), Options()), ROWS, Options())
    assert ("Exp", "Reshape", "Transpose", "Reshape") in ops(made)
    inside = {n.name for g in made.groups for n in g.nodes}
    assert not {n.op for n in made.graph.nodes if n.name not in inside} & {"Shape", "Gather", "Concat"}


COSINE = """<ir_version: 8, opset_import: ["" : 17]>
cosine (float[%s, 2, 6, 16] q, float[%s, 2, 16, 6] k, float[%s, 2, 6, 16] v) => (float[%s, 2, 6, 16] y) {
  low = Constant <value_float = 1e-12> ()
  a = ReduceL2 <axes = [3]> (q)  b = Clip (a, low)  c = Div (q, b)
  d = ReduceL2 <axes = [2]> (k)  e = Clip (d, low)  f = Div (k, e)
  s = MatMul (c, f)  p = Softmax <axis = 3> (s)  y = MatMul (p, v)
}"""


@pytest.mark.parametrize("batch", ["3", "batch"])
def test_the_lengths_of_queries_are_computed_once_whatever_the_batch(batch: str) -> None:
    """Swin V2 divides queries and keys by their lengths: a limit of a length joins its sum, not the attention."""
    made = onnx.parser.parse_model(COSINE % ((batch,) * 4))
    found = ops(plan(load(made.SerializeToString(), Options()), ROWS, Options()))
    assert sorted(found) == [("Div", "Div", "MatMul", "Softmax", "MatMul"), *[("ReduceL2", "Clip")] * 2]
