"""The operator table: the rows of all families."""

from __future__ import annotations

from onnxfuse.ops import (
    coded,
    contraction,
    elementwise,
    lookup,
    movement,
    normalization,
    overlap,
    own,
    padding,
    pooling,
    quantized,
    reduction,
    resize,
    sample,
    scatter,
)
from onnxfuse.ops.spec import table

FAMILIES = (
    elementwise,
    movement,
    padding,
    lookup,
    resize,
    sample,
    reduction,
    pooling,
    normalization,
    contraction,
    overlap,
    own,
    quantized,
    coded,
    scatter,
)

ROWS = table(*(family.ROWS for family in FAMILIES))
