"""What an element of a kernel is while it is computed with, and the memory that a kernel's buffers are."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BF16, DType

Array = np.ndarray[Any, Any]
Where = Array | None  # which of the places that are computed at a time are alive; None: all

SEGMENT = 1 << 44  # of addresses: a pointer is the number of a buffer and an offset in it
MIDDLE = SEGMENT // 2


class KernelFault(Exception):
    """A kernel does what no kernel may: leaves a buffer, reads what nothing stored, or its tasks meet at a place."""


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


class Memory:
    """A buffer: its elements in one copy, or one for each task, and who stored each; bfloat16 as float32.

    `made` is 0 where nothing is stored, and otherwise the number of the task that stored it last, the tasks of all
    phases counted on; None for inputs. Numbers from `now` on are those of the phase that runs.
    """

    def __init__(self, name: str, dtype: DType, values: Array, made: Array | None) -> None:
        self.name, self.dtype, self.values, self.made = name, dtype, values, made  # copies x elements
        self.now = 1

    @staticmethod
    def empty(name: str, dtype: DType, size: int, copies: int = 1, *, pointers: bool = False) -> Memory:
        """One in which nothing is stored."""
        kind = np.dtype(np.int64) if pointers else dtype.numpy
        fill = np.nan if kind.kind == "f" else 0
        return Memory(name, dtype, np.full((copies, size), fill, kind), np.zeros((copies, size), np.int32))

    def _places(self, offset: Array, where: Where, doing: str) -> Array:
        """Offsets that are inside, 0 where nothing is alive; a fault where one that is alive is not."""
        size = self.values.shape[1]
        outside = (offset < 0) | (offset >= size)
        if where is not None:
            outside = outside & where
        if outside.any():
            bad = np.broadcast_to(offset, outside.shape)[outside].flat[0]
            raise KernelFault(f"{doing} {self.name}[{bad}], which has {size} elements")
        if where is not None:
            offset = np.where(where, offset, 0)
        return offset

    def read(self, offset: Array, where: Where, task: Array, *, lenient: bool = False) -> tuple[Array, Where]:
        """Elements at the offsets, and which of them mean something: all, but where it is `lenient`.

        `task` are the numbers of the tasks that read, along the last dimension.
        """
        offset = np.asarray(offset)
        if not self.values.shape[1]:
            self._places(offset, where, "reads")
            return np.zeros(offset.shape, computed(self.dtype)), None
        at = self._places(offset, where, "reads")
        copy = np.arange(self.values.shape[0]) if self.values.shape[0] > 1 else 0
        got = self.values[copy, at]
        if got.dtype == np.float16:
            got = got.astype(np.float32)
        if self.made is None:
            return got, None
        by = self.made[copy, at]
        alive = np.asarray(True) if where is None else where
        other = (by >= self.now) & (by != task) & alive
        if other.any():
            raise KernelFault(f"a task reads {self._first(at, other)}, which another one of its phase stores")
        none = (by == 0) & alive
        if none.any() and not lenient:
            raise KernelFault(f"reads {self._first(at, none)} before anything is stored there")
        return got, ~none if lenient else None

    def _first(self, at: Array, wrong: Array) -> str:
        return f"{self.name}[{np.broadcast_to(at, wrong.shape)[wrong].flat[0]}]"

    def write(self, offset: Array, value: Array, where: Where, task: Array, known: Where = None) -> None:
        """Store values at the offsets; those that are not `known` mean nothing."""
        if self.made is None:
            raise KernelFault(f"stores into {self.name}, which is an input")
        by = task if known is None else np.where(known, task, 0)
        alive = np.asarray(True) if where is None else where
        place = self._places(np.asarray(offset), where, "stores")
        copy = np.arange(self.values.shape[0]) if self.values.shape[0] > 1 else np.zeros(1, np.int64)
        parts = np.broadcast_arrays(place, np.asarray(value).astype(self.values.dtype), by, copy, alive)
        place, value, by, copy = (part[parts[-1]] for part in parts[:-1])
        before = self.made[copy, place]
        self.made[copy, place] = by
        self.values[copy, place] = value
        met = (before >= self.now) & (before != by) & (by != 0) | (self.made[copy, place] != by)
        if met.any():
            raise KernelFault(f"two tasks of a phase store into {self.name}[{place[met].flat[0]}]")
        apart = (self.values[copy, place] != value) & (value == value)
        if apart.any():
            raise KernelFault(f"different values are stored at a time into {self.name}[{place[apart].flat[0]}]")
