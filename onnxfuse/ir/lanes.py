"""How the lanes of a vector or warp map to memory, which guards become a mask, what is stored or loaded together."""

from __future__ import annotations

from collections.abc import Mapping
from math import copysign
from typing import Any

import numpy as np

from onnxfuse.ir.compose import elements_read, loads
from onnxfuse.ir.dtype import BF16, F16, F32, I8, U8, DType
from onnxfuse.ir.fragments import WARP
from onnxfuse.ir.index import ONE, ZERO, Atom, Axis, Div, Index, Least, axes_of, floor_div, modulo
from onnxfuse.ir.indexing import WIDEST, coefficient, evaluate, looked_up, most_step, substitute
from onnxfuse.ir.kernel import Accumulate, Buffer, Let, Loop, Prefetch, ReduceLoop, Stmt, Store, When, statements
from onnxfuse.ir.launch import ALIGNED, MatrixLoad, WideAccess
from onnxfuse.ir.scalar import Apply, Const, Guard, Load, Scalar

FARTHEST = 4  # largest stride between lanes that is loaded as whole vectors and shuffled; larger ones are gathers
NEAR = tuple(range(2, FARTHEST + 1))
CARRIED = 4  # vector accumulators of one reduction, which hide the latency of its operation
INTERLEAVED = (F32, I8, U8)  # types of elements of which a few vectors are stored lane by lane side by side
MOST_LANES_OF_EACH = 8  # lanes that read one element, at most, for a load and a shuffle
TOGETHER = 4  # vectors of 8-bit integers that are narrowed and stored by one sequence of instructions


def cutting(x: Load, axis: Axis) -> tuple[Guard, ...]:
    """The guards of a load that differ between lanes along an axis."""
    return tuple(g for g in x.guards if axis in axes_of(g.index) or axis in axes_of(g.extent))


def stores_codes(s: Loop, around: Loop) -> bool:
    """Whether a loop in the vector loop `around`, or that loop itself, only makes 8-bit integers and stores them.

    Each iteration makes one vector. All iterations share the zero point, a number, and nothing that is stored is read
    again.
    """
    *lets, last = s.body or (None,)
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


def runs_again(s: Loop) -> bool:
    """Whether iterations of a vector loop may run twice: nothing that it stores or accumulates is read in it.

    Not where its last vector is whole, nor where loads depend on where vectors begin; nor for parts of an axis, few of
    which end within a vector, and whose loops are too short for another test in each turn.
    """
    inside = list(statements(s.body))
    if s.carries or not all(isinstance(x, (Accumulate, Let, Loop, Prefetch, ReduceLoop, Store, When)) for x in inside):
        return False
    extent = s.end - s.begin
    if axes_of(s.begin) or axes_of(s.end) or all(c % WIDEST == 0 for _, c in extent.terms):
        return False
    reduced = {t for x in inside if isinstance(x, ReduceLoop) and x.part is None for t in x.targets}
    stored = {x.buffer for x in inside if isinstance(x, Store)}
    read = [n for x in inside for n in elements_read(values_of(x))]
    return (
        bool(stored)
        and all(t in reduced for x in inside if isinstance(x, Accumulate) for t in x.targets)
        and all(n.source not in stored and (n.lanes is None or n.lanes.kind != "grouped") for n in read)
    )


def values_of(s: Stmt) -> tuple[Scalar, ...]:
    """What a statement computes: the values of a Let, a Store or an Accumulate."""
    if isinstance(s, (Store, Accumulate)):
        return s.values
    return (s.value,) if isinstance(s, Let) else ()


def masked(x: Load, axis: Axis) -> int | None:
    """The stride between lanes of a masked load, whose guards hold for a contiguous range of lanes; 0: one element.

    None where lanes are loaded one by one.
    """
    stride = coefficient(x.index[0], axis)
    guards = cutting(x, axis)
    if stride is None or not guards:
        return None
    step = ONE if stride == ZERO else stride
    if any(coefficient(g.index, axis) != step or axis in axes_of(g.extent) for g in guards):
        return None
    if stride == ZERO:  # read once, so its index must not be read from memory where no lane's guards hold
        return None if looked_up(x.index[0]) else 0
    return stride.constant if stride == ONE or stride.constant in NEAR else None


def piecewise(x: Load, axis: Axis) -> bool:
    """Whether the index moves by one at most from lane to lane, as a reflected one does, and so do those of the guards.

    Where it moves as far as the lanes do, they are contiguous, and guards that hold at both ends hold everywhere.
    """
    at = x.index[0]
    if coefficient(at, axis) is not None or most_step(at, axis) != 1:
        return False
    same = (coefficient(g.index, axis) is not None or coefficient(g.index - at, axis) == ZERO for g in cutting(x, axis))
    return all(same) and not any(axis in axes_of(g.extent) for g in x.guards)


def climbing(x: Load, axis: Axis) -> int | None:
    """How many lanes side by side read one element before the next is read, as of an image upsampled by that number.

    The index may be limited, as at the sides of the image; where it is, more lanes read the first or the last element.
    None for other loads.
    """
    return None if cutting(x, axis) else _lanes_of_each(x.index[0], axis, 1)


def _lanes_of_each(e: Index, axis: Axis, sign: int) -> int | None:
    """The divisor of an axis in an index, or, with a `sign` of -1, in its negative; limits aside."""
    moving = [(mono, c * sign) for mono, c in e.terms if axis in axes_of(Index(((mono, c),)))]
    if len(moving) != 1 or len(moving[0][0]) != 1:
        return None
    ((atom,), c) = moving[0]
    match atom:
        case Div(num=num, den=den) if c == 1 and coefficient(num, axis) == ONE and axis not in axes_of(den):
            return den.constant if 2 <= (den.constant or 0) <= MOST_LANES_OF_EACH else None
        case Least(one=one, two=two) if abs(c) == 1:
            varies = [side for side in (one, two) if axis in axes_of(side)]
            return _lanes_of_each(varies[0], axis, c) if len(varies) == 1 else None
        case _:
            return None


def wide_accesses(s: Loop, buffers: Mapping[str, Buffer]) -> tuple[tuple[WideAccess, ...], tuple[WideAccess, ...]]:
    """The loads and stores of a thread's vector loop that are wide; `buffers` are those of the phase itself.

    They are contiguous along the loop, in memory and not in registers, under guards that all elements share.
    """

    def wide(x: WideAccess) -> bool:
        b, cut = buffers.get(x.buffer), (e for g in x.guards for e in (g.index, g.extent))
        outside = b is None or b.space not in ("register", "fragment")
        return outside and coefficient(x.offset, s.axis) == ONE and not any(s.axis in axes_of(e) for e in cut)

    loaded = (WideAccess(x.source, x.index[0], x.guards) for r in s.body for x in elements_read(values_of(r)))
    stored = (WideAccess(x.buffer, x.offset) for x in s.body if isinstance(x, Store))
    return tuple(filter(wide, dict.fromkeys(loaded))), tuple(filter(wide, dict.fromkeys(stored)))


def copies(s: Store, dtype: DType) -> bool:
    """Whether a store into a buffer of this type copies a 16-bit float, or puts zero where its guards fail."""
    x = s.value
    if not isinstance(x, Load) or not x.index or x.dtype != dtype or dtype not in (F16, BF16):
        return False
    zero = x.otherwise
    return zero is None or (isinstance(zero, Const) and zero.value == 0 and copysign(1, zero.value) > 0)


MATRIX, ACROSS = 8, 4  # rows and columns of what a warp loads at once, and lanes that hold one of its rows
WHOLE = ALIGNED // 2  # elements of 16 bits in a row


def matrix_load(s: Loop, buffers: Mapping[str, Buffer]) -> MatrixLoad | None:
    """The instruction that does what a loop over the lanes of a warp does, which loads a fragment; None: there is none.

    The fragment has two registers of each matrix. Where its elements lie is compared for all lanes and registers.
    """
    found = _of_fragment(s, buffers)
    if found is None:
        return None
    half, pair, store, load = found
    count, (lane, offset) = half.extent.constant or 0, (s.axis, load.index[0])
    mine = {lane: ZERO, half: ZERO, pair: ZERO}
    base, to = substitute(offset, mine), store.offset - Index.of(half) * 2 - pair
    inner = offset - base
    if axes_of(to) & {*mine} or axes_of(inner) - {*mine} or any(c % WHOLE for _, c in base.terms):
        return None
    places: dict[Atom, np.ndarray[Any, Any]] = {
        lane: np.arange(WARP)[:, None, None], half: np.arange(count)[:, None], pair: np.arange(2),
    }  # fmt: skip
    at = np.broadcast_to(evaluate(inner, lambda atom: places[atom]), (WARP, count, 2))
    for transposed in (False, True):
        starts = at[:ACROSS, :, :].transpose(1, 0, 2).reshape(count, MATRIX) if transposed else at[::ACROSS, :, 0].T
        row = _row_of_lanes(starts, lane)
        if row is None:
            continue
        lanes, twos = np.arange(WARP)[:, None, None], np.arange(2)
        high, low = lanes // ACROSS, lanes % ACROSS * 2 + twos
        rows, columns = (low, high) if transposed else (high, low)
        if (starts[np.arange(count)[:, None], rows] + columns == at).all():
            return MatrixLoad(store.buffer, to, load.source, base + row, count, transposed)
    return None


def _of_fragment(s: Loop, buffers: Mapping[str, Buffer]) -> tuple[Axis, Axis, Store, Load] | None:
    """The parts of a loop over lanes that copies from shared memory to a fragment, two 16-bit elements at a time."""
    if s.kind != "lane" or s.begin != ZERO or s.end != Index.of(WARP):
        return None
    match s.body:
        case (Loop(body=(Loop(body=(Store(value=Load() as load, behind=()) as store,)) as pairs,)) as halves,):
            pass
        case _:
            return None
    to, source = buffers.get(store.buffer), buffers.get(load.source)
    if to is None or source is None or to.space != "fragment" or source.space != "shared":
        return None
    fits = to.dtype == source.dtype == load.dtype and to.dtype.bits == 16 and (source.at or 0) % ALIGNED == 0
    sizes = all(each.begin == ZERO for each in (halves, pairs)) and pairs.end == Index.of(2)
    if not fits or not sizes or load.guards or halves.end.constant not in (2, 4):
        return None
    return halves.axis, pairs.axis, store, load


def _row_of_lanes(starts: Any, lane: Axis) -> Index | None:
    """The element with which the row of a lane begins: lane 8 i + r has row r of matrix i, if they are evenly apart."""
    count, first = len(starts), starts[0, 0]
    pitch = starts[0, 1] - first
    apart = [int(starts[1 << bit, 0] - first) for bit in range(count.bit_length() - 1)]
    here = Index.of(lane)
    found = modulo(here, Index.of(MATRIX)) * int(pitch)
    wanted = first + np.arange(MATRIX) * pitch
    for bit, step in enumerate(apart):
        found += modulo(floor_div(here, Index.of(MATRIX << bit)), Index.of(2)) * step
        wanted = np.concatenate([np.atleast_2d(wanted), np.atleast_2d(wanted) + step])
    if any(step % WHOLE for step in (first, pitch, *apart)) or not (wanted == starts).all():
        return None
    return found + int(first)
