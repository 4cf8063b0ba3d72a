"""Buffers with shadow memory: who stored and read each element, to detect data races and uninitialized reads."""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.interpret.elements import Array, KernelFault, Where, computed
from onnxfuse.ir.interpret.threads import THREADS, Readers, Threads, thread_of

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
        name: str,
        dtype: DType,
        size: int,
        threads: Threads,
        copies: int = 1,
        *,
        pointers: bool = False,
        poisoned: bool = True,
    ) -> Memory:
        """An uninitialized buffer; one that is not `poisoned` with NaN is not mapped where it is never looked at."""
        kind = np.dtype(np.int64) if pointers else dtype.numpy
        values = (
            np.full((copies, size), np.nan, kind) if poisoned and kind.kind == "f" else np.zeros((copies, size), kind)
        )
        return Memory(name, dtype, values, np.zeros((copies, size), np.int64), threads)

    def of(self, threads: Threads) -> None:
        """Start a phase: these threads access it from now on."""
        self.threads, copies = threads, len(self.values)
        self.copy = threads.number // (threads.count // copies) if copies > 1 else np.zeros(1, np.int64)
        meet = self.made is not None and copies < threads.count and threads.block > 1
        self.readers = Readers(self.values.size) if meet else None

    def _places(self, offset: Array, where: Where, doing: str) -> Array:
        """Where the elements lie among those of all copies, the first one for inactive places.

        Raises KernelFault for an active one that is out of bounds.
        """
        size = self.values.shape[1]
        outside = np.asarray(offset, np.int64).view(np.uint64) >= size  # negative ones are large
        if where is not None:
            outside = outside & where
        if outside.any():
            bad = np.broadcast_to(offset, outside.shape)[outside].flat[0]
            raise KernelFault(f"{doing} {self.name}[{bad}], which has {size} elements")
        if where is not None:
            offset = np.where(where, offset, 0)
        return (offset if offset.ndim else offset.reshape(1)) if len(self.values) == 1 else self.copy * size + offset

    def read(self, offset: Array, where: Where, task: Array, *, lenient: bool = False) -> tuple[Array, Where]:
        """Elements at the offsets, and which of them are defined: all, unless `lenient`.

        `task` are the numbers of the reading tasks, along the last dimension.
        """
        offset = np.asarray(offset)
        if not self.values.shape[1]:
            self._places(offset, where, "reads")
            return np.zeros(offset.shape, computed(self.dtype)), None
        at = self._places(offset, where, "reads")
        got = self.values.reshape(-1)[at]
        if got.dtype == np.float16:
            got = got.astype(np.float32)
        if self.made is None:
            return got, None
        by = self.made.reshape(-1)[at]
        alive = np.asarray(True) if where is None else where
        none = None
        if (by <= 0).any():
            if ((by == ON_THE_WAY) & alive).any():
                first = self._first(at, (by == ON_THE_WAY) & alive)
                raise KernelFault(f"reads {first}, to which a copy is on its way")
            none = by == 0
        other = self.threads.unseen(by, task) & alive
        if other.any():
            raise KernelFault(f"{self._reader()} reads {self._first(at, other)}, which another one {self._stores()}")
        if none is not None and self.checked and not lenient and (none & alive).any():
            raise KernelFault(f"reads {self._first(at, none & alive)} before anything is stored there")
        if self.readers is not None:
            active, thread = _active(where, at, task)
            self.readers.read(active, thread, self.threads)
        return got, None if none is None or not lenient else ~(none & alive)

    def _reader(self) -> str:
        return "a task" if self.threads.block == 1 else "a thread"

    def _stores(self) -> str:
        return "of its phase stores" if self.threads.block == 1 else "stores, without a barrier between"

    def _first(self, at: Array, wrong: Array) -> str:
        return self._element(np.broadcast_to(at, wrong.shape)[wrong])

    def _element(self, at: Array) -> str:
        return f"{self.name}[{at.flat[0] % self.values.shape[1]}]"

    def write(self, offset: Array, value: Array, where: Where, task: Array, known: Where = None) -> None:
        """Store values at the offsets; those that are not `known` are undefined."""
        by = self.threads.stamps(task) if known is None else np.where(known, self.threads.stamps(task), 0)
        at, value, by = self._stored(offset, where, np.asarray(value).astype(self.values.dtype), by)
        assert self.made is not None
        made, values, thread = self.made.reshape(-1), self.values.reshape(-1), thread_of(by)
        before = made[at]
        made[at], values[at] = by, value
        met = self.threads.unseen(before, thread) & (by != 0) | (made[at] != by)
        if met.any():
            among = "two tasks of a phase" if self.threads.block == 1 else "two threads, without a barrier between,"
            raise KernelFault(f"{among} store into {self._element(at[met])}")
        apart = (values[at] != value) & (value == value)
        if apart.any():
            raise KernelFault(f"different values are stored at a time into {self._element(at[apart])}")
        self._unread(at, thread)

    def expect(self, offset: Array, where: Where, task: Array) -> None:
        """Mark elements as targets of an asynchronous copy: they are undefined until it is waited for."""
        at, task = self._stored(offset, where, task)
        assert self.made is not None
        made = self.made.reshape(-1)
        before = made[at]
        if (self.threads.unseen(before, task) | (before == ON_THE_WAY)).any():
            raise KernelFault(f"a copy to {self.name} overwrites what another thread stores, without a barrier between")
        made[at] = ON_THE_WAY
        self._unread(at, task)

    def stamps(self, offset: Array, where: Where) -> Array:
        """The stamps of the last stores of elements."""
        assert self.made is not None
        return np.asarray(self.made.reshape(-1)[self._places(np.asarray(offset), where, "reads")])

    def begin(self, offset: Array, where: Where, task: Array) -> None:
        """Elements will be added to: nobody may read or store them meanwhile. Some may be waiting for that already."""
        at, task = self._stored(offset, where, task)
        assert self.made is not None
        made = self.made.reshape(-1)
        if self.checked and (made[at] == 0).any():
            raise KernelFault(f"adds to {self._element(at[made[at] == 0])} before anything is stored there")
        made[at] = ON_THE_WAY

    def arrive(self, offset: Array, value: Array, where: Where, task: Array, number: int) -> None:
        """What a copy has brought that no barrier orders: all threads see it. It is the `number`-th one."""
        at, value, _ = self._stored(offset, where, np.asarray(value), task)
        assert self.made is not None
        self.values.reshape(-1)[at] = value
        self.made.reshape(-1)[at] = 1 + number % (THREADS - 1)

    def add(self, offset: Array, value: Array, where: Where, task: Array) -> None:
        """What `begin` announced."""
        at, value, by = self._stored(offset, where, np.asarray(value), self.threads.stamps(task))
        assert self.made is not None
        made, values = self.made.reshape(-1), self.values.reshape(-1)
        values[at] += value.astype(values.dtype)
        made[at] = by

    def _stored(self, offset: Array, where: Where, *others: Array) -> list[Array]:
        """Active elements as flat arrays: where they lie, and the other arrays likewise."""
        if self.made is None:
            raise KernelFault(f"stores into {self.name}, which is an input")
        return _active(where, self._places(np.asarray(offset), where, "stores"), *others)

    def _unread(self, at: Array, thread: Array) -> None:
        """Raise KernelFault for a store that races with another thread's read since the last common barrier."""
        if self.readers is None:
            return
        read = self.readers.unseen(at, thread, self.threads)
        if read.any():
            raise KernelFault(
                f"a thread stores into {self._element(at[read])}, which another one reads, without a barrier between"
            )


def _active(where: Where, *parts: Array) -> list[Array]:
    """Arrays that broadcast to each other at active places, flat."""
    if where is None:
        return [part.reshape(-1) for part in np.broadcast_arrays(*parts)]
    *flat, alive = np.broadcast_arrays(*parts, where)
    return [part[alive] for part in flat]
