"""Index expressions beside the integers they stand for: every operation is done by the laws and by NumPy at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from onnxfuse.ir.index import Atom, Axis, Entry, Index, IndexTable, Symbol, entry, floor_div, least, modulo
from onnxfuse.ir.indexing import evaluate

S, T = Symbol("s"), Symbol("t")
WORLDS: tuple[dict[Symbol, int], ...] = tuple({S: s, T: t} for s, t in ((1, 1), (1, 4), (3, 1), (2, 5), (7, 3)))


def number(e: Index, world: dict[Symbol, int]) -> int:
    """An extent in one world."""
    return int(evaluate(e, lambda a: world[a] if isinstance(a, Symbol) else None))


def grid(axes: Sequence[Axis], world: dict[Symbol, int]) -> dict[Axis, Any]:
    """All values of some axes, as arrays that broadcast against each other."""
    values = np.meshgrid(*(np.arange(number(a.extent, world)) for a in axes), indexing="ij", sparse=True)
    return dict(zip(axes, values, strict=True))


def value_of(e: Index, axes: Sequence[Axis], world: dict[Symbol, int]) -> Any:
    """An expression over all values of some axes, as Python's own integers would have it."""
    points = grid(axes, world)

    def value(atom: Atom) -> Any:
        if isinstance(atom, Entry):
            return np.asarray(atom.table.values)[evaluate(atom.at, value)]
        return world[atom] if isinstance(atom, Symbol) else points[atom]  # type: ignore[index]  # axes only

    return evaluate(e, value)


@dataclass(frozen=True)
class Twin:
    """An expression and its value in every world (each an array over the grid of AXES)."""

    index: Index
    values: tuple[Any, ...] = field(repr=False)

    def apply(self, law: Callable[..., Index], plain: Callable[..., Any], *others: Twin) -> Twin:
        """The same operation on both sides."""
        rows = zip(self.values, *(o.values for o in others), strict=True)
        return Twin(law(self.index, *(o.index for o in others)), tuple(plain(*row) for row in rows))

    def __add__(self, other: Twin) -> Twin:
        return self.apply(lambda a, b: a + b, lambda a, b: a + b, other)

    def __sub__(self, other: Twin) -> Twin:
        return self.apply(lambda a, b: a - b, lambda a, b: a - b, other)

    def __mul__(self, other: Twin) -> Twin:
        return self.apply(lambda a, b: a * b, lambda a, b: a * b, other)

    def __floordiv__(self, other: Twin) -> Twin:
        return self.apply(floor_div, lambda a, b: a // b, other)

    def __mod__(self, other: Twin) -> Twin:
        return self.apply(modulo, lambda a, b: a % b, other)

    def least(self, other: Twin) -> Twin:
        return self.apply(least, np.minimum, other)

    def entry(self, table: IndexTable) -> Twin:
        """The table's integer at the remainder of this by its length."""
        at = self % twin(len(table.values))
        return at.apply(lambda e: entry(table, e), lambda e: np.asarray(table.values)[e])

    def check(self) -> None:
        """Both sides agree everywhere."""
        for world, want in zip(WORLDS, self.values, strict=True):
            got = value_of(self.index, AXES, world)
            assert np.array_equal(
                np.broadcast_to(got, _SHAPES[id(world)]), np.broadcast_to(want, _SHAPES[id(world)])
            ), f"{self.index!r} where {world}"


def _of(e: Index | Atom | int) -> Twin:
    index = Index.of(e)
    return Twin(index, tuple(value_of(index, AXES, world) for world in WORLDS))


AXES: tuple[Axis, ...] = (
    Axis("i", Index.of(6)),
    Axis("j", Index.of(S)),
    Axis("k", Index.of(T) * 2),
    Axis("l", Index.of(S) + T),
)
_SHAPES = {id(world): tuple(number(a.extent, world) for a in AXES) for world in WORLDS}
TABLES = (IndexTable((0, 1, 1, 2, 4)), IndexTable((3, -2, 0)), IndexTable((5, 5)))
LEAVES: tuple[Twin, ...] = tuple(_of(a) for a in (*AXES, S, T))


def twin(e: Index | Atom | int) -> Twin:
    """The twin of an expression that needs no law."""
    return _of(e)


@st.composite
def divisors(draw: st.DrawFn) -> Twin:
    """What may divide: a positive integer times symbols, or now and then a sum of symbols."""
    out = twin(draw(st.sampled_from((1, 2, 3, 4, 6, 12))))
    for symbol in draw(st.lists(st.sampled_from((S, T)), max_size=2)):
        out = out * twin(symbol)
    if draw(st.integers(0, 4)) == 0:
        out = out + twin(draw(st.sampled_from((S, T, 1))))
    return out


@st.composite
def twins(draw: st.DrawFn, size: int = 8) -> Twin:
    """A random expression of about `size` operations over AXES and symbols, with offsets of either sign."""
    pool: list[Twin] = [draw(st.sampled_from(LEAVES))]
    for _ in range(draw(st.integers(1, size))):
        left, right = draw(st.sampled_from(pool)), draw(st.sampled_from((*LEAVES, *pool)))
        kind = draw(st.integers(0, 8))
        if kind <= 1:
            pool.append(left + right * twin(draw(st.integers(-13, 13))))
        elif kind == 2:
            pool.append(left * draw(divisors()) + right)
        elif kind == 3:
            pool.append(left + twin(draw(st.integers(-20, 20))))
        elif kind == 4:
            pool.append(left // draw(divisors()))
        elif kind == 5:
            pool.append(left % draw(divisors()))
        elif kind == 6:
            pool.append(left.least(right * twin(draw(st.sampled_from((-2, -1, 1, 3))))))
        elif kind == 7:
            pool.append(left.entry(draw(st.sampled_from(TABLES))))
        else:
            d = draw(divisors())
            pool.append(d * (left // d) + left % d)
    return pool[-1]
