"""Values that lie in memory as row-major matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import coefficient, flatten, product
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.schedule.analysis.memory import Place


def matrix_of(
    x: Scalar | None, high: Sequence[Axis], wide: Sequence[Axis], places: Mapping[str, Place]
) -> tuple[str, int] | None:
    """Buffer and pitch of a value that is read as a row-major matrix; None where it is none."""
    if not isinstance(x, Load) or not x.index or x.guards or x.source not in places:
        return None
    place = places[x.source]
    pitch = pitch_of(place.offset(x.index), high, wide)
    return (place.buffer, pitch) if pitch is not None else None


def pitch_of(offset: Index, high: Sequence[Axis], wide: Sequence[Axis]) -> int | None:
    """Elements from a row to the next, where offsets are those of a row-major matrix that begins a buffer."""
    columns = product([a.extent for a in wide])
    found = coefficient(offset, high[-1]) if high else columns
    pitch = found.constant if found is not None else None
    row, column = (flatten(tuple(map(Index.of, axes)), tuple(a.extent for a in axes)) for axes in (high, wide))
    if pitch is None or columns.constant is None or pitch < columns.constant:
        return None
    return pitch if offset == row * pitch + column else None


def copied_in_boxes(
    x: Scalar, high: Sequence[Axis], wide: Sequence[Axis], dtype: DType, places: Mapping[str, Place]
) -> bool:
    """Whether the copy engine may bring a side of a product, which has a type in shared memory."""
    found = matrix_of(x, high, wide, places)
    return found is not None and isinstance(x, Load) and x.dtype == dtype and found[1] * dtype.bytes % ALIGNED == 0
