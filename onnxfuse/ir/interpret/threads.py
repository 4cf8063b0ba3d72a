"""Concurrency of tasks and threads: a logical clock that advances at barriers (happens-before).

Every store is stamped with its thread and time. It is visible to its own thread, and to threads that have passed a
common barrier with it since.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.interpret.elements import Array, KernelFault, Where
from onnxfuse.ir.kernel import LoopKind
from onnxfuse.ir.launch import Scope

THREADS = 1 << 24  # maximum number; a stamp is time * THREADS + thread + 1
_BITS, _THREAD = 24, THREADS - 1  # of a stamp: those below its time, and the mask of the thread plus 1


def thread_of(stamp: Array) -> Array:
    """The thread of a stamp; -1 where there is none."""
    return np.asarray((stamp & _THREAD) - 1)


class LogicalClock:
    """The logical time of a run, and the time of the last barrier of all threads."""

    def __init__(self) -> None:
        self.time = 1
        self.all_seen = 1  # earlier stores are visible to all threads

    def meet(self) -> None:
        """A barrier of all threads."""
        self.time += 1
        self.all_seen = self.time


class Threads:
    """`count` threads in blocks of `block`, in warps of `lanes`; a task is a block of one thread.

    `grid` is how many blocks there are, of which the first ones may be all that run.
    """

    def __init__(self, clock: LogicalClock, count: int, block: int = 1, lanes: int = 1, grid: int = 0) -> None:
        if count >= THREADS:
            raise KernelFault(f"{count} threads are too many to be tracked")
        self.clock, self.count, self.block, self.lanes, self.grid = clock, count, block, lanes, grid
        self.number = np.arange(count, dtype=np.int64)
        self.groups = {"warp": self.number // lanes, "block": self.number // block}
        self.met = {"warp": np.zeros(count, np.int64), "block": np.zeros(count, np.int64)}
        clock.meet()

    def stamps(self, thread: Array) -> Array:
        """The stamps of stores by these threads now."""
        return np.asarray(self.clock.time * THREADS + thread + 1)

    def place(self, kind: LoopKind) -> tuple[Array | int, int]:
        """The first iteration of a distributed loop that each thread runs, and the stride to its next one."""
        within = self.number % self.block
        if kind == "block":
            return self.groups["block"], self.grid
        if kind == "warp":
            return within // self.lanes, self.block // self.lanes
        if kind == "thread":
            return within, self.block
        if kind == "lane":
            return within % self.lanes, self.lanes
        return 0, 1

    def unseen(self, stamp: Array, thread: Array) -> Array:
        """Which of these stores or reads are concurrent: by other threads, since the last common barrier."""
        other = np.asarray(stamp >= self.clock.all_seen * THREADS)
        if not other.any():
            return other
        by = thread_of(stamp)
        other = np.asarray(other & (by != thread))
        if self.block == 1 or not other.any():
            return other
        time = stamp >> _BITS
        for group, size in (("warp", self.lanes), ("block", self.block)):
            other = np.asarray(other & ~((by // size == thread // size) & (time < self.met[group][thread])))
        return other

    def sync(self, scope: Scope, alive: Where) -> None:
        """A barrier of all threads of each warp or block, or of the grid."""
        alive = self.converged(scope, alive, "a barrier")
        self.clock.time += 1
        if scope == "grid":
            self.clock.meet()
            return
        for group in ("warp",) if scope == "warp" else ("warp", "block"):
            self.met[group] = np.where(alive, self.clock.time, self.met[group])

    def converged(self, scope: Scope, alive: Where, what: str) -> Array:
        """The active threads. Raises KernelFault where only some of a group are active, in a divergent branch."""
        alive = np.ones(self.count, bool) if alive is None else np.atleast_1d(alive)
        running = np.broadcast_to(alive, (*alive.shape[:-1], self.count))
        size = {"warp": self.lanes, "block": self.block, "grid": self.count}[scope]
        shares = running.reshape(*running.shape[:-1], -1, size).mean(-1)
        if ((shares > 0) & (shares < 1)).any():
            raise KernelFault(f"{what} of the {scope} in a branch that not all of its threads take")
        return running


class Readers:
    """The readers of each element since the last barrier: the lowest and the highest thread, and the time.

    They are stored so that 0 is nobody: memory that is never looked at is not even mapped.
    """

    def __init__(self, size: int) -> None:
        self.first = np.zeros(size, np.int64)  # THREADS minus the thread
        self.last = np.zeros(size, np.int64)  # the thread plus 1
        self.time = np.zeros(size, np.int64)

    def unseen(self, at: Array, thread: Array, threads: Threads) -> Array:
        """Which elements another thread has read since the last common barrier."""
        time = self.time[at] << _BITS
        first, last = self.first[at], self.last[at]
        found = np.zeros(thread.shape, bool)
        for read, each in ((first > 0, THREADS - first), (last > 0, last - 1)):
            found |= read & threads.unseen(time + np.where(read, each, 0) + 1, thread)
        return found

    def read(self, at: Array, thread: Array, threads: Threads) -> None:
        """Record reads; those before the last barrier are dropped."""
        past = at[~self.unseen(at, thread, threads)]
        self.first[past], self.last[past] = 0, 0
        np.maximum.at(self.first, at, THREADS - thread)
        np.maximum.at(self.last, at, thread + 1)
        self.time[at] = threads.clock.time
