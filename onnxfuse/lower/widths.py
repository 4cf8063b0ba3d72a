"""Index arithmetic that 64-bit integers do not hold: a kernel cannot do it, nor can the runtime hold such values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from onnxfuse.ir.compose import loads
from onnxfuse.ir.index import Atom, Axis, Common, Div, Entry, Index, Least, Loaded, Mod, Symbol, operands_of
from onnxfuse.ir.layout import Layout
from onnxfuse.lower.extents import polynomials
from onnxfuse.lower.lowered import Lowered

MOST = 1 << 60  # bytes of a value, and of the way to an element: offsets are 64-bit integers, and some are added
OPEN = 1 << 10  # what a symbolic extent counts for


def unheld(lowered: Lowered, layouts: Mapping[str, Layout]) -> str | None:
    """What 64-bit integers do not hold in a group: the size of a value, an index, or an offset; None if all fit.

    Sizes and indices without symbols are bounded exactly, up to terms that cancel.
    """
    shapes = {v: t.shape for v, t in lowered.types.items()} | {d.name: d.shape for d in lowered.definitions}
    width = {v: t.dtype.bytes for v, t in lowered.types.items()}
    width |= {d.name: d.value.dtype.bytes for d in lowered.definitions}
    for name, shape in shapes.items():
        if prod(map(bound, shape)) * width[name] > MOST:
            return f"{name} has more than 2**60 bytes"
    for e in polynomials(lowered, layouts):
        if _farthest(e) > MOST:
            return f"the index {e!r} may be beyond 2**60"
    for d in lowered.definitions:
        for n in loads(d.value):
            shape, steps = shapes[n.source], width[n.source]
            ways = (bound(i) * prod(map(bound, shape[at + 1 :])) for at, i in enumerate(n.index))
            if sum(ways) * steps > MOST:
                return f"an offset in {n.source} may be beyond 2**60 bytes"
    return None


@lru_cache(1 << 14)
def bound(e: Index) -> int:
    """The most that e can be, with either sign, at symbols of OPEN.

    >>> i, n = Axis("i", Index.of(10)), Symbol("n")
    >>> bound(Index.of(7) - 3 * Index.of(i)), bound(4 * Index.of(n))
    (37, 4096)
    """
    return sum(abs(c) * prod(map(_bound, mono)) for mono, c in e.terms)


def _bound(atom: Atom) -> int:
    match atom:
        case Symbol():
            return max(OPEN, atom.least) if atom.formula is None else bound(atom.formula)
        case Axis() | Loaded():
            return bound(atom.extent)
        case Div():
            return bound(atom.num) // max(atom.den.constant or 1, 1) + 1
        case Mod():
            return bound(atom.den)
        case Least() | Common():
            return max(bound(atom.one), bound(atom.two))
        case Entry():
            return max(map(abs, atom.table.values))


@lru_cache(1 << 14)
def _farthest(e: Index) -> int:
    """The most that e or a polynomial inside it can be, those of formulas too."""
    return max((bound(e), *(_farthest(part) for mono, _ in e.terms for atom in mono for part in _inside(atom))))


def _inside(atom: Atom) -> tuple[Index, ...]:
    return (atom.formula,) if isinstance(atom, Symbol) and atom.formula is not None else operands_of(atom)
