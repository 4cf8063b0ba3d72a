"""Graph rewrites that lower the cost and keep the meaning: algebraic laws as data, structural rules, one engine."""

from onnxfuse.rewrite.engine import STEPS, Firing, explain, rewrite, select
from onnxfuse.rewrite.steps import StructuralRule

__all__ = ["STEPS", "Firing", "StructuralRule", "explain", "rewrite", "select"]
