"""Rows and elements of shapes that only kernels for GPUs divide in a way of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case
from tests.rules.build import Build


def enlarged(dtype: DType, *sides: int) -> Graph:
    """Images of so many pixels a side, with a bias each, enlarged to the first one's side and joined."""
    b = Build(18)
    made = []
    for side in sides:
        x = b.input(f"x{side}", 1, 6, side, side, dtype=dtype)
        x = b.node("Add", x, b.constant(np.linspace(-1, 1, 6).reshape(6, 1, 1), dtype.numpy.type))
        scales = b.constant([1, 1, sides[0] / side, sides[0] / side])
        made.append(b.node("Resize", x, "", scales, mode="linear"))
    return b.graph(b.node("Concat", *made, axis=1))


CASES: Sequence[Case] = (
    Case("enlarged_float16", enlarged(F16, 16, 8, 4)),
    Case("enlarged_float32", enlarged(F32, 16, 8, 4, 2)),
)
