"""Layouts of tensors in memory: a short list of invertible steps from logical to storage order.

The same steps pack a constant (`pack`), map a logical index to a storage index (`storage_index`) and give the standard
operators by which a function body restores the logical order (`undone`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfuse.ir.index import ZERO, Axis, Index, axes_of, divides
from onnxfuse.ir.indexing import flatten, product, unflatten

Shape = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Permute:
    """Axis i of the result is axis perm[i]."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    """Another shape in the same row-major order."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class PadHigh:
    """Zero padding at the end of each axis."""

    extra: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Take:
    """Element i along the first axis is that at order[i]; each is taken once."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WithSums:
    """8-bit integers (panel, group, column, 4); the 32-bit sums of a panel's columns follow its groups."""


Step = Permute | Reshape | PadHigh | Take | WithSums
_SUMS = PadHigh((0, 1, 0, 0))  # what WithSums does to shapes


@dataclass(frozen=True, slots=True)
class Layout:
    """Steps from logical to storage order; no steps is plain row-major order."""

    steps: tuple[Step, ...] = ()

    def then(self, *steps: Step) -> Layout:
        """This layout followed by more steps."""
        return Layout(self.steps + steps)

    def shape(self, logical: Shape) -> Shape:
        """Shape in storage."""
        for step in self.steps:
            logical = _step_shape(step, logical)
        return logical

    def storage_index(self, index: tuple[Index, ...], logical: Shape) -> tuple[Index, ...]:
        """The storage index of a logical index."""
        for step in self.steps:
            if isinstance(step, Permute):
                index = tuple(index[p] for p in step.perm)
            elif isinstance(step, Reshape):
                index = unflatten(flatten(index, logical), step.shape)
            else:
                assert not isinstance(step, Take), "layout: elements in a table's order have no index"
            logical = _step_shape(step, logical)
        return index

    def pack(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """An array of static shape in storage order."""
        for step in self.steps:
            if isinstance(step, Permute):
                array = array.transpose(step.perm)
            elif isinstance(step, Reshape):
                array = array.reshape([_static(e) for e in step.shape])
            elif isinstance(step, Take):
                array = array[list(step.order)]
            elif isinstance(step, WithSums):
                array = _with_sums(array)
            else:
                array = np.pad(array, [(0, e) for e in step.extra])
        return np.ascontiguousarray(array)

    def undone(self, logical: Shape) -> tuple[tuple[Step, Shape], ...]:
        """Steps from storage back to logical order, each with the shape of its result; PadHigh means: slice off."""
        shapes = [logical]
        for step in self.steps:
            shapes.append(_step_shape(step, shapes[-1]))
        back: list[tuple[Step, Shape]] = []
        for step, before in zip(reversed(self.steps), reversed(shapes[:-1]), strict=True):
            if isinstance(step, Permute):
                back.append((Permute(tuple(int(i) for i in np.argsort(step.perm))), before))
            elif isinstance(step, Reshape):
                back.append((Reshape(before), before))
            elif isinstance(step, Take):
                back.append((Take(tuple(int(i) for i in np.argsort(step.order))), before))
            elif isinstance(step, WithSums):
                back.append((_SUMS, before))
            else:
                back.append((step, before))
        return tuple(back)


PLAIN = Layout()


def contiguous_along(axis: Axis, index: Shape, shape: Shape) -> Layout | None:
    """The layout in which the elements at `index` of a tensor are contiguous along an axis.

    None where they are already, or where the axis appears in more than one place.

    >>> c, k = Axis("c", Index.of(8)), Axis("k", Index.of(3))
    >>> contiguous_along(c, (Index.of(c), Index.of(k)), (c.extent, k.extent))
    Layout(steps=(Permute(perm=(1, 0)),))
    """
    dims = [i for i, e in enumerate(index) if axis in axes_of(e)]
    if len(dims) != 1 or dims[0] == len(index) - 1:
        return None
    (at,) = dims
    steps: tuple[Step, ...] = ()
    rank, rest = len(shape), index[at] - axis
    if rest != ZERO:
        blocks = divides(axis.extent, shape[at])
        if blocks is None or divides(axis.extent, rest) is None:
            return None
        steps = (Reshape((*shape[:at], blocks, axis.extent, *shape[at + 1 :])),)
        rank, at = rank + 1, at + 1
    return Layout((*steps, Permute((*(i for i in range(rank) if i != at), at))))


def channels_last(rank: int) -> Layout:
    """N, C, spatial... stored as N, spatial..., C."""
    return Layout((Permute((0, *range(2, rank), 1)),))


def panels(rows: int, columns: int, width: int, step: int = 1, matrices: int = 1) -> tuple[Step, ...]:
    """Steps that store a rows x columns matrix as (panel, row, column in panel), the last panel padded with zeros.

    With a `step` above 1, which divides the rows, rows are interleaved: (panel, row / step, column, row % step).
    Several `matrices`, one below the other, are stored one behind the other.
    """
    extra = -columns % width
    count = (columns + extra) // width
    pad = (PadHigh((0, extra)),) if extra else ()
    lead = (matrices,) if matrices > 1 else ()
    apart, order = (
        ((rows, count, width), (1, 0, 2)) if step == 1 else ((rows // step, step, count, width), (2, 0, 3, 1))
    )
    perm = (*range(len(lead)), *(len(lead) + i for i in order))
    return (*pad, Reshape(tuple(map(Index.of, (*lead, *apart)))), Permute(perm))


def code_panels(segments: int, length: int, columns: int, width: int) -> tuple[Step, ...]:
    """Steps that store (segments * length) x columns 8-bit integers as (panel, group of 4 rows, column, row in group).

    The last group of each segment and the last panel are padded with zeros; sums of columns follow.
    """
    rows, count = length + -length % 4, columns + -columns % width
    pad = PadHigh((0, rows - length, count - columns))
    apart = (segments * rows // 4, 4, count // width, width)
    return (
        *((Reshape((Index.of(segments), Index.of(length), Index.of(columns))), pad) if any(pad.extra) else ()),
        Reshape(tuple(map(Index.of, apart))),
        Permute((2, 0, 3, 1)),
        WithSums(),
    )


def _with_sums(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    sums = codes.sum(axis=(1, 3), dtype=np.int32)[:, None, :, None]
    return np.concatenate([codes, sums.astype("<i4").view(codes.dtype)], axis=1)


def _step_shape(step: Step, shape: Shape) -> Shape:
    if isinstance(step, Permute):
        return tuple(shape[p] for p in step.perm)
    if isinstance(step, Reshape):
        assert product(step.shape) == product(shape), f"layout: {shape} is not {step.shape}"
        return step.shape
    if isinstance(step, Take):
        assert shape[0] == Index.of(len(step.order)), f"layout: {step} of {shape}"
        return shape
    step = _SUMS if isinstance(step, WithSums) else step
    return tuple(e + x for e, x in zip(shape, step.extra, strict=True))


def _static(e: Index) -> int:
    value = e.constant
    assert value is not None, "layout: a packed tensor has a static shape"
    return value
