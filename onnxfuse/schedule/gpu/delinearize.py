"""Axes of producers split as their readers index them, so that rows that a reshape rearranges are still whole rows.

A reader at 7*a + b of a value of 56 elements, b being less than 7, reads by the digits of a number with the base 7.
Split into the same digits, the value's axis is two of them, and each is an axis of the reader.

A reader at (a + 3) % 56 reads rows that are rotated, as those of shifted windows. It is gone through in the order of
what it reads instead, and stores at (a + 53) % 56.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from onnxfuse.ir.affine import split_axes
from onnxfuse.ir.compose import loads, rebuild, substitute_axes
from onnxfuse.ir.index import ONE, Atom, Axis, Index, Mod, axes_of, divides, floor_div, modulo
from onnxfuse.ir.indexing import product, substitute, transform, unflatten
from onnxfuse.lower import has_reduction
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
    axes = _digits(at)
    whole = len(axes) > 1 and divides(product([a.extent for a in axes]), extent) is not None
    below = [product([a.extent for a in axes[i + 1 :]]) for i in range(len(axes))]
    return [stride for stride in reversed(below) if stride != ONE] if whole else []


def _number(at: Index, extent: Index) -> tuple[Axis, ...]:
    """The axes of an index that is a number of digits with all values below `extent`, the highest digit first."""
    axes = _digits(at)
    return axes if axes and product([a.extent for a in axes]) == extent else ()


def _digits(at: Index) -> tuple[Axis, ...]:
    """The axes of an index that is a number of digits and nothing else, the highest first; none for any other."""
    digits = []
    for mono, c in at.terms:
        if len(mono) != 1 or not isinstance(mono[0], Axis) or c < 1:
            return ()
        digits.append((c, mono[0]))
    digits.sort(key=lambda d: d[0])
    above = ONE
    for stride, axis in digits:
        if Index.of(stride) != above:
            return ()
        above = above * axis.extent
    return tuple(axis for _, axis in reversed(digits))


def _single_mod(e: Index) -> Mod | None:
    """The remainder that an index is."""
    found = e.terms[0][0] if len(e.terms) == 1 and e.terms[0][1] == 1 else ()
    return found[0] if len(found) == 1 and isinstance(found[0], Mod) else None


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


def in_order_read(nests: Sequence[Nest]) -> list[Nest]:
    """The nests with those that nobody reads in the order of the rows that they read, where these are rotated."""
    made = {n.name for n in nests}
    read = {load.source for n in nests for load in loads(n.value)}
    return [n if n.name in read or has_reduction(n.value) else _in_order(n, made) for n in nests]


def _in_order(nest: Nest, made: Container[str]) -> Nest:
    """A nest with its axes replaced by those of the rows that it reads of values that are `made` beside it."""
    read = [e for load in loads(nest.value) if load.source in made for e in load.index]
    values: dict[Axis, Index] = {}
    read_at: dict[Atom, Index] = {}
    for mod in dict.fromkeys(m for e in read if (m := _single_mod(e)) is not None):
        first = Index.of(sum(c for mono, c in mod.num.terms if not mono))
        digits = _number(mod.num - first, mod.den)
        if not digits or values.keys() & set(digits):
            continue
        at = Axis(f"{nest.name}.{len(read_at)}", mod.den)
        read_at[mod] = Index.of(at)
        back = modulo(Index.of(at) + (mod.den - modulo(first, mod.den)), mod.den)
        values |= dict(zip(digits, unflatten(back, tuple(a.extent for a in digits)), strict=True))
    if not values:
        return nest

    def put(e: Index) -> Index:
        return substitute(transform(e, read_at.get), values)

    axes = (*(axis for e in read_at.values() for axis in axes_of(e)), *(a for a in nest.axes if a not in values))
    value = rebuild(nest.value, lambda _: None, put)
    return replace(nest, axes=axes, dims=tuple(map(put, nest.dims)), value=value)
