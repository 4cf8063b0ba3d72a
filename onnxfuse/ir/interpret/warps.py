"""Statements that threads execute together, interpreted: barriers, asynchronous copies, products of fragments."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from onnxfuse.ir.fragments import LINE, WARPGROUP, Core, Fragment, lane_of, register_of
from onnxfuse.ir.index import Atom
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.interpret.elements import Array, KernelFault, Where
from onnxfuse.ir.interpret.memory import ON_THE_WAY, Memory
from onnxfuse.ir.interpret.threads import THREADS as STAMPS
from onnxfuse.ir.interpret.threads import Threads
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.launch import (
    BeginArrivals,
    Commit,
    CopyAsync,
    CopyBox,
    Mma,
    Sync,
    Threaded,
    Wait,
    WaitArrival,
    WaitProducts,
    WarpgroupMma,
)

_Product = tuple[WarpgroupMma, Iterations, list[tuple[str, Array, Array]], Array]  # with sides, their stamps, and sums
_Box = tuple[Memory, Array, Array, Array, Array]
_Copy = tuple[Memory, Array, Array, Where, Array]  # where to, what, and by whom


class Cooperative:
    """Cooperative statements of one phase and its copies in flight."""

    def __init__(self, threads: Threads, *, sample: bool = False) -> None:
        self.threads, self.sample = threads, sample
        self.boxes: dict[tuple[str, int], list[_Box]] = {}  # on their way, by their arrival
        self.turns: dict[tuple[str, int], int] = {}
        self.each: dict[str, int] = {}  # boxes of an arrival
        self.begun_at = 0
        self.begun: list[_Copy] = []
        self.groups: list[list[_Copy]] = []
        self.products: list[_Product] = []
        self.told = 0  # the time before which matrix units see what was stored

    def statement(self, s: Threaded, p: Iterations) -> None:
        """A cooperative statement, which is in no vectorized loop."""
        match s:
            case Sync():
                self.threads.sync(s.scope, p.alive)
                self.told = self.threads.clock.time if s.units else self.told
            case CopyAsync():
                self.copy(s, p)
            case Commit():
                self.groups.append(self.begun)
                self.begun = []
            case Wait():
                self.wait(s.pending)
            case Mma():
                self.multiply(s, p)
            case WarpgroupMma():
                self.begin(s, p)
            case WaitProducts():
                self.finish(s.pending)
            case BeginArrivals():
                self.each[s.arrivals] = s.boxes
                self.begun_at = self.threads.clock.time
            case CopyBox():
                self.box(s, p)
            case WaitArrival():
                self.arrive(s, p)
            case _:
                assert_never(s)

    def copy(self, s: CopyAsync, p: Iterations) -> None:
        """Start an asynchronous copy: elements are read now, and stored by `wait`."""
        number = np.arange(s.count).reshape(-1, *(1,) * len(p.shape))
        got, _ = p.memory[s.source].read(p.index(s.at) + number, p.alive, p.tasks)
        to = p.memory[s.target]
        at = np.asarray(p.index(s.to) + number)
        to.expect(at, p.alive, p.tasks)
        self.begun.append((to, at, got, p.alive, p.tasks))

    def wait(self, pending: int) -> None:
        """Complete all groups but the last `pending` ones."""
        done = len(self.groups) - pending
        for group in self.groups[: max(done, 0)]:
            for to, at, got, alive, tasks in group:
                to.write(at, got, alive, tasks)
        self.groups = self.groups[max(done, 0) :]

    def end(self) -> None:
        """End the phase. Raises KernelFault for copies in flight, and products under way."""
        if self.begun or self.groups:
            raise KernelFault("a copy is never waited for")
        if any(self.boxes.values()) and not self.sample:
            raise KernelFault("a box is never waited for")
        if self.products:
            raise KernelFault("a product of a warpgroup is never waited for")

    def multiply(self, s: Mma, p: Iterations) -> None:
        """Assemble matrices from fragments, multiply, and distribute the sums."""
        core = s.core
        if core.lanes != self.threads.lanes:
            raise KernelFault(f"{core.lanes} lanes multiply, and {self.threads.lanes} are a warp")
        self.threads.converged("warp", p.alive, "a product of fragments")
        left = self.matrix(core.left, (core.m, core.k), s.left, np.asarray(p.index(s.left_at)), p)
        right = self.matrix(core.right, (core.k, core.n), s.right, np.asarray(p.index(s.right_at)), p)
        before = self.matrix(core.sums, (core.m, core.n), s.sums, np.asarray(p.index(s.sums_at)), p)
        made = before + (_wide(left) @ _wide(right)).astype(before.dtype)
        row, column = elements(core.sums)
        values = made[:, row, column]  # warps, lanes, registers
        at = p.index(s.sums_at) + np.arange(core.sums.registers)[:, None]
        p.memory[s.sums].write(at, np.moveaxis(values, -1, 0).reshape(core.sums.registers, -1), p.alive, p.tasks)

    def matrix(self, f: Fragment, shape: tuple[int, int], name: str, at: Array, p: Iterations) -> Array:
        """The matrix in the fragments of each warp."""
        got, _ = p.memory[name].read(at + np.arange(f.registers)[:, None], p.alive, p.tasks)
        values = np.moveaxis(got.reshape(f.registers, -1, f.lanes), 0, -1)
        row, column = elements(f)
        made = np.zeros((values.shape[0], *shape), got.dtype)
        made[:, row, column] = values
        if not np.array_equal(made[:, row, column], values, equal_nan=True):
            raise KernelFault(f"lanes hold different values of one element in {name}")
        return made

    def begin(self, s: WarpgroupMma, p: Iterations) -> None:
        """Begin a product: both sides have to be there, and stay, until it is waited for."""
        count = s.core.lanes
        running = self.threads.converged("warp", p.alive, "a product of a warpgroup").reshape(-1, count)
        if (running.any(1) != running.all(1)).any():
            raise KernelFault("a product of a warpgroup in a branch that not all of its warps take")
        sides = []
        for name, at, pitch, right in (
            (s.left, s.left_at, s.left_pitch, False), (s.right, s.right_at, s.right_pitch, True)
        ):  # fmt: skip
            first = np.broadcast_to(np.asarray(p.index(at)), p.shape).reshape(-1, count)
            if (first != first[:, :1]).any():
                raise KernelFault(f"warps of a group multiply different parts of {name}")
            row, column = np.indices(s.extent(right=right)).reshape(2, -1, count)
            place = np.tile(column // LINE * pitch + row * LINE + column % LINE, len(first)) + first.reshape(-1)
            stamps = p.memory[name].stamps(place, p.alive)
            if (stamps == ON_THE_WAY).any():
                raise KernelFault(f"a product reads {name}, to which a copy is on its way")
            if (stamps >= max(self.told, 1) * STAMPS).any():
                raise KernelFault(f"a matrix unit reads {name}, and no barrier has told it what was stored there")
            sides.append((name, place, stamps))
        sums = p.index(s.sums_at) + np.arange(s.core.sums.registers)[:, None]
        p.memory[s.sums].begin(np.broadcast_to(sums, (len(sums), self.threads.count)), p.alive, p.tasks)
        self.products.append((s, p, sides, sums))

    def box(self, s: CopyBox, p: Iterations) -> None:
        """Begin to copy a box: elements are read now, and stored by `arrive`."""
        block = self.threads.block
        who = np.broadcast_to(True if p.alive is None else p.alive, p.shape).reshape(-1, block)
        if (who.sum(1) > 1).any():
            raise KernelFault("several threads copy a box")
        asks = np.repeat(np.argmax(who, 1) + np.arange(len(who)) * block, block)  # all of a block stand for that one
        alive, tasks = np.asarray(np.repeat(who.any(1), block)), self.threads.number[asks]
        row, column, first = (
            np.broadcast_to(np.asarray(p.index(e)), p.shape).reshape(-1)[asks] for e in (s.row, s.column, s.to)
        )
        r, c = np.indices((s.rows, LINE)).reshape(2, -1, block)
        r, c = (np.tile(e, len(alive) // block) for e in (r, c))
        row, column = row + r, column + c
        inside = alive & (row >= 0) & (row < p.index(s.all_rows)) & (column >= 0) & (column < s.all_columns)
        got, _ = p.memory[s.source].read(row * s.pitch + column, inside, tasks)
        to, at = p.memory[s.target], first + r * LINE + c
        to.expect(at, np.broadcast_to(alive, at.shape), tasks)
        key = s.arrivals, self.arrival(s, p)
        self.boxes.setdefault(key, []).append((to, at, np.where(inside, got, 0), alive, tasks))
        if len(self.boxes[key]) > self.each.get(s.arrivals, 0):
            raise KernelFault(f"more boxes come to {key[0]}[{key[1]}] than it is for")

    def arrive(self, s: WaitArrival, p: Iterations) -> None:
        """Boxes of an arrival are seen by all threads that wait for it, and by matrix units."""
        key = s.arrivals, self.arrival(s, p)
        if (self.threads.met["block"] <= self.begun_at).any():
            raise KernelFault(f"waits for {key[0]}[{key[1]}], and no barrier is behind their begin")
        turn = int(np.max(p.index(s.turn)))
        if len(self.boxes.get(key, ())) != self.each.get(s.arrivals) or turn != self.turns.get(key, 0):
            raise KernelFault(f"waits for {key[0]}[{key[1]}], to which not all boxes are on their way")
        for to, at, got, alive, tasks in self.boxes.pop(key):
            to.arrive(at, got, np.broadcast_to(alive, at.shape), tasks, sum(self.turns.values()))
        self.turns[key] = turn + 1

    def arrival(self, s: CopyBox | WaitArrival, p: Iterations) -> int:
        """The number of an arrival, which is that of all blocks that are interpreted together."""
        found = np.unique(p.index(s.arrival))
        if len(found) != 1:
            raise KernelFault(f"blocks are at different arrivals of {s.arrivals}")
        return int(found[0])

    def finish(self, pending: int) -> None:
        """Complete all products but the last `pending` ones, which read now what they multiply."""
        done = max(len(self.products) - pending, 0)
        for s, p, sides, at in self.products[:done]:
            parts = []
            for right, (name, place, stamps) in enumerate(sides):
                if not np.array_equal(p.memory[name].stamps(place, p.alive), stamps):
                    raise KernelFault(f"{name} is overwritten while a product reads it")
                got, _ = p.memory[name].read(place, p.alive, p.tasks)
                groups = np.moveaxis(got.reshape(len(got), -1, s.core.lanes), 1, 0)
                parts.append(_wide(groups.reshape(-1, *s.extent(right=right > 0))))
            left, right_ = parts
            made = left @ (np.swapaxes(right_, 1, 2) if s.deep else right_)
            row, column = elements(s.core.sums)
            warps = made.reshape(-1, s.core.m // WARPGROUP, s.core.n)[:, row, column]  # warps, lanes, registers
            added = np.moveaxis(warps, -1, 0).reshape(s.core.sums.registers, -1)
            p.memory[s.sums].add(np.broadcast_to(at, added.shape), added, p.alive, p.tasks)
        self.products = self.products[done:]
        for s, p, _, at in self.products:
            p.memory[s.sums].begin(np.broadcast_to(at, (len(at), self.threads.count)), p.alive, p.tasks)


def _wide(x: Array) -> Array:
    """Values in a type wide enough for the accumulators of matrix units."""
    return x.astype(np.float64 if x.dtype.kind == "f" else np.int64)


def elements(f: Fragment) -> tuple[Array, Array]:
    """Rows and columns of a fragment's elements, as arrays of lanes x registers."""
    lane, register = np.meshgrid(np.arange(f.lanes), np.arange(f.registers), indexing="ij")
    values: dict[Atom, Array] = {lane_of(f.lanes): lane, register_of(f.registers): register}
    row, column = (np.broadcast_to(evaluate(e, lambda a: values[a]), lane.shape) for e in (f.row, f.column))
    return row, column


def misfits(core: Core) -> list[str]:
    """Errors in a core's fragment maps: elements out of range or missing, replicated accumulators."""
    found = []
    for name, f, shape in (
        ("left", core.left, (core.m, core.k)),
        ("right", core.right, (core.k, core.n)),
        ("sums", core.sums, (core.m, core.n)),
    ):
        row, column = elements(f)
        inside = (row >= 0) & (row < shape[0]) & (column >= 0) & (column < shape[1])
        held = np.unique(row[inside] * shape[1] + column[inside]).size
        if not inside.all() or held != shape[0] * shape[1]:
            found.append(f"the {name} fragment of {core!r} is not the matrix of {shape[0]} x {shape[1]}")
        elif name == "sums" and row.size != held:
            found.append(f"the {name} fragment of {core!r} holds an element twice")
    return found
