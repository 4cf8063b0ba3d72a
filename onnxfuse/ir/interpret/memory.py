"""Buffers with shadow memory: who stored and read each element, to detect data races and uninitialized reads."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.interpret.elements import Array, KernelFault, Where, computed
from onnxfuse.ir.interpret.threads import THREADS, Readers, Threads

ON_THE_WAY = -1  # stamp of elements that an asynchronous copy in flight will write


class Memory:
    """A buffer, or one private copy for each block, task or thread; bfloat16 as float32.

    `made` is 0 for uninitialized elements, otherwise the stamp (thread and time) of the last store; None for inputs.
    """

    def __init__(self, name: str, dtype: DType, values: Array, made: Array | None, threads: Threads) -> None:
        self.name, self.dtype, self.values, self.made = name, dtype, values, made  # copies x elements
        self.checked = True  # whether uninitialized reads are faults
        self.of(threads)

    @staticmethod
    def empty(
        name: str, dtype: DType, size: int, threads: Threads, copies: int = 1, *, pointers: bool = False
    ) -> Memory:
        """An uninitialized buffer."""
        kind = np.dtype(np.int64) if pointers else dtype.numpy
        values = np.full((copies, size), np.nan, kind) if kind.kind == "f" else np.zeros((copies, size), kind)
        return Memory(name, dtype, values, np.zeros((copies, size), np.int64), threads)

    def of(self, threads: Threads) -> None:
        """Start a phase: these threads access it from now on."""
        self.threads, copies = threads, len(self.values)
        self.copy = threads.number // (threads.count // copies) if copies > 1 else np.zeros(1, np.int64)
        meet = self.made is not None and copies < threads.count and threads.block > 1
        self.readers = Readers(self.values.shape) if meet else None

    def _places(self, offset: Array, where: Where, doing: str) -> Array:
        """Checked offsets, 0 at inactive places. Raises KernelFault for an active one that is out of bounds."""
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
        """Elements at the offsets, and which of them are defined: all, unless `lenient`.

        `task` are the numbers of the reading tasks, along the last dimension.
        """
        offset = np.asarray(offset)
        if not self.values.shape[1]:
            self._places(offset, where, "reads")
            return np.zeros(offset.shape, computed(self.dtype)), None
        at = self._places(offset, where, "reads")
        got = self.values[self.copy, at]
        if got.dtype == np.float16:
            got = got.astype(np.float32)
        if self.made is None:
            return got, None
        by = self.made[self.copy, at]
        alive = np.asarray(True) if where is None else where
        if ((by == ON_THE_WAY) & alive).any():
            raise KernelFault(f"reads {self._first(at, (by == ON_THE_WAY) & alive)}, to which a copy is on its way")
        other = self.threads.unseen(by, task) & alive
        if other.any():
            raise KernelFault(f"{self._reader()} reads {self._first(at, other)}, which another one {self._stores()}")
        none = (by == 0) & alive
        if none.any() and self.checked and not lenient:
            raise KernelFault(f"reads {self._first(at, none)} before anything is stored there")
        if self.readers is not None:
            parts = np.broadcast_arrays(self.copy, at, task, alive)
            copy, at, task = (part[parts[-1]] for part in parts[:-1])
            self.readers.read((copy, at), task, self.threads)
        return got, ~none if lenient else None

    def _reader(self) -> str:
        return "a task" if self.threads.block == 1 else "a thread"

    def _stores(self) -> str:
        return "of its phase stores" if self.threads.block == 1 else "stores, without a barrier between"

    def _first(self, at: Array, wrong: Array) -> str:
        return f"{self.name}[{np.broadcast_to(at, wrong.shape)[wrong].flat[0]}]"

    def write(self, offset: Array, value: Array, where: Where, task: Array, known: Where = None) -> None:
        """Store values at the offsets; those that are not `known` are undefined."""
        by = self.threads.stamps(task) if known is None else np.where(known, self.threads.stamps(task), 0)
        place, copy, value, by = self._stored(offset, where, np.asarray(value).astype(self.values.dtype), by)
        assert self.made is not None
        before = self.made[copy, place]
        self.made[copy, place] = by
        self.values[copy, place] = value
        met = self.threads.unseen(before, by % THREADS - 1) & (by != 0) | (self.made[copy, place] != by)
        if met.any():
            among = "two tasks of a phase" if self.threads.block == 1 else "two threads, without a barrier between,"
            raise KernelFault(f"{among} store into {self.name}[{place[met].flat[0]}]")
        apart = (self.values[copy, place] != value) & (value == value)
        if apart.any():
            raise KernelFault(f"different values are stored at a time into {self.name}[{place[apart].flat[0]}]")
        self._unread(place, copy, by % THREADS - 1)

    def expect(self, offset: Array, where: Where, task: Array) -> None:
        """Mark elements as targets of an asynchronous copy: they are undefined until it is waited for."""
        place, copy, task = self._stored(offset, where, task)
        assert self.made is not None
        before = self.made[copy, place]
        if (self.threads.unseen(before, task) | (before == ON_THE_WAY)).any():
            raise KernelFault(f"a copy to {self.name} overwrites what another thread stores, without a barrier between")
        self.made[copy, place] = ON_THE_WAY
        self._unread(place, copy, task)

    def _stored(self, offset: Array, where: Where, *others: Array) -> list[Array]:
        """Active elements as flat arrays: offset, copy of the buffer, and the other arrays likewise."""
        if self.made is None:
            raise KernelFault(f"stores into {self.name}, which is an input")
        alive = np.asarray(True) if where is None else where
        place = self._places(np.asarray(offset), where, "stores")
        parts = np.broadcast_arrays(place, self.copy, *others, alive)
        return [part[parts[-1]] for part in parts[:-1]]

    def _unread(self, place: Array, copy: Array, thread: Array) -> None:
        """Raise KernelFault for a store that races with another thread's read since the last common barrier."""
        read = self.readers.unseen((copy, place), thread, self.threads) if self.readers is not None else np.zeros(0)
        if read.any():
            raise KernelFault(
                f"a thread stores into {self.name}[{place[read].flat[0]}], which another one reads, "
                "without a barrier between"
            )
