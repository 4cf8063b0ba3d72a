"""Evaluation of indices and scalars as NumPy arrays, for many iterations together."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import partial
from typing import Any, Self

import numpy as np

from onnxfuse.ir.functions import FUNCTIONS
from onnxfuse.ir.index import Atom, Axis, Entry, Index, Loaded, Symbol
from onnxfuse.ir.indexing import evaluate
from onnxfuse.ir.interpret.elements import Array, KernelFault, Where, computed, converted
from onnxfuse.ir.interpret.memory import Memory
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Scalar

Numbers = Any  # an integer, or an array of them


class Iterations:
    """Iterations that are interpreted together (places): `shape` has the innermost loop first and tasks last.

    `axes` and `variables` are the values in scope, as arrays that broadcast to `shape`. `alive` is the mask of active
    places; `tasks` are the task numbers.
    """

    def __init__(
        self, shape: tuple[int, ...], tasks: Array, symbols: Mapping[str, Numbers], memory: Mapping[str, Memory]
    ) -> None:
        self.shape, self.tasks, self.symbols, self.memory = shape, tasks, symbols, memory
        self.axes: dict[str, Numbers] = {}
        self.variables: dict[str, Array] = {}
        self.alive: Where = None

    def inner(self, shape: tuple[int, ...], alive: Where) -> Self:
        """A nested scope with its own shape and mask."""
        made = copy(self)
        made.shape, made.alive = shape, alive
        made.axes, made.variables = dict(self.axes), dict(self.variables)
        return made

    def within(self, alive: Where) -> Self:
        """The same with a stricter mask."""
        return self.inner(self.shape, both(self.alive, alive))

    def index(self, e: Index, where: Where = None) -> Numbers:
        """The value of an index; indices are loaded from tensors under the mask `where`, or at active places."""
        inside = self.alive if where is None else where
        return evaluate(e, partial(self._atom, inside))

    def _atom(self, inside: Where, a: Atom) -> Numbers:
        """The value of an atom under a mask."""
        if isinstance(a, Symbol):
            return self.symbols[a.name]
        if isinstance(a, Axis):
            if a.name not in self.axes:
                raise KernelFault(f"the axis {a.name} has no value yet")
            return self.axes[a.name]
        value = partial(self._atom, inside)
        if isinstance(a, Entry):
            at = np.asarray(evaluate(a.at, value))
            return _entries(a, at, inside)
        assert isinstance(a, Loaded)
        return self._looked_up(a, np.asarray(evaluate(a.at[0], value)), evaluate(a.extent, value), inside)

    def _looked_up(self, a: Loaded, at: Array, extent: Numbers, inside: Where) -> Array:
        """An index loaded from a tensor, counted from the end where negative."""
        got, _ = self.memory[a.source].read(at, inside, self.tasks)
        number = got.astype(np.int64)
        number = number if a.inside else np.where(number < 0, number + extent, number)
        outside = (number < 0) | (number >= extent)
        if np.any(outside if inside is None else outside & inside):
            raise KernelFault("an index is out of range")
        return np.where(outside, 0, number)

    def holds(self, guards: tuple[Guard, ...]) -> Where:
        """The mask of active places where all guards hold; each is evaluated only where the previous ones hold."""
        inside = self.alive
        for g in guards:
            i = self.index(g.index, inside)
            inside = both(inside, np.asarray((i >= 0) & (i < self.index(g.extent, inside))))
        return inside

    def scalar(self, x: Scalar) -> Array:
        """A value in its compute type."""
        if isinstance(x, Const):
            return np.asarray(x.value, computed(x.dtype))
        if isinstance(x, FromIndex):
            where = self.holds(x.guards)
            got = np.asarray(self.index(x.index, where))
            return converted(np.where(where, got, 0) if x.guards and where is not None else got, x.dtype)
        if isinstance(x, Load):
            return self._load(x)
        assert isinstance(x, Apply), "a kernel has ReduceLoops instead of Reduce"
        args = [self.scalar(a) for a in x.args]
        if x.fn == "cast":
            return converted(args[0], x.dtype)
        return np.asarray(FUNCTIONS[x.fn].numpy(*args)).astype(computed(x.dtype))

    def _load(self, x: Load) -> Array:
        if not x.index:
            if x.source not in self.variables:
                raise KernelFault(f"the variable {x.source} has no value yet")
            return self.variables[x.source]
        where = self.holds(x.guards)
        got, _ = self.memory[x.source].read(np.asarray(self.index(x.index[0], where)), where, self.tasks)
        if not x.guards:
            return got
        assert x.otherwise is not None
        return np.where(True if where is None else where, got, self.scalar(x.otherwise))


def _entries(a: Entry, at: Array, inside: Where) -> Array:
    outside = (at < 0) | (at >= len(a.table.values))
    if np.any(outside if inside is None else outside & inside):
        raise KernelFault(f"looks beside the {len(a.table.values)} entries of {a.table}")
    return np.asarray(a.table.values, np.int64)[np.where(outside, 0, at)]


def both(a: Where, b: Where) -> Where:
    """The conjunction of two masks."""
    return b if a is None else a if b is None else a & b
