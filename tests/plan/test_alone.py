"""Operators that become a kernel alone."""

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
