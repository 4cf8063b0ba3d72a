"""Calls of what units of a multiprocessor do beside its threads: products of warpgroups, boxes of the copy engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import Index
from onnxfuse.ir.launch import Asynchronous, BeginArrivals, CopyBox, WaitArrival, WaitProducts, WarpgroupMma
from onnxfuse.render.c_family import identifier, index
from onnxfuse.render.cuda_parameters import TensorMap, map_of


def call_beside(s: Asynchronous, maps: Sequence[TensorMap], types: Mapping[str, DType]) -> str:
    """The call of a function of cuda.h."""
    match s:
        case WarpgroupMma():
            how = f"{s.core.n}, {s.depth}, {s.left_pitch}, {s.right_pitch}, {str(s.deep).lower()}"
            sides = (_at(s.sums, s.sums_at), _at(s.left, s.left_at), _at(s.right, s.right_at))
            return f"begin_products<{how}>({', '.join(sides)});"
        case WaitProducts():
            return f"wait_products<{s.pending}>({identifier(s.sums)});"
        case BeginArrivals():
            return f"begin_arrivals<{s.count}, {s.boxes}>({identifier(s.arrivals)});"
        case CopyBox():
            box = f"map{maps.index(map_of(s, types))}, {index(s.column)}, {index(s.row)}"
            return f"copy_box<{s.rows}>({_at(s.target, s.to)}, {box}, {_at(s.arrivals, s.arrival)});"
        case WaitArrival():
            return f"wait_arrival({_at(s.arrivals, s.arrival)}, {index(s.turn)});"
        case _:
            raise TypeError(f"{type(s).__name__} has no function")


def _at(buffer: str, offset: Index) -> str:
    return f"{identifier(buffer)} + {index(offset, 1)}"
