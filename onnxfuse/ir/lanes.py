"""How the lanes of a vector load map to memory, and which guards become a mask."""

from __future__ import annotations

from onnxfuse.ir.index import ONE, Axis, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.scalar import Const, Guard, Load

FARTHEST = 4  # largest stride between lanes that is loaded as whole vectors and shuffled; larger ones are gathers
NEAR = range(2, FARTHEST + 1)
CARRIED = 4  # vector accumulators of one reduction, which hide the latency of its operation


def cutting(x: Load, axis: Axis) -> tuple[Guard, ...]:
    """The guards of a load that differ between lanes along an axis."""
    return tuple(g for g in x.guards if axis in axes_of(g.index) or axis in axes_of(g.extent))


def masked(x: Load, axis: Axis) -> int | None:
    """The stride between lanes of a masked load, whose guards hold for a contiguous range of lanes.

    None where lanes are loaded one by one.
    """
    stride = coefficient(x.index[0], axis)
    guards = cutting(x, axis)
    if stride is None or not guards or not isinstance(x.otherwise, Const):
        return None
    if any(coefficient(g.index, axis) != stride or axis in axes_of(g.extent) for g in guards):
        return None
    return stride.constant if stride == ONE or stride.constant in NEAR else None
