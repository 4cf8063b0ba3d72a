"""How the lanes of a vector load map to memory, which guards become a mask, and which vectors are stored together."""

from __future__ import annotations

from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import F32, I8, U8
from onnxfuse.ir.index import ONE, Axis, axes_of
from onnxfuse.ir.indexing import coefficient
from onnxfuse.ir.kernel import Let, Loop, Store, statements
from onnxfuse.ir.scalar import Apply, Const, Guard, Load

FARTHEST = 4  # largest stride between lanes that is loaded as whole vectors and shuffled; larger ones are gathers
NEAR = range(2, FARTHEST + 1)
CARRIED = 4  # vector accumulators of one reduction, which hide the latency of its operation
INTERLEAVED = (F32, I8, U8)  # types of elements of which a few vectors are stored lane by lane side by side
TOGETHER = 4  # vectors of 8-bit integers that are narrowed and stored by one sequence of instructions


def cutting(x: Load, axis: Axis) -> tuple[Guard, ...]:
    """The guards of a load that differ between lanes along an axis."""
    return tuple(g for g in x.guards if axis in axes_of(g.index) or axis in axes_of(g.extent))


def stores_codes(s: Loop, around: Loop) -> bool:
    """Whether a loop in the vector loop `around` only makes 8-bit integers, one vector each time, and stores them.

    Their zero point is a number that both loops share, and nothing that is stored is read again.
    """
    *lets, last = s.body
    if not isinstance(last, Store) or last.behind or last.scattered or not all(isinstance(x, Let) for x in lets):
        return False
    made = last.value
    if not isinstance(made, Apply) or made.fn != "coded":
        return False
    declared = {x.name for x in statements(around.body) if isinstance(x, Let)}
    zero = made.args[-1]
    values = [*(x.value for x in lets if isinstance(x, Let)), made]
    alone = isinstance(zero, Const) or (isinstance(zero, Load) and not zero.index and zero.source not in declared)
    return alone and all(n.source != last.buffer for v in values for n in loads(v))


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
