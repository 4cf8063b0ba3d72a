"""Which tasks or threads run at the same time, and when they last met at a barrier.

Every store is stamped with its thread and the time; time goes on at barriers. A store is seen by its own thread, and by
those threads that have met its thread at a barrier since.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.interpret.elements import Array, KernelFault, Where
from onnxfuse.ir.kernel import LoopKind
from onnxfuse.ir.launch import Scope

THREADS = 1 << 24  # at most; a stamp is the time and, behind it, the thread and 1


class Clock:
    """The time, which goes on through all phases of a run, and since when all threads have seen all stores."""

    def __init__(self) -> None:
        self.time = 1
        self.all_seen = 1  # what was stored before this time, everybody has seen

    def meet(self) -> None:
        """All threads wait for each other."""
        self.time += 1
        self.all_seen = self.time


class Threads:
    """`count` threads in blocks of `block`, in warps of `lanes`; a task is a block of one thread.

    `grid` is how many blocks there are, of which the first ones may be all that run.
    """

    def __init__(self, clock: Clock, count: int, block: int = 1, lanes: int = 1, grid: int = 0) -> None:
        if count >= THREADS:
            raise KernelFault(f"{count} threads are more than can be told apart")
        self.clock, self.count, self.block, self.lanes, self.grid = clock, count, block, lanes, grid
        self.number = np.arange(count, dtype=np.int64)
        self.groups = {"warp": self.number // lanes, "block": self.number // block}
        self.met = {"warp": np.zeros(count, np.int64), "block": np.zeros(count, np.int64)}
        clock.meet()

    def stamps(self, thread: Array) -> Array:
        """What is stored now by these threads."""
        return np.asarray(self.clock.time * THREADS + thread + 1)

    def place(self, kind: LoopKind) -> tuple[Array | int, int]:
        """The first iteration of a loop that a thread runs, and how far it is to its next one."""
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
        """Which of these stores, or reads, threads have not met: those of others since the last barrier of both."""
        other = np.asarray((stamp >= self.clock.all_seen * THREADS) & (stamp % THREADS != thread + 1))
        if self.block == 1 or not other.any():
            return other
        by, time = stamp % THREADS - 1, stamp // THREADS
        for group, size in (("warp", self.lanes), ("block", self.block)):
            other = np.asarray(other & ~((by // size == thread // size) & (time < self.met[group][thread])))
        return other

    def sync(self, scope: Scope, alive: Where) -> None:
        """A barrier of all threads of each warp or block, or of the grid."""
        alive = self.together(scope, alive, "a barrier")
        self.clock.time += 1
        if scope == "grid":
            self.clock.meet()
            return
        for group in ("warp",) if scope == "warp" else ("warp", "block"):
            self.met[group] = np.where(alive, self.clock.time, self.met[group])

    def together(self, scope: Scope, alive: Where, what: str) -> Array:
        """The threads that run here; a fault where only some of a group do, of which all have to."""
        alive = np.ones(self.count, bool) if alive is None else np.atleast_1d(alive)
        running = np.broadcast_to(alive, (*alive.shape[:-1], self.count))
        size = {"warp": self.lanes, "block": self.block, "grid": self.count}[scope]
        shares = running.reshape(*running.shape[:-1], -1, size).mean(-1)
        if ((shares > 0) & (shares < 1)).any():
            raise KernelFault(f"{what} of the {scope} in a branch that not all of its threads take")
        return running


class Readers:
    """Who read each element of a buffer since its threads last met: the first and the last of them, and when."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.first = np.full(shape, THREADS, np.int64)
        self.last = np.full(shape, -1, np.int64)
        self.time = np.zeros(shape, np.int64)

    def unseen(self, at: tuple[Array, ...], thread: Array, threads: Threads) -> Array:
        """Which elements some other thread reads, that these threads have not met since."""
        time = self.time[at]
        found = np.zeros(thread.shape, bool)
        for each in (self.first[at], self.last[at]):
            read = (each >= 0) & (each < THREADS)
            found |= read & threads.unseen(time * THREADS + np.where(read, each, 0) + 1, thread)
        return found

    def read(self, at: tuple[Array, ...], thread: Array, threads: Threads) -> None:
        """Elements are read by threads; what those met before is forgotten."""
        old = ~self.unseen(at, thread, threads)
        past = tuple(np.asarray(each)[old] for each in at)
        self.first[past], self.last[past] = THREADS, -1
        np.minimum.at(self.first, at, thread)
        np.maximum.at(self.last, at, thread)
        self.time[at] = threads.clock.time
