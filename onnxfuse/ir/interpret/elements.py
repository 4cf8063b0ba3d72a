"""What an element of a kernel is while it is computed with, and what a fault of a kernel is."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BF16, DType

Array = np.ndarray[Any, Any]
Where = Array | None  # which of the places that are computed at a time are alive; None: all

SEGMENT = 1 << 44  # of addresses: a pointer is the number of a buffer and an offset in it
MIDDLE = SEGMENT // 2


class KernelFault(Exception):
    """A kernel does what no kernel may: leaves a buffer, reads what nothing stored, or its threads meet at a place."""


def computed(t: DType) -> np.dtype[Any]:
    """The type that arithmetic on an element is done in: float32 for 16-bit floating types."""
    return t.accumulator.numpy


def rounded(x: Array, t: DType) -> Array:
    """float32 values rounded to a 16-bit floating type, nearest even."""
    if t != BF16:
        return x.astype(t.numpy).astype(np.float32)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    kept = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), x, kept.reshape(np.shape(x)))


def converted(x: Array, t: DType) -> Array:
    """x as elements of a type that are computed with: truncated to integers, which wrap, or rounded to 16 bits."""
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
    """An array as the runtime has it, bfloat16 as its bits, as a buffer is kept."""
    if t == BF16 and x.dtype != np.float32:
        return (np.ascontiguousarray(x).view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x


def pointer(number: int, offset: Array) -> Array:
    """The address of an element of the buffer of this number."""
    return np.asarray(number * SEGMENT + MIDDLE + offset, np.int64)


def pointed(address: Array) -> tuple[Array, Array]:
    """The number of the buffer and the offset that an address stands for."""
    return address // SEGMENT, address % SEGMENT - MIDDLE
