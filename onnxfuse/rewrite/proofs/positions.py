"""Integer tensors whose elements are affine functions of their positions (iota, Range), also after data movement.

Exporters build masks and position ids of them: Gathers with iota indices, comparisons that are always true.
"""

from __future__ import annotations

import numpy as np

from onnxfuse.ir.index import Atom, Axis, Index, Loaded, in_range, lower, never_below_zero, nonnegative, upper
from onnxfuse.ir.indexing import substitute, transform
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Load, Scalar
from onnxfuse.rewrite.mutable_graph import SMALL, Array, Miss, MutableGraph

_DEEPEST = 16  # most nodes that are followed from a value to its source
_LARGEST = 64 * SMALL  # largest constant, in elements, that is tested for being affine
FARTHEST = 1 << 40  # largest coefficient of a position
# Comparison operators as (i, j, n): true where operand i is at least operand j plus n.
_COMPARISONS = {"GreaterOrEqual": (0, 1, 0), "Greater": (0, 1, 1), "LessOrEqual": (1, 0, 0), "Less": (1, 0, 1)}

Place = tuple[Index, ...]


def element(work: MutableGraph, source: str, at: Place, depth: int = _DEEPEST) -> Index | None:
    """Element `at` of an integer tensor as a function of its position; None if it is not one."""
    constant = work.constants.get(source)
    if constant is not None:
        small = constant.dtype.kind == "i" and 0 < constant.size <= _LARGEST
        return _fitted(constant.load().astype(np.int64), at) if small else None
    if depth == 0 or source not in work.maker:
        return None
    try:
        meaning = work.definitions(work.maker[source])
    except Miss:
        return None
    own = [d for d in meaning if d.name == source]
    if len(meaning) != len(own):
        return None
    return _value(work, own[0].value, dict(zip(own[0].axes, at, strict=True)), depth)


def _value(work: MutableGraph, x: Scalar, at: dict[Axis, Index], depth: int) -> Index | None:
    while isinstance(x, Apply) and x.fn == "cast" and x.dtype.kind == "i" and x.args[0].dtype.kind == "i":
        x = x.args[0]
    if isinstance(x, Const) and x.dtype.kind == "i":
        return Index.of(int(x.value))
    if isinstance(x, FromIndex) and not x.guards:
        return substitute(x.index, at)
    if not isinstance(x, Load) or x.dtype.kind != "i":
        return None
    for g in x.guards:
        place, extent = substitute(g.index, at), substitute(g.extent, at)
        if _outside(place, extent):
            return None if x.otherwise is None else _value(work, x.otherwise, at, depth)
        if not in_range(place, extent):
            return None
    return element(work, x.source, tuple(substitute(i, at) for i in x.index), depth - 1)


def _outside(place: Index, extent: Index) -> bool:
    low, high = lower(place), upper(place)
    return (low is not None and nonnegative(low - extent)) or (high is not None and nonnegative(-high - 1))


def _fitted(array: Array, at: Place) -> Index | None:
    """The element as an affine function of its position, if all elements of the array are one; or None."""
    last = at[-1].constant if at else None
    if last is not None and 0 <= last < array.shape[-1]:
        return _fitted(array[..., last], at[:-1])
    first = int(array.reshape(-1)[0])
    steps = [int(np.take(array, 1, axis).reshape(-1)[0]) - first if n > 1 else 0 for axis, n in enumerate(array.shape)]
    if max(map(abs, (first, *steps))) > FARTHEST:
        return None
    want = np.full((), first, np.int64)
    for n, step in zip(array.shape, steps, strict=True):
        want = want[..., None] + np.arange(n) * step
    if not (array == want).all():
        return None
    value = Index.of(first)
    for i, step in zip(at, steps, strict=True):
        value = value + i * step
    return value


def located(work: MutableGraph, index: Place) -> Place:
    """An index whose loads from affine integer tensors are replaced by their formulas."""

    def spelled(atom: Atom) -> Index | None:
        if not isinstance(atom, Loaded):
            return None
        found = element(work, atom.source, tuple(transform(i, spelled) for i in atom.at))
        return found if found is not None and never_below_zero(found) else None  # negative ones count from the end

    return tuple(transform(i, spelled) for i in index)


def always_true(work: MutableGraph, v: str) -> bool:
    """Whether every element of a boolean tensor is known to be true."""
    if work.number(v) == 1.0:
        return True
    node = work.node(v)
    if node is None or node.op not in _COMPARISONS or not node.standard:
        return False
    try:
        (meaning,) = work.definitions(work.maker[v])
    except Miss:
        return False
    assert isinstance(meaning.value, Apply)
    own = {a: Index.of(a) for a in meaning.axes}
    sides = [_value(work, x, own, _DEEPEST) for x in meaning.value.args]
    i, j, apart = _COMPARISONS[node.op]
    more, less = sides[i], sides[j]
    gap = None if more is None or less is None else lower(more - less - apart)
    return gap is not None and nonnegative(gap)
