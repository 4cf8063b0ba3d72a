"""Axes of producers split as their readers index them, so that rows that a reshape rearranges are still whole rows.

A reader at 7*a + b of a value of 56 elements, b being less than 7, reads by the digits of a number with the base 7.
Split into the same digits, the value's axis is two of them, and each is an axis of the reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.ir.affine import split_axes
from onnxfuse.ir.compose import loads, substitute_axes
from onnxfuse.ir.index import ONE, Axis, Index, divides, floor_div, modulo
from onnxfuse.ir.indexing import substitute
from onnxfuse.schedule.analysis.memory import Nest


def split_as_read(nests: Sequence[Nest]) -> list[Nest]:
    """The nests of a group in their order, each split for all of those behind it that read it."""
    made = {n.name: n for n in nests}
    for reader in reversed(nests):
        here = made[reader.name]
        wanted: dict[str, list[Index]] = {}
        for load in loads(here.value):
            producer = made.get(load.source)
            if producer is not None and producer.name != here.name:
                wanted.setdefault(load.source, []).extend(_cuts(producer, load.index))
        for name, cuts in wanted.items():
            made[name] = _split(made[name], cuts)
    return [made[n.name] for n in nests]


def _cuts(producer: Nest, index: tuple[Index, ...]) -> list[Index]:
    """Quotients and remainders of a value's axes at which an index goes from one of its digits to the next."""
    found: list[Index] = []
    for axis, at in producer.digits_at(index).items():
        for stride in _strides(at, axis.extent):
            found += [floor_div(Index.of(axis), stride), modulo(Index.of(axis), stride)]
    return found


def _strides(at: Index, extent: Index) -> list[Index]:
    """The bases of the digits of an index, where it is a number of several digits and nothing else."""
    digits = []
    for mono, c in at.terms:
        if len(mono) != 1 or not isinstance(mono[0], Axis) or c < 1:
            return []
        digits.append((c, mono[0]))
    digits.sort(key=lambda d: d[0])
    above = ONE
    for stride, axis in digits:
        if Index.of(stride) != above:
            return []
        above = above * axis.extent
    whole = len(digits) > 1 and divides(above, extent) is not None
    return [Index.of(stride) for stride, _ in digits if stride > 1] if whole else []


def _split(nest: Nest, cuts: Sequence[Index]) -> Nest:
    """A nest with its axes split at quotients and remainders of them."""
    axes, values = split_axes(nest.axes, cuts)
    if not values:
        return nest
    return replace(
        nest,
        axes=axes,
        dims=tuple(substitute(e, values) for e in nest.dims),
        value=substitute_axes(nest.value, values),
    )
