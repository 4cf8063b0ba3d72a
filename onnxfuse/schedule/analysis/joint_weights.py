"""Constants that several contractions read in parts: what each reads is contiguous in the panels of all.

The taps of a transposed convolution are parts of its filters, one for each remainder of a place modulo the stride, and
have rows of k of their own; the gates of a recurrent layer, of which one waits for another, have columns of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, prod
from typing import Any

import numpy as np

from onnxfuse.ir.index import ZERO, Axis, Index
from onnxfuse.ir.indexing import coefficient, flatten, substitute
from onnxfuse.ir.layout import Layout, Permute, Reshape, Shape, Step, Take, panels
from onnxfuse.ir.scalar import Load
from onnxfuse.schedule.analysis.contract import Contracted, without_identities

_Places = np.ndarray[Any, np.dtype[np.int64]]  # elements of a constant, numbered row-major


@dataclass(frozen=True, slots=True)
class JointWeights:
    """A constant as a k x n matrix in which each contraction's part is a block.

    Its first row and column are those of `begins`, by the place of the part's first element in the constant.
    """

    steps: tuple[Step, ...]
    rows: int
    columns: int
    begins: Mapping[int, tuple[int, int]]

    def layout(self, shape: Shape, width: int, step: int) -> Layout | None:
        """In panels of `width` columns, `step` consecutive k interleaved; None if one would be of two parts."""
        if self.rows % step or any(row % step or column % width for row, column in self.begins.values()):
            return None
        return without_identities(Layout((*self.steps, *panels(self.rows, self.columns, width, step))), shape)

    def begin(self, c: Contracted, shape: Shape) -> tuple[int, int] | None:
        """The first row and column of a contraction's part; None if it is none of these."""
        place = _first(c, shape)
        return None if place is None else self.begins.get(place)


@dataclass(frozen=True, slots=True)
class _Part:
    """The places of the first element, and the distances of rows and of columns from it."""

    first: int
    rows: _Places
    columns: _Places

    @property
    def key(self) -> tuple[int, bytes, bytes]:
        """Equal for parts of the same elements in the same order."""
        return self.first, self.rows.tobytes(), self.columns.tobytes()


def joint_weights(parts: Sequence[Contracted], shape: Shape) -> JointWeights | None:
    """The matrix of a constant that these contractions read completely, each element once; else None.

    They have the same columns, which are an axis of the constant from end to end, or the same rows that are.
    """
    extents, read = tuple(e.constant or 0 for e in shape), [_part(c, shape) for c in parts]
    if not all(extents) or any(p is None for p in read):
        return None
    found = list({p.key: p for p in read if p is not None}.values())  # one may be read again, at another step
    by_rows = _joined([p.first + p.rows for p in found], [p.columns for p in found], extents)
    if by_rows is not None:
        steps, begins = by_rows
        return _of(steps, found, [(b, 0) for b in begins], (sum(len(p.rows) for p in found), len(found[0].columns)))
    by_columns = _joined([p.first + p.columns for p in found], [p.rows for p in found], extents)
    if by_columns is None:
        return None
    steps, begins = (*by_columns[0], Permute((1, 0))), by_columns[1]
    return _of(steps, found, [(0, b) for b in begins], (len(found[0].rows), sum(len(p.columns) for p in found)))


def _of(
    steps: tuple[Step, ...], parts: Sequence[_Part], begins: Sequence[tuple[int, int]], sizes: tuple[int, int]
) -> JointWeights:
    return JointWeights(steps, *sizes, {p.first: b for p, b in zip(parts, begins, strict=True)})


def _joined(
    lines: Sequence[_Places], across: Sequence[_Places], extents: tuple[int, ...]
) -> tuple[tuple[Step, ...], list[int]] | None:
    """Steps to the matrix of all lines, one part after the other, and the first line of each; None if there are none.

    All lines go across the constant along one of its axes, and there is one for each of its other elements.
    """
    every, (own, *others) = np.concatenate(lines), across
    dim = next((d for d, n in enumerate(extents) if np.array_equal(own, np.arange(n) * prod(extents[d + 1 :]))), None)
    if dim is None or any(not np.array_equal(own, x) for x in others) or len(every) * len(own) != prod(extents):
        return None
    places = np.unravel_index(every, extents)
    if len(np.unique(every)) < len(every) or np.any(places[dim]):
        return None
    # axes in the order in which the first part goes through them, so that many lines stay together
    walked = {d: np.flatnonzero(np.diff(places[d])) for d in range(len(extents)) if d != dim}
    inner = sorted(walked, key=lambda d: -int(walked[d][0] if len(walked[d]) else len(every)))
    order = np.ravel_multi_index(tuple(places[d] for d in inner), tuple(extents[d] for d in inner))
    begins = list(accumulate((len(x) for x in lines[:-1]), initial=0))
    return (Permute((*inner, dim)), *_in_order(order, len(own))), begins


def _in_order(order: _Places, columns: int) -> tuple[Step, ...]:
    """Steps that put the lines of a matrix in an order, in blocks as long as stay together."""
    ends = [int(i) + 1 for i in np.flatnonzero(np.diff(order) != 1)]
    block = gcd(len(order), *ends, *(int(order[i]) for i in (0, *ends)))
    taken = tuple(int(i) // block for i in order[::block])
    moved = (Reshape((Index.of(len(taken)), Index.of(block * columns))), Take(taken)) if len(taken) > 1 else ()
    return (*moved, Reshape((Index.of(len(order)), Index.of(columns))))


def _first(c: Contracted, shape: Shape) -> int | None:
    """The place of the first element that a contraction reads of its constant; None if it is not known."""
    assert isinstance(c.right, Load)
    start = dict.fromkeys((*c.ranges, *c.columns), ZERO)
    return substitute(flatten(c.right.index, shape), start).constant


def _part(c: Contracted, shape: Shape) -> _Part | None:
    """What a contraction reads of a constant; None if it is not known."""
    assert isinstance(c.right, Load)
    flat, first = flatten(c.right.index, shape), _first(c, shape)
    rows, columns = (_walked(flat, axes) for axes in (c.ranges, c.columns))
    if c.batch or c.right.guards or first is None or rows is None or columns is None:
        return None
    return _Part(first, rows, columns)


def _walked(flat: Index, axes: Sequence[Axis]) -> _Places | None:
    """The distances that an index goes along some axes, the last the fastest; None if one has no constant step."""
    made = np.zeros(1, np.int64)
    for a in axes:
        step, extent = coefficient(flat, a), a.extent.constant
        if step is None or step.constant is None or extent is None:
            return None
        made = (made[:, None] + step.constant * np.arange(extent)).ravel()
    return made
