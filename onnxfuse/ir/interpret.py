"""What a kernel computes, in NumPy and without a compiler: slow, but for the iterations that run at a time.

This defines what a kernel means. Tasks run at a time, as many as the kernel can be divided into up to a limit, and so
do the iterations of vector loops and of loops none of whose iterations reads what another one stores. Memory knows who
stored what: to leave a buffer, to read what nothing stored, or to meet another task of the phase is a `KernelFault`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

import numpy as np

from onnxfuse.ir import interpret_calls as calls
from onnxfuse.ir.compose import sources
from onnxfuse.ir.interpret_memory import Array, KernelFault, Memory, computed, converted, from_stored
from onnxfuse.ir.interpret_values import Places, both
from onnxfuse.ir.kernel import (
    Accumulate,
    Bind,
    Computed,
    ExtentBind,
    HorizontalReduce,
    Kernel,
    Let,
    Loop,
    Pack,
    Phase,
    Prefetch,
    ReduceLoop,
    RowPointer,
    Stmt,
    Store,
    Tile,
    When,
    statements,
)
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Const, Load

MOST = 1 << 18  # places that run at a time
TASKS = 128  # into which a phase is divided at most
CALLS = (RowPointer, Tile, Pack, HorizontalReduce)


def interpret(kernel: Kernel, inputs: Sequence[Array], lanes: int, tasks: int = TASKS) -> tuple[Array, ...]:
    """The outputs of a kernel for inputs in storage order, bfloat16 as its bits, on vectors of so many lanes.

    A phase is divided into up to `tasks` tasks.
    """
    symbols = bound(kernel, [a.shape for a in inputs])
    memory: dict[str, Memory] = {}
    for p, array in zip(kernel.inputs, inputs, strict=True):
        memory[p.name] = Memory(p.name, p.dtype, from_stored(array, p.dtype).reshape(1, -1), None)
    here = Places((), np.zeros(1, np.int32), symbols, memory)
    shapes = {p.name: tuple(int(here.index(e)) for e in p.storage) for p in kernel.outputs}
    for p in kernel.outputs:
        memory[p.name] = Memory.empty(p.name, p.dtype, int(np.prod(shapes[p.name], dtype=np.int64)))
    for b in kernel.scratch:
        memory[b.name] = Memory.empty(b.name, b.dtype, int(here.index(b.size)))
    run = _Run(symbols, memory, lanes, tasks)
    with np.errstate(all="ignore"):
        for phase in kernel.phases:
            run.phase(phase)
    for p in kernel.outputs:
        made = memory[p.name].made
        if made is not None and (made == 0).any():
            raise KernelFault(f"{int((made == 0).sum())} elements of {p.name} are never stored")
    return tuple(memory[p.name].values.reshape(shapes[p.name]) for p in kernel.outputs)


def bound(kernel: Kernel, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The values of a kernel's symbols for inputs of these shapes; a fault where they do not fit."""
    symbols: dict[str, int] = {}
    here = Places((), np.zeros(1, np.int32), symbols, {})
    for b in kernel.binds:
        if isinstance(b, Computed):
            symbols[b.symbol.name] = int(here.index(b.value))
        else:
            assert isinstance(b, ExtentBind)
            factor = int(here.index(b.factor))
            rest = shapes[b.input][b.axis] - int(here.index(b.rest))
            symbols[b.symbol.name] = rest // factor if factor else 0
    if any(int(here.index(e)) < 0 for e in kernel.requires):
        raise KernelFault("a dimension is larger than the model allows")
    for p, shape in zip(kernel.inputs, shapes, strict=True):
        if tuple(int(here.index(e)) for e in p.storage) != tuple(shape):
            raise KernelFault(f"{p.name} has another shape than the kernel was built for")
    return symbols


class _Sum:
    """A variable of a fold while it runs, which stands in places of `rank` dimensions.

    `lanes` is not 0 where the lanes of vectors are kept apart, in a dimension before those.
    """

    def __init__(self, value: Array, rank: int, lanes: int = 0) -> None:
        self.value, self.rank, self.lanes = value, rank, lanes


class _Run:
    """One run of a kernel."""

    def __init__(self, symbols: Mapping[str, int], memory: dict[str, Memory], lanes: int, most_tasks: int) -> None:
        self.symbols, self.memory, self.lanes, self.most_tasks = symbols, memory, lanes, most_tasks
        self.done = 1  # numbers of tasks that are taken
        self.folds: dict[str, _Sum] = {}
        self.vectors: list[int] = []  # dimensions that vector loops run along, from the last one on
        self.apart: dict[int, bool] = {}
        self.pointed = [""]  # buffers that pointers lead to, behind that of zeros

    def phase(self, phase: Phase) -> None:
        """All tasks of a phase, some at a time."""
        here = Places((), np.zeros(1, np.int32), self.symbols, self.memory)
        extents = [int(here.index(s.extent)) for s in phase.splits]
        if any(e <= 0 for e in extents):
            return
        parts: list[int] = []
        for e, s in zip(extents, phase.splits, strict=True):
            room = max(self.most_tasks // max(int(np.prod(parts)), 1), 1 if self.most_tasks == 1 else 2)
            parts.append(min(-(-e // s.step), room))
        count = int(np.prod(parts, dtype=np.int64))
        for m in self.memory.values():
            m.now = self.done
        outer = dict(self.memory)
        number = np.arange(count, dtype=np.int32)
        p = Places((count,), number + self.done, self.symbols, self.memory)
        for b in phase.locals:
            size = int(here.index(b.size))
            self.memory[b.name] = Memory.empty(b.name, b.dtype, size, count, pointers=b.space == "pointers")
            self.memory[b.name].now = self.done
        for at, (e, s, n) in enumerate(zip(extents, phase.splits, parts, strict=True)):
            part = number // int(np.prod(parts[at + 1 :], dtype=np.int64)) % n
            for edge, more in ((s.first, 0), (s.last, 1)):
                begun = e * (part.astype(np.int64) + more) // n // s.step * s.step
                p.axes[edge.name] = np.where(part + more == n, e, begun)
        self.body(phase.body, p)
        self.done += count
        self.memory.clear()
        self.memory.update(outer)

    def body(self, body: Sequence[Stmt], p: Places) -> None:
        """Statements one after the other; what they declare is seen by those behind them."""
        for s in body:
            self.statement(s, p)

    def statement(self, s: Stmt, p: Places) -> None:
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
                self.fold(s, p)
            case Accumulate():
                self.accumulate(s, p)
            case RowPointer() | Tile() | Pack() | HorizontalReduce():
                self.call(s, p)
            case Prefetch():
                pass
            case _:
                assert_never(s)

    def call(self, s: RowPointer | Tile | Pack | HorizontalReduce, p: Places) -> None:
        """A statement that is a call, which stands in no loop that runs at a time."""
        match s:
            case RowPointer():
                calls.point(s, p, self.pointed)
            case Tile():
                calls.tile(s, p, self.pointed)
            case Pack():
                calls.pack(s, p)
            case HorizontalReduce():
                calls.across(s, p, self.lanes)
            case _:
                assert_never(s)

    # Loops ------------------------------------------------------------------------------------------------------------

    def loop(self, s: Loop, p: Places) -> None:
        """All iterations, as many at a time as there is room for, where they do not depend on each other."""
        begin, end = np.asarray(p.index(s.begin)), np.asarray(p.index(s.end))
        counts = end - begin if p.alive is None else np.where(p.alive, end - begin, 0)
        count, vector = max(int(counts.max()), 0), s.kind == "vector"
        room = max(MOST // max(int(np.prod(p.shape)), 1), 1)
        if vector:
            room = max(room // self.lanes, 1) * self.lanes
        if not vector and (room == 1 or not self.independent(s)):
            for i in range(count):
                alive = both(p.alive, begin + i < end)
                if alive is None or alive.any():
                    inner = p.inner(p.shape, None if alive is not None and alive.all() else alive)
                    inner.axes[s.axis.name] = begin + i
                    self.body(s.body, inner)
            return
        for first in range(0, count, room):
            step = np.arange(first, min(first + room, count)).reshape(-1, *(1,) * len(p.shape))
            at = begin + step
            alive = at < end
            inner = p.inner((len(step), *p.shape), both(p.alive, None if alive.all() else alive))
            inner.axes[s.axis.name] = at
            self.vectors += [len(p.shape)] if vector else []
            self.body(s.body, inner)
            self.vectors = self.vectors[:-1] if vector else self.vectors

    def independent(self, s: Loop) -> bool:
        """Whether no iteration reads what a statement of the loop stores."""
        if id(s) not in self.apart:
            inside = list(statements(s.body))
            stored = {x.buffer for x in inside if isinstance(x, Store)}
            stored |= {x.part[0] for x in inside if isinstance(x, ReduceLoop) and x.part is not None}
            self.apart[id(s)] = not any(isinstance(x, CALLS) or stored & _read(x) for x in inside)
        return self.apart[id(s)]

    # Folds ------------------------------------------------------------------------------------------------------------

    def fold(self, s: ReduceLoop, p: Places) -> None:
        """Start values, what the body accumulates, and the variables it is then in."""
        start = MONOIDS[s.combine].init(s.dtype)
        start = start if len(start) == len(s.targets) else start * len(s.targets)
        lanes = self.lanes if s.part is not None else 0
        shape = (lanes, *p.shape) if lanes else p.shape
        for target, first in zip(s.targets, start, strict=True):
            assert isinstance(first, Const)
            value = np.full(shape, first.value, computed(first.dtype))
            self.folds[target] = _Sum(value, len(p.shape), lanes)
        self.body(s.body, p)
        for target in s.targets:
            value = self.folds.pop(target).value
            if s.part is None:
                p.variables[target] = value
                continue
            at = p.index(s.part[1]) + np.arange(lanes).reshape(-1, *(1,) * len(p.shape))
            self.memory[s.part[0]].write(at, value, p.alive, p.tasks)

    def accumulate(self, s: Accumulate, p: Places) -> None:
        """Values of all places merged into those of the fold around."""
        sums = [self.folds[t] for t in s.targets]
        monoid = MONOIDS[s.combine]
        start = monoid.init(s.values[0].dtype)
        inner = len(p.shape) - sums[0].rank
        values = [np.broadcast_to(p.scalar(v), p.shape) for v in s.values]
        if monoid.numpy is None:
            self.merge_in_order(s, p, sums, values, inner)
            return
        assert isinstance(start[0], Const)
        (value,), (held,) = values, sums
        if p.alive is not None:
            value = np.where(p.alive, value, start[0].value).astype(held.value.dtype)
        if held.lanes:
            value = self.by_lanes(value, held, start[0].value, len(p.shape))
            inner = len(p.shape) - held.rank
            value = _reduced(monoid.numpy, value, (0, *range(2, inner + 1)))
        else:
            value = _reduced(monoid.numpy, value, tuple(range(inner)))
        held.value = _reduced(monoid.numpy, np.stack([held.value, value]), (0,))

    def by_lanes(self, value: Array, held: _Sum, idle: Any, rank: int) -> Array:
        """Values with the dimension of the vector loop cut into (vectors, lanes), both of them first."""
        along = rank - 1 - self.vectors[-1]
        value = np.moveaxis(value, along, 0)
        rest = -len(value) % held.lanes
        value = np.concatenate([value, np.full((rest, *value.shape[1:]), idle, value.dtype)])
        return value.reshape(-1, held.lanes, *value.shape[1:])

    def merge_in_order(self, s: Accumulate, p: Places, sums: list[_Sum], values: list[Array], inner: int) -> None:
        """A monoid of several slots, one iteration after the other, the outer loops slowest."""
        order = (*range(inner - 1, -1, -1), *range(inner, len(p.shape)))
        outer = p.shape[inner:]
        flat = [v.transpose(order).reshape(-1, *outer) for v in values]
        alive = None if p.alive is None else np.broadcast_to(p.alive, p.shape).transpose(order).reshape(-1, *outer)
        left = tuple(Load(f"%l{k}", (), v.dtype) for k, v in enumerate(s.values))
        right = tuple(Load(f"%r{k}", (), v.dtype) for k, v in enumerate(s.values))
        merged = MONOIDS[s.combine].merge(left, right)
        at = Places(outer, p.tasks, p.symbols, p.memory)
        for i in range(len(flat[0])):
            at.variables = {f"%l{k}": h.value for k, h in enumerate(sums)}
            at.variables |= {f"%r{k}": f[i] for k, f in enumerate(flat)}
            made = [at.scalar(m) for m in merged]
            for h, m in zip(sums, made, strict=True):
                h.value = m if alive is None else np.where(alive[i], m, h.value)


def _reduced(merge: Any, value: Array, axes: tuple[int, ...]) -> Array:
    """A monoid over some dimensions in the type of the values, which the sum of small integers would leave."""
    if not axes:
        return value
    typed = {"dtype": value.dtype} if merge in (np.sum, np.prod) else {}
    return np.asarray(merge(value, axis=axes, **typed))


def _read(s: Stmt) -> set[str]:
    """The buffers that a statement reads by its values and indices."""
    found: set[str] = set()
    match s:
        case Let():
            found |= sources(s.value)
        case Store() | Accumulate():
            for v in s.values:
                found |= sources(v)
    return found
