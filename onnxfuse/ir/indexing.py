"""Traversal, substitution, evaluation and linearization of `Index`: everything that is not its algebra."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, assert_never

import numpy as np

from onnxfuse.ir.index import (
    ONE,
    ZERO,
    Atom,
    Axis,
    Common,
    Div,
    Entry,
    Index,
    Least,
    Loaded,
    Mod,
    Monomial,
    Symbol,
    atoms,
    axes_of,
    collect,
    common,
    divides,
    entry,
    floor_div,
    in_range,
    least,
    lower,
    modulo,
    operands_of,
    upper,
)

WIDEST = 16  # lanes of a vector, at most


def transform(e: Index, replace: Callable[[Atom], Index | None]) -> Index:
    """e with atoms replaced where `replace` gives a value; enclosing atoms are rebuilt and simplified."""
    terms: list[tuple[Monomial, int]] = []
    changed = False
    for mono, c in e.terms:
        new = [_transformed(atom, replace) for atom in mono]
        if any(each is not None for each in new):
            changed = True
            part = Index.of(c)
            for atom, each in zip(mono, new, strict=True):
                part = part * (each if each is not None else Index.of(atom))
            terms += part.terms
        else:
            terms.append((mono, c))
    return collect(terms) if changed else e


def _transformed(atom: Atom, replace: Callable[[Atom], Index | None]) -> Index | None:
    """The replacement of an atom; None where it is unchanged."""
    new = replace(atom)
    if new is not None:
        return new
    parts = (*operands_of(atom), atom.extent) if isinstance(atom, Loaded) else operands_of(atom)
    made = [transform(part, replace) for part in parts]
    if all(one is other for one, other in zip(parts, made, strict=True)):
        return None
    return _REMADE[type(atom)](atom, *made)


_REMADE: dict[type, Callable[..., Index]] = {
    Div: lambda _, num, den: floor_div(num, den),
    Mod: lambda _, num, den: modulo(num, den),
    Least: lambda _, one, two: least(one, two),
    Common: lambda _, one, two: common(one, two),
    Entry: lambda atom, at: entry(atom.table, at),
    Loaded: lambda atom, *parts: Index.of(Loaded(atom.source, parts[:-1], parts[-1], atom.inside)),
}


def substitute(e: Index, values: Mapping[Axis, Index]) -> Index:
    """e with axes replaced."""
    found = tuple((a, values[a]) for a in axes_of(e) if a in values)
    return _substituted(e, found) if found else e


@lru_cache(1 << 14)
def _substituted(e: Index, values: tuple[tuple[Axis, Index], ...]) -> Index:
    """e with these axes of it replaced."""
    new: dict[Atom, Index] = dict(values)
    return transform(e, new.get)


@lru_cache(1 << 14)
def coefficient(e: Index, axis: Axis) -> Index | None:
    """The stride of axis in e when e is affine in it (0 when it is absent), else None."""
    stride = ZERO
    for mono, c in e.terms:
        if axis in mono:
            left = list(mono)
            left.remove(axis)
            rest = Index(((tuple(left), c),))
            if axis in axes_of(rest):
                return None
            stride = stride + rest
        elif any(axis in axes_of(Index.of(a)) for a in mono if not isinstance(a, (Axis, Symbol))):
            return None
    return stride


def most_step(e: Index, axis: Axis) -> int | None:
    """How far an index moves at most from one value of axis to the next; None if it is not made of affine pieces.

    >>> a = Axis("a", Index.of(9))
    >>> most_step(least(Index.of(a) - 2, 2 - Index.of(a)), a)
    1
    """
    most = 0
    for mono, c in e.terms:
        if axis not in axes_of(Index(((mono, c),))):
            continue
        match mono:
            case (Axis(),):
                step: int | None = 1
            case (Least(one=one, two=two),):
                steps = most_step(one, axis), most_step(two, axis)
                step = None if steps[0] is None or steps[1] is None else max(steps[0], steps[1])
            case _:
                step = None
        if step is None:
            return None
        most += abs(c) * step
    return most


def reach(e: Index, axis: Axis) -> tuple[int, int] | None:
    """The least and the greatest that an index is where axis is 0, as a window's is by its taps; None if not known.

    >>> y, tap = Axis("y", Index.of(9)), Axis("t", Index.of(3))
    >>> reach(2 * Index.of(y) + Index.of(tap) - 1, y)
    (-1, 1)
    """
    rest = substitute(e, {axis: ZERO})
    shift = next((c for mono, c in rest.terms if not mono), 0)
    low, high = lower(rest - shift), upper(rest - shift)
    if low is None or high is None or low.constant is None or high.constant is None:
        return None
    return low.constant + shift, high.constant + shift


def grouped(e: Index, axis: Axis) -> tuple[int, Index] | None:
    """(n, i) for e = n * (axis // n) + i: element i of the current group of n iterations; None for other indices.

    The size of a group is a multiple or a divisor of the lanes of any machine.

    >>> c = Axis("c", Index.of(32))
    >>> grouped(4 * floor_div(Index.of(c), Index.of(4)) + 71, c)
    (4, 3)
    """
    for mono, n in e.terms:
        atom = mono[0] if len(mono) == 1 else None
        fits = n > 0 and (n % WIDEST == 0 or WIDEST % n == 0)
        if fits and isinstance(atom, Div) and atom.num == Index.of(axis) and atom.den == Index.of(n):
            inner = Index(tuple((m, c if m else c % n) for m, c in e.terms if c % n))
            return (n, inner) if axis not in axes_of(e - Index.of(atom) * n) and in_range(inner, Index.of(n)) else None
    return None


def evaluate(e: Index, value: Callable[[Atom], Any]) -> Any:
    """e as a number or NumPy array; `value` gives that of axes, symbols without formula, entries and loaded indices."""
    total: Any = None
    for mono, c in e.terms:
        part: Any = None
        for atom in mono:
            factor = _factor(atom, value)
            part = factor if part is None else part * factor
        part = c if part is None else part if c == 1 else part * c
        total = part if total is None else total + part
    return 0 if total is None else total


def _factor(atom: Atom, value: Callable[[Atom], Any]) -> Any:
    """The same of an atom."""
    match atom:
        case Axis() | Entry() | Loaded():
            return value(atom)
        case Symbol():
            return value(atom) if atom.formula is None else evaluate(atom.formula, value)
        case Div():
            return evaluate(atom.num, value) // evaluate(atom.den, value)
        case Mod():
            return evaluate(atom.num, value) % evaluate(atom.den, value)
        case Least():
            return np.minimum(evaluate(atom.one, value), evaluate(atom.two, value))
        case Common():
            one, two = evaluate(atom.one, value), evaluate(atom.two, value)
            return np.where(two == 1, one, two)
        case _:
            assert_never(atom)


def product(extents: tuple[Index, ...] | list[Index]) -> Index:
    """The number of elements of a shape."""
    total = ONE
    for e in extents:
        total = total * e
    return total


@lru_cache(1 << 14)
def flatten(indices: tuple[Index, ...], shape: tuple[Index, ...]) -> Index:
    """The row-major offset of a multi-index."""
    flat = ZERO
    for i, extent in zip(indices, shape, strict=True):
        flat = flat * extent + i
    return flat


def unflatten(flat: Index, shape: tuple[Index, ...]) -> tuple[Index, ...]:
    """The multi-index of a row-major offset that lies inside shape (zeros where shape has no elements)."""
    out: list[Index] = []
    stride = product(shape)
    if stride == ZERO:
        return (ZERO,) * len(shape)
    for at, extent in enumerate(shape):
        above = stride
        stride = quotient_of(above, extent)
        digit = floor_div(flat, stride)
        out.append(digit if at == 0 else modulo(digit, extent))
    return tuple(out)


def quotient_of(whole: Index, part: Index) -> Index:
    """whole / part for a product that contains part as a factor (its value is only used in nonempty shapes)."""
    if part == ZERO:
        return ONE
    q = divides(part, whole)
    return q if q is not None else floor_div(whole, part)


@lru_cache(1 << 14)
def looked_up(e: Index) -> frozenset[str]:
    """The tensors from which e loads indices."""
    return frozenset(a.source for a in atoms(e) if isinstance(a, Loaded))
