"""How far the outputs of another engine are from ONNX Runtime's; what each half of `peers.py` says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime


def error_of(model: str, inputs: Mapping[str, Any], found: Sequence[Any]) -> float:
    """The largest relative L2 distance of an output from what ONNX Runtime gives without optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, dict(inputs))
    pairs = zip((np.asarray(each, np.float64) for each in found), wanted, strict=True)
    return max(float(np.linalg.norm(f - w) / np.linalg.norm(w)) for f, w in pairs)
