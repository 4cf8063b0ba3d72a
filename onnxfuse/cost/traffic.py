"""Bytes that each cache level of one core fetches for a phase: reuse is found from the loops around each access.

A loop whose body touches no more than a cache holds finds there what it touches again; a loop around that fetches it
anew. Footprints are spans of affine offsets, and never more than the buffer itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from onnxfuse.ir.index import Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient

LINE = 64  # bytes that come together
REUSABLE = 0.75  # share of a cache that keeps data until it is used again


@dataclass(frozen=True, slots=True)
class EnclosingLoop:
    """A loop around a statement: how often it runs, and by how much its axis grows each time."""

    number: int  # the same loop has the same number
    axis: Axis
    trips: float
    step: int = 1
    reach: float = 0.0  # values of the axis whose mean stands for them: all, or those of one thread


@dataclass(frozen=True, slots=True)
class Access:
    """Elements of a buffer touched at one place: `elements` there in every run of the loops around it."""

    buffer: str
    offset: Index  # in loop axes
    elements: float
    bytes: int  # of one element
    loops: tuple[EnclosingLoop, ...]
    stores: bool = False
    apart: int = 1  # distance from one of them to the next
    places: int = 1  # as many more at constant distances, of which the largest is
    spread: int = 0
    early: bool = False  # prefetched for another iteration: it takes room, and is fetched once for both

    def runs_with(self, run: EnclosingLoop) -> bool:
        """Whether other elements are touched in other iterations of a loop."""
        return run.axis in axes_of(self.offset)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes that one thread's share of a phase moves between a cache and what lies behind it, by buffer."""

    loads: Mapping[str, float]
    stores: Mapping[str, float]


@dataclass(slots=True)
class Visit:
    """Accesses that are made together, in the same loops and in such a `share` of their iterations."""

    accesses: tuple[Access, ...]  # without loops
    loops: tuple[EnclosingLoop, ...]
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Merged:
    """Accesses that count as one: of which visit each is, and its place in it; and as `Access` says it, how far apart.

    `offset` is that of the first element.
    """

    offset: Index
    members: tuple[tuple[int, int], ...]
    places: int
    spread: int


def fetched(accesses: Sequence[Access], sizes: Mapping[str, float], *capacities: float) -> tuple[Fetched, ...]:
    """What goes into and out of caches of these capacities in bytes. `sizes` are bytes of whole buffers.

    Accesses at constant distances from each other are one.
    """
    working: dict[tuple[int, ...], float] = {}
    found = [(a, _prefixes(a), _footprints(a, sizes[a.buffer])) for a in accesses]
    for _, keys, prints in found:
        for key, size in zip(keys, prints, strict=True):
            working[key] = working.get(key, 0.0) + size
    out = []
    for capacity in capacities:
        loads: dict[str, float] = {}
        stores: dict[str, float] = {}
        for a, keys, prints in found:
            if a.early:
                continue
            to = stores if a.stores else loads
            to[a.buffer] = to.get(a.buffer, 0.0) + _moved(a, keys, prints, working, capacity * REUSABLE)
        out.append(Fetched(loads, stores))
    return tuple(out)


def merged(visits: Sequence[Visit]) -> tuple[Merged, ...]:
    """Accesses of the same loops at constant distances from each other as one, such as the taps of a window."""
    found: dict[tuple[object, ...], tuple[dict[tuple[int, float], tuple[int, int]], set[int]]] = {}
    rests: list[Index] = []  # of offsets, without constants
    for at, visit in enumerate(visits):
        around = tuple(r.number for r in visit.loops)
        for place, a in enumerate(visit.accesses):
            constant = next((c for mono, c in a.offset.terms if not mono), 0)
            rest = a.offset - constant if constant else a.offset
            key = (a.buffer, around, rest, a.stores, a.early)
            if key not in found:
                found[key] = ({}, set())
                rests.append(rest)
            members, constants = found[key]
            members.setdefault((at, a.elements), (at, place))
            constants.add(constant)
    pairs = zip(rests, found.values(), strict=True)
    return tuple(Merged(rest + min(c), tuple(m.values()), len(c), max(c) - min(c)) for rest, (m, c) in pairs)


def largest(visits: Sequence[Visit], group: Merged) -> Access:
    """Of accesses that count as one, the first that touches the most elements, as all of them."""
    pairs = [(visits[at], visits[at].accesses[place]) for at, place in group.members]
    visit, a = max(pairs, key=lambda pair: pair[1].elements * pair[0].share)
    elements, loops = a.elements * visit.share, visit.loops
    return Access(
        a.buffer, group.offset, elements, a.bytes, loops, a.stores, a.apart, group.places, group.spread, a.early
    )


def spans_of(accesses: Sequence[Access], sizes: Mapping[str, float]) -> Mapping[str, float]:
    """Bytes from the first to the last element that one thread loads of each buffer, however many accesses load it."""
    ends: dict[str, tuple[float, float]] = {}
    for a in accesses:
        if not a.stores and not a.early:
            low, high = _ends(a, sizes[a.buffer])
            first, last = ends.get(a.buffer, (low, high))
            ends[a.buffer] = min(first, low), max(last, high)
    return {name: min(high - low, sizes[name]) for name, (low, high) in ends.items()}


def _ends(a: Access, size: float) -> tuple[float, float]:
    """Bytes of the first element and behind the last where loops begin at 0, of the whole buffer if unknown."""
    low = float(next((c for mono, c in a.offset.terms if not mono), 0))
    high = low + a.elements * a.apart + a.spread
    for run in filter(a.runs_with, a.loops):
        stride = coefficient(a.offset, run.axis)
        known = stride.constant if stride is not None else None
        if known is None:
            return 0.0, size
        far = known * run.step * max(run.trips - 1.0, 0.0)
        low, high = low + min(far, 0.0), high + max(far, 0.0)
    return low * a.bytes, high * a.bytes


def _prefixes(a: Access) -> list[tuple[int, ...]]:
    """The numbers of the loops around an access, down to each depth."""
    numbers = tuple(r.number for r in a.loops)
    return [numbers[:depth] for depth in range(len(numbers) + 1)]


def _footprints(a: Access, size: float) -> list[float]:
    """Bytes touched by the loops from each depth on; whole lines where neighbours are not touched too."""
    count, span, spans = a.elements * a.places, a.elements * a.apart + a.spread, 1.0
    dense = a.elements > 1 and a.apart * a.bytes < LINE
    out = [min(count * (a.bytes if dense else LINE), span * a.bytes, size)]
    for run in reversed(a.loops):
        if a.runs_with(run):
            stride, trips = coefficient(a.offset, run.axis), max(run.trips, 1.0)
            known = stride.constant if stride is not None else None
            dense = dense or known is None or abs(known) * run.step * a.bytes < LINE
            if known is None:  # as many spans as there are iterations, as far from each other as may be
                count = min(count, span * spans)
                spans *= trips if stride is not None else inf
            else:
                span += abs(known) * run.step * (trips - 1.0)
            count *= trips
        each = a.bytes if dense else LINE
        out.append(min(count * each, span * spans * a.bytes, size))
    return out[::-1]


def _moved(
    a: Access,
    keys: Sequence[tuple[int, ...]],
    prints: Sequence[float],
    working: Mapping[tuple[int, ...], float],
    capacity: float,
) -> float:
    """Bytes fetched for one access."""
    depth = next((d for d, key in enumerate(keys) if working[key] <= capacity), len(a.loops))
    moved = prints[max(depth - 1, 0)]  # from one iteration to the next, what both touch is still there
    for run in a.loops[: max(depth - 1, 0)]:
        moved *= max(run.trips, 1.0)
    return moved
