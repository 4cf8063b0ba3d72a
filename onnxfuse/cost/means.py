"""Mean values of indices while a kernel runs: each loop at the mean of its axis, symbols at given values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from onnxfuse.ir.index import Atom, Axis, Common, Div, Entry, Index, Least, Mod, Symbol, axes_of
from onnxfuse.ir.indexing import substitute


class SymbolUnknown(Exception):
    """An extent whose value was not given."""


@dataclass(slots=True, kw_only=True)
class Means:
    """The means of the axes that are open, and what computed ones are made of."""

    symbols: Mapping[str, int]
    values: dict[Axis, float] = field(default_factory=dict)  # the mean of each axis
    bound: dict[Axis, Index] = field(default_factory=dict)

    def number(self, e: Index) -> float:
        """An index at the mean of all axes in it."""
        total: float = 0
        for mono, c in e.terms:
            part: float = c
            for atom in mono:
                part = part * self._atom(atom)
            total = total + part
        return total

    def _atom(self, atom: Atom) -> float:
        if isinstance(atom, Axis):
            return self.values[atom] if atom in self.values else self.number(atom.extent) / 2
        if isinstance(atom, Symbol):
            if atom.name not in self.symbols:
                raise SymbolUnknown(atom.name)
            return self.symbols[atom.name]
        if isinstance(atom, Div):
            num, den = self.number(atom.num), self.number(atom.den)
            return num // den if isinstance(num, int) and isinstance(den, int) else num / den
        if isinstance(atom, Mod):
            num, den = self.number(atom.num), self.number(atom.den)
            return num % den if isinstance(num, int) and isinstance(den, int) else (den - 1) / 2
        if isinstance(atom, (Least, Common)):
            return (min if isinstance(atom, Least) else max)(self.number(atom.one), self.number(atom.two))
        if isinstance(atom, Entry):
            return sum(atom.table.values) / max(len(atom.table.values), 1)
        return self.number(atom.extent) / 2

    def begins(self, axis: Axis, begin: Index, around: Collection[Axis]) -> None:
        """Count the axis of a loop from where it begins, if that depends on the axes of loops around it.

        What is touched in there is then seen to be another part of a buffer in each iteration of those.
        """
        first = self.whole(begin)
        if axes_of(first).isdisjoint(around):
            self.bound.pop(axis, None)
        else:
            self.bound[axis] = first + Index.of(axis)

    def whole(self, e: Index) -> Index:
        """An index in loop axes alone: bound ones are spelled out."""
        known = tuple((axis, self.bound[axis]) for axis in axes_of(e) if axis in self.bound)
        return substituted(e, known) if known else e


@lru_cache(1 << 14)
def substituted(e: Index, known: tuple[tuple[Axis, Index], ...]) -> Index:
    """An index with axes replaced: phases are counted once for each number of cores, and have the same indices."""
    return substitute(e, dict(known))
