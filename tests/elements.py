"""Element types of arrays that tests make."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import DTYPES, DType


def dtype_of_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The row of a NumPy type."""
    return next((t for t in DTYPES.values() if t.name == dtype.name), None)
