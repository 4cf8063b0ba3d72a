"""Serial time of a phase before its statements exist, in picoseconds: it decides how many tasks the phase is worth.

It is rough: one number for each kind of work, from the row of the machine class (`SerialTimes`). Prices of kernels are
counted from their statements instead (`cost/count.py`).
"""

from __future__ import annotations

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Index
from onnxfuse.ir.products import ProductKind
from onnxfuse.target import Cpu
from onnxfuse.target.cpu import SerialTimes


def elements(count: Index | int, operations: float, times: SerialTimes) -> Index:
    """Elements that are loaded and stored, each computed by so many vector operations."""
    return Index.of(count) * (times.element + int(times.operation * operations))


def terms(count: Index, operations: float, times: SerialTimes) -> Index:
    """Terms of reductions, each computed by so many vector operations."""
    return count * (times.term + int(times.term_operation * operations))


def contraction(rows: Index, depth: Index, columns: Index, kind: ProductKind, speed: int, target: Cpu) -> Index:
    """Multiply-adds at the peak, `speed` times that of vectors in a matrix unit, and weights read from memory."""
    share = 1 / target.codes if kind.exact else kind.left.bytes / F32.bytes
    step = max(1, round(2e3 / target.gflops * share) // speed)
    read = round(1e3 / target.bandwidth * kind.right.bytes)
    return (rows * step + read) * depth * columns


def multiply_adds(count: Index, target: Cpu) -> Index:
    """Multiply-adds at the peak."""
    return count * max(1, round(2e3 / target.gflops))


def updates(count: Index, length: Index, operations: float, times: SerialTimes) -> Index:
    """Updates of a scatter, each of so many elements that are computed by so many vector operations."""
    return count * times.update + count * length * (times.updated_element + int(times.operation * operations))
