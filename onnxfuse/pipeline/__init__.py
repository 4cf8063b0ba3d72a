"""The steps from a model to a fused model with its library, with the check after each, and replanning on failure."""

from __future__ import annotations

from onnxfuse.pipeline.run import STEPS, optimize

__all__ = ["STEPS", "optimize"]
