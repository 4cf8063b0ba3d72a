"""The operator table: the rows of all families."""

from __future__ import annotations

from onnxfuse.ops import (
    attention,
    coded,
    contraction,
    contrib,
    elementwise,
    lookup,
    movement,
    normalization,
    overlap_add,
    padding,
    pooling,
    quantized,
    reduction,
    scatter,
)
from onnxfuse.ops.recurrent import layers
from onnxfuse.ops.resampling import regions, resize, sample
from onnxfuse.ops.spec import table

FAMILIES = (
    elementwise,
    movement,
    padding,
    lookup,
    resize,
    sample,
    regions,
    reduction,
    pooling,
    normalization,
    contraction,
    overlap_add,
    layers,
    contrib,
    attention,
    quantized,
    coded,
    scatter,
)

ROWS = table(*(family.ROWS for family in FAMILIES))
