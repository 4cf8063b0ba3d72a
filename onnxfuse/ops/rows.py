"""The operator table: every family, in one value."""

from __future__ import annotations

from onnxfuse.ops import contraction, elementwise, movement, normalization, own, quantized, reduction
from onnxfuse.ops.spec import table

ROWS = table(
    elementwise.ROWS, movement.ROWS, reduction.ROWS, normalization.ROWS, contraction.ROWS, own.ROWS, quantized.ROWS
)
