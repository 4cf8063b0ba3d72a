"""All verbs of the program, in the order in which these modules and the functions in them stand."""

from . import verbs_models, verbs_tools
from .program import onnxfuse

__all__ = ["onnxfuse", "verbs_models", "verbs_tools"]
