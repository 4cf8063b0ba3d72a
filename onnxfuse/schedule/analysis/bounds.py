"""No read outside a tensor: each index is proven inside, guarded, or made a condition that is checked at launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from onnxfuse.ir.compose import rebuild, walk
from onnxfuse.ir.extents import never_empty, sizing
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import (
    ZERO,
    Atom,
    Axis,
    Div,
    Entry,
    Index,
    Least,
    Loaded,
    Mod,
    Symbol,
    atoms,
    axes_of,
    divides,
    floor_div,
    in_range,
    lower,
    modulo,
    never_below_zero,
    nonnegative,
    symbols_of,
    upper,
)
from onnxfuse.ir.indexing import coefficient, product, substitute, transform
from onnxfuse.ir.scalar import FromIndex, Guard, Load, Scalar, number
from onnxfuse.lower.scatters import scatter_of
from onnxfuse.ops.spec import Definition

Shape = tuple[Index, ...]


def checked(
    definitions: Sequence[Definition], shapes: Mapping[str, Shape]
) -> tuple[tuple[Definition, ...], tuple[Index, ...]] | Decision:
    """Definitions without out-of-bounds reads, and polynomials over symbols that must not be negative at launch.

    A load whose index no such polynomial bounds gets a guard. The semantics of operators stay inside of their inputs,
    so that the guard holds wherever the original runs. Returns a refusal where neither is possible.
    """
    made = tuple(replace(d, value=_guarded(d.value, shapes)) for d in definitions)
    found: dict[Index, None] = {}
    for d in made:
        for source, index, guards in _reads(d):
            for at, length in zip(index, shapes[source] if isinstance(source, str) else source, strict=True):
                found |= dict.fromkeys(_not_empty([*d.axes, *axes_of(at)], guards, length))
                e, extent, known = _entered(at, length, guards)
                if _inside(e, extent, known):
                    continue
                high = _highest(e)
                if high is None:
                    said = f"it is not known whether index {e!r} is within {extent!r}"
                    return Decision("E-SHAPE-UNKNOWN", (d.name,), said, sizing((e, extent)))
                if ((extent - 1 - high).constant or 0) < 0:
                    if not known and all(isinstance(a, (Axis, Symbol)) for a in atoms(e)):  # then the bound is reached
                        return Decision("E-INVALID", (d.name,), f"index {e!r} reaches beyond {extent!r}")
                    said = f"it is not known whether index {e!r} stays below {extent!r}"
                    return Decision("E-SHAPE-UNKNOWN", (d.name,), said, sizing((e, extent)))
                found[extent - 1 - high] = None
        found |= dict.fromkeys((*_filled_tables(d), *_divisible(d)))
    return made, tuple(found)


def _not_empty(axes: Iterable[Axis], guards: tuple[Guard, ...], extent: Index) -> Iterator[Index]:
    """An expression that is negative where an extent is 0 and none of the loops and guards around its use is empty.

    Most axes of symbolic extent are read in a loop over that extent, and need none.
    """
    loops = [*(a.extent for a in dict.fromkeys(axes)), *(g.extent for g in guards)]
    if not never_empty(extent) and not _entered_by(loops, extent):
        yield product([*loops, extent - 1])


def _entered_by(loops: Sequence[Index], extent: Index) -> bool:
    """Whether loops over these extents are only entered where this extent is at least 1, factor by factor."""
    factors = [Index.of(a) for a in extent.terms[0][0]] if len(extent.terms) == 1 else [extent]
    return all(never_empty(n) or any(divides(n, loop) is not None for loop in loops) for n in factors)


def _highest(e: Index) -> Index | None:
    """An upper bound of an index that is known not to be negative; None where either is not known."""
    return upper(e) if never_below_zero(e) else None


def _guarded(x: Scalar, shapes: Mapping[str, Shape]) -> Scalar:
    """x with guards on loads whose indices have no known bounds."""

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, FromIndex) and (open_ := _open(node, shapes)):
            return replace(node, guards=(*node.guards, *open_))
        if not isinstance(node, Load) or not node.index or (open_ := _open(node, shapes)) == ():
            return None
        otherwise = number(0, node.dtype) if node.otherwise is None else rebuild(node.otherwise, go, lambda i: i)
        return replace(node, guards=(*node.guards, *open_), otherwise=otherwise)

    return rebuild(x, go, lambda i: i)


def _open(node: Load | FromIndex, shapes: Mapping[str, Shape]) -> tuple[Guard, ...]:
    """Guards for indices of an element, and of its lookups, that neither a polynomial nor other guards prove in bounds.

    Where there are guards, the upper bound of an index is no condition for the launch: they may exclude the iterations
    that reach it. Guards of lookups come first.
    """
    index = node.index if isinstance(node, Load) else (node.index,)
    reads = [(at, shapes[of] if isinstance(of, str) else of) for of, at, _ in _lookups(index, node.guards)][::-1]
    if isinstance(node, Load):
        reads.append((node.index, shapes[node.source]))
    found: dict[Guard, None] = {}
    for place, extent in (pair for at, shape in reads for pair in zip(at, shape, strict=True)):
        e, n, guards = _entered(place, extent, node.guards)
        if (guards or _highest(e) is None) and not _inside(e, n, guards):
            found[Guard(place, extent)] = None
    return tuple(found)


def _divisible(d: Definition) -> Iterator[Index]:
    """For each symbolic divisor: an expression that is negative where the divisor is 0 and a read happens."""
    for index, guards in _indices(d):
        for atom in (a for e in index for a in atoms(e) if isinstance(a, (Div, Mod)) and a.den.constant is None):
            yield from _not_empty([*d.axes, *axes_of(atom.num)], guards, atom.den)


def _filled_tables(d: Definition) -> Iterator[Index]:
    """For each looked-up index: an expression that is negative where its table is empty and a lookup happens.

    A scatter looks up the places of all that lands, also where the result has none.
    """
    scatter = scatter_of(d)
    landed = [a for a, _ in scatter.places] if scatter is not None else []
    outer = [a for a in d.axes if a not in landed]
    for index, guards in _indices(d):
        for atom in (a for e in index for a in atoms(e) if isinstance(a, Loaded)):
            yield from _not_empty([*outer, *(a for e in atom.at for a in axes_of(e))], guards, atom.extent)


def _entered(e: Index, extent: Index, guards: tuple[Guard, ...]) -> tuple[Index, Index, tuple[Guard, ...]]:
    """Index, extent and guards under the assumption that extents are at least 1: an empty tensor is never read."""
    none = {s: Index.of(replace(s, least=1)) for s in symbols_of(extent) if s.least == 0 and Index.of(s) == extent}
    if not none:
        return e, extent, guards

    def entered(atom: Atom) -> Index | None:
        if isinstance(atom, Axis):  # runs as far as the extent says, which is the same symbol
            return Index.of(replace(atom, extent=known(atom.extent)))
        return none.get(atom) if isinstance(atom, Symbol) else None

    def known(i: Index) -> Index:
        return transform(i, entered)

    return known(e), known(extent), tuple(Guard(known(g.index), known(g.extent)) for g in guards)


def _inside(e: Index, extent: Index, guards: tuple[Guard, ...]) -> bool:
    """Whether 0 <= e < extent is proven where these guards hold."""
    if in_range(e, extent) or _below(e, extent) or _between_ends(e, extent):
        return True
    names = [f"%guard{len(guards)}_{at}" for at in range(len(guards))]  # one for each guard and depth
    bounded = ((_bounded(e, g, names[at]), guards[:at] + guards[at + 1 :]) for at, g in enumerate(guards))
    return any(made is not None and _inside(made, extent, rest) for made, rest in bounded)


def _between_ends(e: Index, extent: Index) -> bool:
    """Whether 0 <= e < extent at both ends of two axes that e has a product of: it is linear in each of them."""
    pair = next((m for m, _ in e.terms if len(set(m)) == len(m) > 1 and all(isinstance(a, Axis) for a in m)), ())
    axis = next((a for a in pair if isinstance(a, Axis) and coefficient(e, a) is not None), None)
    return axis is not None and all(_inside(substitute(e, {axis: at}), extent, ()) for at in (ZERO, axis.extent - 1))


def _below(e: Index, extent: Index) -> bool:
    """Whether e < extent follows from one operand of a minimum in e."""
    low = lower(e)
    if low is None or not nonnegative(low):
        return False
    found = ((m[0], c) for m, c in e.terms if c > 0 and len(m) == 1)
    sides = (e + (side - a) * c for a, c in found if isinstance(a, Least) for side in (a.one, a.two))
    return any(high is not None and nonnegative(extent - 1 - high) for high in map(upper, sides))


def _bounded(e: Index, g: Guard, name: str) -> Index | None:
    """e with a multiple of a guarded index in it written as an axis that runs over what the guard lets through."""
    here = dict(e.terms)
    for mono, c in g.index.terms:  # a quotient or remainder, say, that both have
        if mono and mono in here and here[mono] % c == 0:
            ratio = here[mono] // c
            return e - g.index * ratio + Index.of(Axis(name, g.extent)) * ratio
    for a in axes_of(g.index):
        whole, part = coefficient(e, a), coefficient(g.index, a)
        times = divides(part, whole) if whole is not None and part is not None and part != ZERO else None
        if times is not None and times != ZERO:
            return e - g.index * times + Index.of(Axis(name, g.extent)) * times
    return _bounded_within(e, g, name)


def _bounded_within(e: Index, g: Guard, name: str) -> Index | None:
    """As `_bounded`, where the guarded index is part of a dividend in e."""

    def held(atom: Atom) -> Index | None:
        if isinstance(atom, Div) and (coarse := _by_quotient(atom, g)) is not None:
            atom = coarse
        if not isinstance(atom, (Div, Mod)) or (made := _bounded(atom.num, g, name)) is None:
            return None
        return floor_div(made, atom.den) if isinstance(atom, Div) else modulo(made, atom.den)

    made = transform(e, held)
    return None if made == e else made


def _by_quotient(atom: Div, g: Guard) -> Div | None:
    """A quotient in terms of a smaller one that a guard looks at: (x + k*m) // (k*d) = (x // k + m) // d."""
    for inner in (a for mono, _ in g.index.terms for a in mono if isinstance(a, Div)):
        rest, den = divides(inner.den, atom.num - inner.num), divides(inner.den, atom.den)
        if rest is not None and den is not None and inner.den != atom.den:
            return Div(Index.of(inner) + rest, den)
    return None


def _reads(d: Definition) -> Iterator[tuple[str | Shape, Shape, tuple[Guard, ...]]]:
    """Every read of a definition: tensor (or the shape of a table), index, and the guards around it."""
    for node in walk(d.value):
        if isinstance(node, Load) and node.index:
            yield node.source, node.index, node.guards
    for index, guards in _indices(d):
        yield from _lookups(index, guards)


def _indices(d: Definition) -> Iterator[tuple[Shape, tuple[Guard, ...]]]:
    """Every index and extent of a definition that may contain a lookup, and the guards around it."""
    for node in walk(d.value):
        if isinstance(node, (Load, FromIndex)):
            for at, g in enumerate(node.guards):
                yield (g.index, g.extent), node.guards[:at]
            yield node.index if isinstance(node, Load) else (node.index,), node.guards


def _lookups(index: Shape, guards: tuple[Guard, ...]) -> Iterator[tuple[str | Shape, Shape, tuple[Guard, ...]]]:
    for atom in (a for e in index for a in atoms(e)):
        if isinstance(atom, Loaded):
            yield atom.source, atom.at, guards
        elif isinstance(atom, Entry):
            yield (Index.of(len(atom.table.values)),), (atom.at,), guards
