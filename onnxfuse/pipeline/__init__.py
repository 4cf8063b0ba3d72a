"""The steps from a model to a fused model with its library, in order, with their checks and their ways back."""

from __future__ import annotations

from onnxfuse.pipeline.run import STEPS, optimize

__all__ = ["STEPS", "optimize"]
