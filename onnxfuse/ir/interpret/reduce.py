"""Interpretation of reductions: partial results of iterations, lanes, warps and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.interpret.elements import Array, KernelFault, computed
from onnxfuse.ir.interpret.threads import Threads
from onnxfuse.ir.interpret.values import Iterations
from onnxfuse.ir.kernel import Accumulate, ReduceLoop
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Const, variable


class _Sum:
    """An accumulator, at places of `rank` dimensions.

    `lanes` is not 0 for a vector accumulator, which has a leading dimension of lanes.
    """

    def __init__(self, value: Array, rank: int, lanes: int = 0) -> None:
        self.value, self.rank, self.lanes = value, rank, lanes


class Reductions:
    """The open reductions, by the names of their accumulators, on vectors of so many lanes.

    `vectors` are the dimensions of the enclosing vector loops.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.vectors: list[int] = []
        self.open: dict[str, _Sum] = {}

    def begin(self, s: ReduceLoop, p: Iterations) -> None:
        """Set accumulators to the identity."""
        start = MONOIDS[s.combine].init(s.dtype)
        start = start if len(start) == len(s.targets) else start * len(s.targets)
        lanes = self.lanes if s.part is not None else 0
        shape = (lanes, *p.shape) if lanes else p.shape
        for target, first in zip(s.targets, start, strict=True):
            assert isinstance(first, Const)
            value = np.full(shape, first.value, computed(first.dtype))
            self.open[target] = _Sum(value, len(p.shape), lanes)

    def end(self, s: ReduceLoop, p: Iterations, threads: Threads) -> None:
        """Combine partial results and define the variables, or store a vector accumulator to memory."""
        for target in s.targets:
            value = self.open.pop(target).value
            if s.part is not None:
                at = p.index(s.part[1]) + np.arange(self.lanes).reshape(-1, *(1,) * len(p.shape))
                p.memory[s.part[0]].write(at, value, p.alive, p.tasks)
            elif s.scope in ("warp", "block"):
                p.variables[target] = _of_all(s, value, p, threads)
            else:
                p.variables[target] = value

    def accumulate(self, s: Accumulate, p: Iterations) -> None:
        """Combine the values of all places into the accumulators of the enclosing reduction."""
        sums = [self.open[t] for t in s.targets]
        monoid = MONOIDS[s.combine]
        start = monoid.init(s.values[0].dtype)
        inner = len(p.shape) - sums[0].rank
        values = [np.broadcast_to(p.scalar(v), p.shape) for v in s.values]
        if monoid.numpy is None:
            _merge_in_order(s, p, sums, values, inner)
            return
        assert isinstance(start[0], Const)
        (value,), (accumulator,) = values, sums
        if p.alive is not None:
            value = np.where(p.alive, value, start[0].value).astype(accumulator.value.dtype)
        if accumulator.lanes:
            value = self._by_lanes(value, accumulator, start[0].value, len(p.shape))
            inner = len(p.shape) - accumulator.rank
            value = _reduced(monoid.numpy, value, (0, *range(2, inner + 1)))
        else:
            value = _reduced(monoid.numpy, value, tuple(range(inner)))
        accumulator.value = _reduced(monoid.numpy, np.stack([accumulator.value, value]), (0,))

    def _by_lanes(self, value: Array, accumulator: _Sum, idle: Any, rank: int) -> Array:
        """Values with the dimension of the vector loop split into leading dimensions (vectors, lanes)."""
        along = rank - 1 - self.vectors[-1]
        value = np.moveaxis(value, along, 0)
        rest = -len(value) % accumulator.lanes
        value = np.concatenate([value, np.full((rest, *value.shape[1:]), idle, value.dtype)])
        return value.reshape(-1, accumulator.lanes, *value.shape[1:])


def _of_all(s: ReduceLoop, value: Array, p: Iterations, threads: Threads) -> Array:
    """An all-reduce of partial results over the threads of a warp or a block."""
    scope, merge = s.scope, MONOIDS[s.combine].numpy
    assert scope in ("warp", "block")
    if merge is None:
        raise KernelFault(f"{s.combine} depends on the order of threads")
    threads.converged(scope, p.alive, "a reduction")
    size = threads.lanes if scope == "warp" else threads.block
    apart = np.broadcast_to(value, p.shape).reshape(*p.shape[:-1], -1, size)
    found = _reduced(merge, apart, (apart.ndim - 1,))
    if scope == "block":
        threads.sync("block", p.alive)
    return np.repeat(found, size, axis=-1)


def _merge_in_order(s: Accumulate, p: Iterations, sums: list[_Sum], values: list[Array], inner: int) -> None:
    """A monoid over tuples, combined in the serial order of iterations."""
    order = (*range(inner - 1, -1, -1), *range(inner, len(p.shape)))
    outer = p.shape[inner:]
    flat = [v.transpose(order).reshape(-1, *outer) for v in values]
    alive = None if p.alive is None else np.broadcast_to(p.alive, p.shape).transpose(order).reshape(-1, *outer)
    left = tuple(variable(f"%l{k}", v.dtype) for k, v in enumerate(s.values))
    right = tuple(variable(f"%r{k}", v.dtype) for k, v in enumerate(s.values))
    merged = MONOIDS[s.combine].merge(left, right)
    at = Iterations(outer, p.tasks, p.symbols, p.memory)
    for i in range(len(flat[0])):
        at.variables = {f"%l{k}": h.value for k, h in enumerate(sums)}
        at.variables |= {f"%r{k}": f[i] for k, f in enumerate(flat)}
        made = [at.scalar(m) for m in merged]
        for h, m in zip(sums, made, strict=True):
            h.value = m if alive is None else np.where(alive[i], m, h.value)


def _reduced(merge: Any, value: Array, axes: tuple[int, ...]) -> Array:
    """A reduction over some dimensions in the type of the values; NumPy would widen sums of small integers."""
    if not axes:
        return value
    typed = {"dtype": value.dtype} if merge in (np.sum, np.prod) else {}
    return np.asarray(merge(value, axis=axes, **typed))
