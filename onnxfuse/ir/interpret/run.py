"""Interpretation of a kernel's phases, statements and loops, vectorized over tasks, threads and iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import numpy as np

from onnxfuse.ir.compose import sources
from onnxfuse.ir.interpret import calls
from onnxfuse.ir.interpret.elements import KernelFault, converted
from onnxfuse.ir.interpret.memory import Memory
from onnxfuse.ir.interpret.reduce import Reductions
from onnxfuse.ir.interpret.threads import LogicalClock, Threads
from onnxfuse.ir.interpret.values import Iterations, both
from onnxfuse.ir.interpret.warps import Cooperative
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Buffer,
    Call,
    HorizontalReduce,
    Let,
    Loop,
    Pack,
    Phase,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
    When,
    statements,
)
from onnxfuse.ir.lanes import values_of
from onnxfuse.ir.launch import Asynchronous, Commit, CopyAsync, Launch, Mma, Sync, Wait
from onnxfuse.ir.tile import Tile

MOST = 1 << 18  # maximum places that are interpreted together
FEW = 3  # iterations of a loop in a sample run: enough to find races between neighbours
IN_ORDER = (RowPointer, Tile, Pack, HorizontalReduce, Sync, CopyAsync, Commit, Wait, Mma, Asynchronous)


class Interpreter:
    """A run of a kernel's phases on `memory`, with vectors of so many lanes and up to so many tasks.

    A `sample` runs the first blocks and the first iterations only, so that uninitialized reads are not checked.
    """

    def __init__(
        self, symbols: Mapping[str, int], clock: LogicalClock, lanes: int, most_tasks: int, *, sample: bool = False
    ) -> None:
        self.symbols, self.lanes, self.most_tasks, self.sample = symbols, lanes, most_tasks, sample
        self.clock = clock
        self.memory: dict[str, Memory] = {}
        self.threads = Threads(clock, 1)
        self.cooperative = Cooperative(self.threads)
        self.reductions = Reductions(lanes)
        self.apart: dict[int, bool] = {}
        self.pointed = [""]  # buffers that pointers refer to, after the zero buffer

    def phase(self, phase: Phase) -> None:
        """Run all tasks or threads of a phase together."""
        here = Iterations((), np.zeros(1, np.int64), self.symbols, self.memory)
        extents = [int(here.index(s.extent)) for s in phase.splits]
        if any(e <= 0 for e in extents) or (phase.launch is not None and int(here.index(phase.launch.grid)) == 0):
            return
        parts = self.divided([int(here.index(s.pieces)) for s in phase.splits])
        if phase.launch is None:
            self.threads = Threads(self.clock, int(np.prod(parts, dtype=np.int64)))
        else:
            self.threads = self.launched(phase.launch, here)
        self.cooperative = Cooperative(self.threads, sample=self.sample)
        for m in self.memory.values():
            m.of(self.threads)
        outer = dict(self.memory)
        number = self.threads.number
        p = Iterations((self.threads.count,), number, self.symbols, self.memory)
        for b in phase.locals:
            self.memory[b.name] = self.local(b, int(here.index(b.size)))
        for at, (e, s, n) in enumerate(zip(extents, phase.splits, parts, strict=True)):
            part = number // int(np.prod(parts[at + 1 :], dtype=np.int64)) % n
            for edge, more in ((s.first, 0), (s.last, 1)):
                begun = e * (part + more) // n // s.step * s.step
                p.axes[edge.name] = np.where(part + more == n, e, begun)
        self.body(phase.body, p)
        self.cooperative.end()
        self.memory.clear()
        self.memory.update(outer)

    def divided(self, pieces: Sequence[int]) -> list[int]:
        """The number of parts of each split, which has so many pieces."""
        parts: list[int] = []
        for most in pieces:
            room = max(self.most_tasks // max(int(np.prod(parts)), 1), 1 if self.most_tasks == 1 else 2)
            parts.append(min(most, room))
        return parts

    def launched(self, launch: Launch, here: Iterations) -> Threads:
        """The threads of a launch."""
        grid, block = int(here.index(launch.grid)), int(here.index(launch.block))
        if grid < 1 or block < 1 or block % launch.lanes:
            raise KernelFault(f"{grid} blocks of {block} threads are launched, in warps of {launch.lanes}")
        blocks = min(grid, 2) if self.sample else grid
        return Threads(self.clock, blocks * block, block, launch.lanes, grid)

    def local(self, b: Buffer, size: int) -> Memory:
        """A buffer of each block or each thread."""
        copies = self.threads.count // (self.threads.block if b.space == "shared" else 1)
        made = Memory.empty(b.name, b.dtype, size, self.threads, copies, pointers=b.space == "pointers")
        made.checked = not self.sample
        return made

    def body(self, body: Sequence[Stmt], p: Iterations) -> None:
        """Statements in order; declarations are visible to the following ones."""
        for s in body:
            self.statement(s, p)

    def statement(self, s: Stmt, p: Iterations) -> None:
        """One statement at all places."""
        match s:
            case Bind():
                where = p.holds(s.guards)
                value = p.index(s.value, where)
                value = value if s.most is None else np.minimum(value, p.index(s.most))
                p.axes[s.axis.name] = np.where(where, value, 0) if s.guards and where is not None else value
            case Let():
                p.variables[s.name] = p.scalar(s.value)
            case Store():
                memory, offset = self.memory[s.buffer], p.index(s.offset)
                for k, value in enumerate(s.values):
                    memory.write(offset + k, converted(p.scalar(value), memory.dtype), p.alive, p.tasks)
            case When():
                where = p.holds(s.guards)
                if where is None or where.any():
                    self.body(s.body, p.inner(p.shape, where))
            case Loop():
                self.loop(s, p)
            case ReduceLoop():
                self.reductions.begin(s, p)
                self.body(s.body, p)
                self.reductions.end(s, p, self.threads)
            case Accumulate():
                self.reductions.accumulate(s, p)
            case RowPointer() | Tile() | Pack() | HorizontalReduce() | Prefetch():
                self.call(s, p)
            case Sync() | CopyAsync() | Commit() | Wait() | Mma() | Asynchronous():
                self.cooperative.statement(s, p)
            case _:
                assert_never(s)

    def call(self, s: Call, p: Iterations) -> None:
        """A call, which is in no vectorized loop."""
        match s:
            case RowPointer():
                calls.row_pointer(s, p, self.pointed)
            case Tile():
                calls.tile(s, p, self.pointed)
            case Pack():
                calls.pack(s, p)
            case HorizontalReduce():
                calls.horizontal_reduce(s, p, self.lanes)
            case Prefetch():
                pass
            case _:
                assert_never(s)

    # Loops ------------------------------------------------------------------------------------------------------------

    def loop(self, s: Loop, p: Iterations) -> None:
        """All iterations; as many together as fit (MOST) where they are independent.

        Those of a last vector twice where they may run again.
        """
        first, stride = self.threads.place(s.kind)
        begin, end = np.asarray(p.index(s.begin)) + first, np.asarray(p.index(s.end))
        counts = -((begin - end) // stride)
        counts = counts if p.alive is None else np.where(p.alive, counts, 0)
        count, vector = max(int(counts.max()), 0), s.kind == "vector"
        if self.sample and s.kind not in ("vector", "unroll"):
            count = min(count, FEW)
        room = max(MOST // max(int(np.prod(p.shape)), 1), 1)
        if vector:
            room = max(room // self.lanes, 1) * self.lanes
        if not vector and (room == 1 or not self.independent(s)):
            for i in range(count):
                alive = both(p.alive, begin + i * stride < end)
                if alive is None or alive.any():
                    inner = p.inner(p.shape, None if alive is not None and alive.all() else alive)
                    inner.axes[s.axis.name] = begin + i * stride
                    self.body(s.body, inner)
            return
        steps = [np.arange(number, min(number + room, count)) for number in range(0, count, room)]
        if s.again and count >= self.lanes:
            steps.append(np.arange(count - self.lanes, count))
        for numbers in steps:
            step = numbers.reshape(-1, *(1,) * len(p.shape))
            at = begin + step * stride
            alive = at < end
            inner = p.inner((len(step), *p.shape), both(p.alive, None if alive.all() else alive))
            inner.axes[s.axis.name] = at
            self.reductions.vectors += [len(p.shape)] if vector else []
            self.body(s.body, inner)
            self.reductions.vectors = self.reductions.vectors[: -1 if vector else None]

    def independent(self, s: Loop) -> bool:
        """Whether there is no loop-carried dependence: no buffer is both read and stored in the loop."""
        if id(s) not in self.apart:
            inside = list(statements(s.body))
            stored = {x.buffer for x in inside if isinstance(x, Store)}
            stored |= {x.part[0] for x in inside if isinstance(x, ReduceLoop) and x.part is not None}
            shared = any(isinstance(x, ReduceLoop) and x.scope == "block" for x in inside)
            self.apart[id(s)] = not shared and not any(isinstance(x, IN_ORDER) or stored & _read(x) for x in inside)
        return self.apart[id(s)]


def _read(s: Stmt) -> set[str]:
    """The buffers that a statement's values and indices read."""
    return {name for v in values_of(s) for name in sources(v)}
