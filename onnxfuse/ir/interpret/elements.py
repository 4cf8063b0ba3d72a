"""Compute types, conversions and pointers of interpreted kernels, and `KernelFault`."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BF16, DType

Array = np.ndarray[Any, Any]
Where = Array | None  # mask of active places; None: all

SEGMENT = 1 << 44  # address space per buffer: a pointer is number * SEGMENT + offset
MIDDLE = SEGMENT // 2


class KernelFault(Exception):
    """Undefined behaviour of a kernel: an access out of bounds, a read of uninitialized memory, or a data race."""


def computed(t: DType) -> np.dtype[Any]:
    """The compute type of an element: float32 for 16-bit floats."""
    return t.accumulator.numpy


def rounded(x: Array, t: DType) -> Array:
    """float32 values rounded to a 16-bit floating type, nearest even."""
    if t != BF16:
        return x.astype(t.numpy).astype(np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    kept = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, kept.reshape(np.shape(x)))


def converted(x: Array, t: DType) -> Array:
    """x converted to a type, in its compute type: truncated to integers, which wrap, or rounded to 16-bit floats."""
    if t.kind == "b":
        return np.asarray(x != 0)
    if t.floating:
        wide = np.asarray(x).astype(computed(t))
        return rounded(wide, t) if t.bits < 32 else wide
    if x.dtype.kind != "f":
        return np.asarray(x).astype(t.numpy)
    if t.bits == 64 and t.kind == "u":
        large = x >= 2.0**63
        low = np.where(large, x - 2.0**63, x).astype(np.int64).view(np.uint64)
        return np.where(large, low ^ np.uint64(1 << 63), low)
    between = np.int32 if t.bits < 32 else np.int64 if t.kind == "u" else t.numpy
    return np.asarray(x).astype(between).astype(t.numpy)


def from_stored(x: Array, t: DType) -> Array:
    """An array in the runtime's form (bfloat16 as bits) as values in the compute type."""
    if t == BF16 and x.dtype != np.float32:
        return (np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x


def pointer(number: int, offset: Array) -> Array:
    """The address of an element of the buffer of this number."""
    return np.asarray(number * SEGMENT + MIDDLE + offset, np.int64)


def pointed(address: Array) -> tuple[Array, Array]:
    """The buffer number and offset of an address."""
    return address // SEGMENT, address % SEGMENT - MIDDLE
