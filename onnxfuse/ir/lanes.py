"""How the lanes of a vector lie in what is loaded, and which guards a mask stands for."""

from __future__ import annotations

from onnxfuse.ir.index import ONE, Axis, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.scalar import Const, Guard, Load

FARTHEST = 4  # distance from lane to lane up to which whole vectors are read, and sorted
NEAR = range(2, FARTHEST + 1)
CARRIED = 4  # vectors of one reduction that are carried side by side


def cutting(x: Load, axis: Axis) -> tuple[Guard, ...]:
    """The guards of a load that differ between lanes along an axis."""
    return tuple(g for g in x.guards if axis in axes_of(g.index) or axis in axes_of(g.extent))


def masked(x: Load, axis: Axis) -> int | None:
    """The distance between lanes, where the guards that differ between them hold for elements side by side.

    Vectors are then loaded under a mask. None where lanes are loaded one by one.
    """
    stride = coefficient(x.index[0], axis)
    guards = cutting(x, axis)
    if stride is None or not guards or not isinstance(x.otherwise, Const):
        return None
    if any(coefficient(g.index, axis) != stride or axis in axes_of(g.extent) for g in guards):
        return None
    return stride.constant if stride == ONE or stride.constant in NEAR else None
