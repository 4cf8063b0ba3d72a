"""Interval analysis of scalars."""

from onnxfuse.ir.ranges.functions import ANY, EXACT, Range, wrapped
from onnxfuse.ir.ranges.scalars import of_array, range_of

__all__ = ["ANY", "EXACT", "Range", "of_array", "range_of", "wrapped"]
