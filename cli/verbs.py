"""All verbs of the program, in the order of these modules and their functions."""

from . import verbs_models, verbs_tools
from .program import onnxfuse

__all__ = ["onnxfuse", "verbs_models", "verbs_tools"]
