"""The two stores of a scatter: that of an element as it is before all updates, and that of an update."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.dtype import I64
from onnxfuse.ir.index import ONE, ZERO, Index
from onnxfuse.ir.indexing import substitute
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import FromIndex, Load, Scalar
from onnxfuse.lower.scatters import Scatter
from onnxfuse.schedule.analysis.memory import Place, flat
from onnxfuse.schedule.nests.nest import Goal

Goals = tuple[Goal, Goal]


def goals_of(name: str, s: Scatter, places: Mapping[str, Place]) -> Goals:
    """The store of an initial element of the result, and the store of one update, whose value is its element alone."""
    there = dict(s.places)
    first = {a: ZERO for a in s.axes if a.extent == ONE}
    units = {a: zero for a, zero in first.items() if a not in there}
    place = places[name]
    here = place.offset(tuple(first.get(a, Index.of(a)) for a in s.axes))
    before = Goal(place.buffer, here, flat(substitute_axes(s.start, first), places))
    at = place.offset(tuple(units.get(a, substitute(there.get(a, Index.of(a)), units)) for a in s.axes))
    offset = flat(FromIndex(at, I64), places)
    assert isinstance(offset, FromIndex)
    return before, Goal(place.buffer, offset.index, flat(substitute_axes(s.element, units), places))


def landed(s: Scatter, buffer: str, offset: Index, element: Scalar) -> Scalar:
    """What an update makes of the element that lies where it is applied."""
    (value,) = MONOIDS[s.combine].merge((Load(buffer, (offset,), s.element.dtype),), (element,))
    return value
