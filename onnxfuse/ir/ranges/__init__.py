"""Which numbers a value can be, from what it is made of."""

from onnxfuse.ir.ranges.functions import ANY, EXACT, Range, wrapped
from onnxfuse.ir.ranges.scalars import of_array, range_of

__all__ = ["ANY", "EXACT", "Range", "of_array", "range_of", "wrapped"]
