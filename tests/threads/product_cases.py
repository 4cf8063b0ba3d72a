"""Cases of products of few rows, as decoding has them: a bias, a residual, an activation behind them, all sizes."""

from __future__ import annotations

from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case
from tests.rules.build import Build


def product(rows: int, depth: int, columns: int, dtype: DType = F32) -> Graph:
    """Relu(x w + b) + r."""
    b = Build(22)
    y = b.node("MatMul", b.input("x", 1, rows, depth, dtype=dtype), b.input("w", depth, columns, dtype=dtype))
    y = b.node("Relu", b.node("Add", y, b.input("b", columns, dtype=dtype)))
    return b.graph(b.node("Add", y, b.input("r", 1, rows, columns, dtype=dtype)))


CASES = (
    Case("product_of_one_row", product(1, 96, 160)),
    Case("product_of_one_row_uneven_depth", product(1, 77, 64)),
    Case("product_of_few_rows", product(5, 130, 48)),
    Case("product_of_few_rows_float16", product(3, 64, 128, F16)),
)
