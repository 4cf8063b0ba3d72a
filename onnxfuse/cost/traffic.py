"""How many bytes each cache of one core has to fetch for what a phase touches: reuse found from the loops around it.

A loop whose body touches no more than a cache holds finds there what it touches again; a loop around that fetches it
anew. Footprints are spans of affine offsets, and never more than the buffer itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.cost.count import Access
from onnxfuse.ir.index import Index
from onnxfuse.ir.indexing import coefficient

LINE = 64  # bytes that come together
HELD = 0.75  # share of a cache that holds what comes round again


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes that one thread's share of a phase moves between a cache and what lies behind it, by buffer."""

    loads: Mapping[str, float]
    stores: Mapping[str, float]


def fetched(accesses: Sequence[Access], sizes: Mapping[str, float], capacity: float) -> Fetched:
    """What goes into and out of a cache of `capacity` bytes. `sizes` are bytes of whole buffers."""
    found = _distinct(accesses)
    working: dict[tuple[int, ...], float] = {}
    inside = [_footprints(a, sizes[a.buffer]) for a in found]
    for a, prints in zip(found, inside, strict=True):
        for depth in range(len(a.loops) + 1):
            key = tuple(r.number for r in a.loops[:depth])
            working[key] = working.get(key, 0.0) + prints[depth]
    loads: dict[str, float] = {}
    stores: dict[str, float] = {}
    for a, prints in zip(found, inside, strict=True):
        moved = _moved(a, prints, working, capacity * HELD)
        to = stores if a.stores else loads
        to[a.buffer] = to.get(a.buffer, 0.0) + moved
    return Fetched(loads, stores)


def _distinct(accesses: Sequence[Access]) -> list[Access]:
    """Accesses of the same loops at constant distances from each other made one, such as the taps of a window."""
    found: dict[tuple[str, tuple[int, ...], Index, bool], tuple[Access, set[int]]] = {}
    for a in accesses:
        constant = next((c for mono, c in a.offset.terms if not mono), 0)
        key = (a.buffer, tuple(r.number for r in a.loops), a.offset - constant, a.stores)
        first, constants = found.setdefault(key, (a, set()))
        constants.add(constant)
        if a.elements > first.elements:
            found[key] = (a, constants)
    return [replace(a, places=len(c), spread=max(c) - min(c)) for a, c in found.values()]


def _footprints(a: Access, size: float) -> list[float]:
    """Bytes touched by the loops from each depth on; whole lines where neighbours are not touched too."""
    count, span, affine = a.elements * a.places, a.elements * a.apart + a.spread, True
    dense = a.elements > 1 and a.apart * a.bytes < LINE
    out = [min(count * (a.bytes if dense else LINE), span * a.bytes, size)]
    for run in reversed(a.loops):
        if a.runs_with(run):
            stride = coefficient(a.offset, run.axis)
            known = stride.constant if stride is not None else None
            count *= max(run.trips, 1.0)
            affine = affine and known is not None
            dense = dense or known is None or abs(known) * run.step * a.bytes < LINE
            span += abs(known or 0) * run.step * max(run.trips - 1.0, 0.0)
        each = a.bytes if dense else LINE
        out.append(min(count * each, span * a.bytes if affine else size, size))
    return out[::-1]


def _moved(a: Access, prints: Sequence[float], working: Mapping[tuple[int, ...], float], capacity: float) -> float:
    """Bytes fetched for one access."""
    numbers = [r.number for r in a.loops]
    depth = next((d for d in range(len(numbers) + 1) if working[tuple(numbers[:d])] <= capacity), len(numbers))
    moved = prints[max(depth - 1, 0)]  # from one iteration to the next, what both touch is still there
    for run in a.loops[: max(depth - 1, 0)]:
        moved *= max(run.trips, 1.0)
    return moved
