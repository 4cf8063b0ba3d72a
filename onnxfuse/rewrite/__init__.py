"""Rewrites that make the graph cheaper without changing what it means: laws as data, passes beside them, one engine."""

from onnxfuse.rewrite.engine import STEPS, Firing, explain, rewrite
from onnxfuse.rewrite.steps import Step

__all__ = ["STEPS", "Firing", "Step", "explain", "rewrite"]
