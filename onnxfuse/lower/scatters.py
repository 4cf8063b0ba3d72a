"""Recognition of scatters: reductions over all updates whose loaded destination is the element of the result.

The definition compares every destination with every element; the schedule makes one sequential pass over the updates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.ir.compose import free_axes
from onnxfuse.ir.index import Axis, Index, Loaded, atoms, axes_of
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Apply, FromIndex, Reduce, Scalar
from onnxfuse.ops.spec import Definition


@dataclass(frozen=True, slots=True)
class Scatter:
    """out[destination] = combine(out[destination], element) for all updates over `ranges`; `out` starts as `start`.

    `places` gives the destination's index along some axes of the result; along the others it is that of the update.
    """

    axes: tuple[Axis, ...]
    combine: str
    start: Scalar
    ranges: tuple[Axis, ...]
    places: tuple[tuple[Axis, Index], ...]
    element: Scalar


def scatter_of(d: Definition) -> Scatter | None:
    """The scatter that a definition computes, None otherwise: destination axes may only appear in its comparisons."""
    x, start = d.value, None
    if isinstance(x, Apply) and len(x.args) == 2 and isinstance(x.args[1], Reduce):
        start, x = x.args
    if not isinstance(x, Reduce) or len(x.body) != 1 or x.combine not in MONOIDS:
        return None
    body, (idle,) = x.body[0], MONOIDS[x.combine].init(x.dtype)
    if not isinstance(body, Apply) or body.fn != "select" or body.args[2] != idle:
        return None
    if start is not None and MONOIDS[x.combine].merge((start,), (x,)) != (d.value,):
        return None
    test, element, _ = body.args
    found = tuple(_places(test, d.axes))
    places = tuple((a, e) for a, e in found if a is not None)
    compared = {a for a, _ in places}
    looked_up = any(isinstance(atom, Loaded) for _, e in places for atom in atoms(e))
    mentioned = free_axes(element).union(*(axes_of(e) for _, e in places))
    if not looked_up or len(compared) != len(found) or compared & mentioned:
        return None
    return Scatter(d.axes, x.combine, idle if start is None else start, x.ranges, places, element)


def _places(test: Scalar, axes: tuple[Axis, ...]) -> Iterator[tuple[Axis | None, Index]]:
    """The conjuncts of a test as (axis, index) for `axis == index`; the axis is None for any other conjunct."""
    if isinstance(test, Apply) and test.fn == "and":
        for each in test.args:
            yield from _places(each, axes)
    elif isinstance(test, Apply) and test.fn == "equal" and all(isinstance(a, FromIndex) for a in test.args):
        at, place = (a.index for a in test.args if isinstance(a, FromIndex) and not a.guards)
        yield next((a for a in axes if place == Index.of(a)), None), at
    else:
        yield None, Index.of(0)
