"""Operators that become a kernel alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.config import Options
from onnxfuse.load import load
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan

PRODUCT = """<ir_version: 8, opset_import: ["" : 17]>
product (float[R, K] x) => (float[R, N] y) { y = MatMul (x, w) }"""


def groups_of(rows: int, depth: int, columns: int, **options: int) -> int:
    """How many groups a product with weights becomes."""
    text = PRODUCT.replace("[R, K]", f"[{rows}, {depth}]").replace("[R, N]", f"[{rows}, {columns}]")
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((depth, columns), np.float32), "w"))
    return len(plan(load(proto.SerializeToString(), Options()), ROWS, Options(**options)).groups)


@pytest.mark.parametrize(("depth", "columns", "groups"), [(1024, 1024, 1), (1023, 1024, 0), (64, 30000, 1), (8, 8, 0)])
def test_a_product_with_weights_larger_than_a_cache(depth: int, columns: int, groups: int) -> None:
    assert groups_of(16, depth, columns) == groups


def test_not_where_groups_are_to_be_larger() -> None:
    assert groups_of(16, 1024, 1024, min_group=3) == 0
    assert groups_of(16, 8, 8, min_group=1) == 1
