"""Operators that become a kernel by themselves."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.ir.group import Plan
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan

PRODUCT = """<ir_version: 8, opset_import: ["" : 17]>
product (float[R, K] x) => (float[R, N] y) { y = MatMul (x, w) }"""


def planned(rows: int, depth: int, columns: int, **options: int) -> Plan:
    """The plan for a product with weights."""
    text = PRODUCT.replace("[R, K]", f"[{rows}, {depth}]").replace("[R, N]", f"[{rows}, {columns}]")
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((depth, columns), np.float32), "w"))
    return plan(load(proto.SerializeToString(), Options()), ROWS, Options(**options))


@pytest.mark.parametrize(("depth", "columns", "groups"), [(512, 512, 1), (511, 512, 0), (64, 4096, 1), (8, 8, 0)])
def test_a_product_with_weights_larger_than_a_cache(depth: int, columns: int, groups: int) -> None:
    made = planned(16, depth, columns)
    assert len(made.groups) == groups
    assert [(d.code, "KB of weights" in d.reason) for d in made.decisions] == [("E-COST", True)] * (1 - groups)


def test_not_where_groups_are_to_be_larger() -> None:
    assert not planned(16, 1024, 1024, min_group=3).groups
    assert len(planned(16, 8, 8, min_group=1).groups) == 1


@pytest.mark.parametrize(("codes", "groups"), [("int8", 1), ("uint8", 0)])
def test_a_small_product_of_signed_codes(codes: str, groups: int) -> None:
    """The runtime multiplies signed codes by signed ones without the instructions for unsigned ones."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    product ({codes}[16, 64] x) => (int32[16, 64] y) {{ y = MatMulInteger (x, w) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.int8), "w"))
    made = plan(load(proto.SerializeToString(), Options()), ROWS, Options())
    assert len(made.groups) == groups


FILLED = """<ir_version: 8, opset_import: ["" : 17]>
filled (float[n, 8] x) => (float[2, m, 8] y, float[n, 8] z) <int64[1] t = {2}, int64[1] e = {8}> {
  s = Shape <start = 0, end = 1> (x)
  w = Concat <axis = 0> (t, s, e)
  y = ConstantOfShape (w)
  r = Relu (x)
  z = Exp (r)
}"""


def test_a_kernel_that_spares_the_arithmetic_on_its_shape_is_one_of_several_operators() -> None:
    made = plan(load(onnx.parser.parse_model(FILLED).SerializeToString(), Options()), ROWS, Options())
    assert [[n.op for n in g.nodes] for g in made.groups] == [["ConstantOfShape"], ["Relu", "Exp"]]
    fixed = FILLED.replace("n, 8", "3, 8")
    made = plan(load(onnx.parser.parse_model(fixed).SerializeToString(), Options()), ROWS, Options(min_group=4))
    assert not made.groups


def test_not_where_others_need_that_arithmetic() -> None:
    text = FILLED.replace("float[n, 8] z)", "float[n, 8] z, int64[3] w)")
    made = plan(load(onnx.parser.parse_model(text).SerializeToString(), Options()), ROWS, Options())
    assert [[n.op for n in g.nodes] for g in made.groups] == [["Relu", "Exp"]]
