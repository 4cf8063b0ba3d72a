"""Decides which axis of a nest is vectorised, which axes are fused, and the order of the other loops."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from onnxfuse.ir.compose import indices_of, substitute_axes, walk
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, Loaded, Symbol, atoms, axes_of
from onnxfuse.ir.indexing import WIDEST, coefficient, grouped, most_step, substitute, transform
from onnxfuse.ir.kernel import LoopKind
from onnxfuse.ir.lanes import NEAR
from onnxfuse.ir.scalar import Guard, Load, Reduce, Scalar

WIDE = ("sum", "prod", "max", "maxnum", "min")  # monoids that vector accumulators can compute lane by lane
_ONCE: Mapping[Index, int] = {}  # all reads are made once for each element
RECORDS = (2, 3, 4)  # record lengths for which vectors are interleaved when they are stored


@dataclass(frozen=True, slots=True)
class Goal:
    """A store: buffer, offset, value. `also` are subexpressions that are stored too, with their buffers and offsets."""

    buffer: str
    offset: Index
    value: Scalar
    also: Mapping[Scalar, tuple[str, Index]] = field(default_factory=dict, hash=False)

    def substituted(self, values: Mapping[Axis, Index]) -> Goal:
        """The goal with axes replaced."""
        also = {substitute_axes(x, values): (b, substitute(o, values)) for x, (b, o) in self.also.items()}
        return Goal(self.buffer, substitute(self.offset, values), substitute_axes(self.value, values), also)


@dataclass(frozen=True, slots=True)
class Level:
    """A loop to be emitted."""

    axis: Axis
    kind: LoopKind = "serial"
    begin: Index = ZERO
    end: Index | None = None


def offsets_of(x: Scalar) -> list[Index]:
    """The flat offsets of the loads in x."""
    return [n.index[0] for n in walk(x) if isinstance(n, Load) and n.index]


def steps_of(x: Scalar) -> dict[Index, int]:
    """How often loads of x are made for each element: at each step of reductions around them, up to WIDEST times."""
    ranges = {r for n in walk(x) if isinstance(n, Reduce) for r in n.ranges}
    found: dict[Index, int] = {}
    for e in offsets_of(x):
        taken = [r.extent.constant or WIDEST for r in axes_of(e) & ranges]
        found[e] = min(prod(taken), WIDEST)
    return found


def strided(
    axis: Axis, reads: Sequence[Index], stores: Sequence[Index] = (), steps: Mapping[Index, int] = _ONCE
) -> int:
    """How many accesses would be made lane by lane if this axis were vectorised."""
    found = [(coefficient(e, axis), e, at) for at, part in enumerate((reads, stores)) for e in part]
    apart = [(e, stride, at) for stride, e, at in found if stride not in (ZERO, ONE) and grouped(e, axis) is None]
    apart = [(e, stride, at) for e, stride, at in apart if at or stride is not None or most_step(e, axis) != 1]
    slow = [(e, at) for e, stride, at in apart if at or stride is None or stride.constant not in NEAR]
    return sum(1 if at else steps.get(e, 1) for e, at in slow)


def _fitness(
    axis: Axis, reads: Sequence[Index], stores: Sequence[Index] = (), steps: Mapping[Index, int] = _ONCE
) -> tuple[int, int, int]:
    """How well an axis vectorises: few strided accesses, then many contiguous ones, then its extent."""
    good = sum(coefficient(e, axis) == ONE for e in (*reads, *stores))
    extent = axis.extent.constant
    return (-strided(axis, reads, stores, steps), good, min(extent if extent is not None else 256, 64))


def vector_axis(
    axes: Sequence[Axis],
    reads: Sequence[Index],
    stores: Sequence[Index] = (),
    guards: Sequence[Guard] = (),
    steps: Mapping[Index, int] = _ONCE,
) -> Axis | None:
    """The axis to vectorise, or None when no axis is worth it. `steps` are those of reads that are made often."""
    guarded = {a for g in guards for a in axes_of(g.index)}
    open_axes = [a for a in axes if a.extent != ONE and (a.extent.constant is None or a.extent.constant > 1)]
    ranked = sorted(open_axes, key=lambda a: (a not in guarded, *_fitness(a, reads, stores, steps)), reverse=True)
    return ranked[0] if ranked else None


def fused_axes(axes: tuple[Axis, ...], indices: Sequence[Index]) -> tuple[tuple[Axis, ...], dict[Axis, Index]]:
    """Fuses adjacent axes that every index traverses linearly; also gives the old axes in terms of the new ones.

    An index that is looked up is traversed as the places where it is looked up are.
    """
    indices = [part for e in indices for part in _linear_parts(e)]
    out: list[Axis] = list(axes)
    values: dict[Axis, Index] = {}
    at = len(out) - 2
    while at >= 0:
        high, low = out[at], out[at + 1]
        if all(walks_as_one(e, high, low) for e in indices):
            one = Axis(f"{high.name}*{low.name.rsplit(':', 1)[-1]}", high.extent * low.extent)
            split = {high: Index.of(one) // low.extent, low: Index.of(one) % low.extent}
            values = {a: substitute(v, split) for a, v in values.items()} | split
            indices = [substitute(e, split) for e in indices]
            out[at : at + 2] = [one]
        at -= 1
    return tuple(out), values


def _linear_parts(e: Index) -> list[Index]:
    """An index over symbols for what it looks up, and the indices where that is looked up."""
    found = [a for a in atoms(e) if isinstance(a, Loaded)]
    plain = transform(e, lambda a: Index.of(Symbol(repr(a))) if isinstance(a, Loaded) else None)
    return [plain, *(part for a in found for at in a.at for part in _linear_parts(at))]


def indices_to_fuse(goal: Goal) -> list[Index]:
    """Every index that must be linear in two axes of a goal before they can be fused."""
    return [goal.offset, *indices_of(goal.value), *(o for _, o in goal.also.values())]


def walks_as_one(e: Index, high: Axis, low: Axis) -> bool:
    """Whether an index is linear in the fusion of two axes: a step of `high` is `low.extent` steps of `low`."""
    outer, inner = coefficient(e, high), coefficient(e, low)
    return outer is not None and inner is not None and outer == inner * low.extent


def order_of(axes: Sequence[Axis], store: Index | None) -> list[Axis]:
    """Axes from slowest to fastest by the stride of the store; axes without one stay in place."""
    if store is None:
        return list(axes)

    def stride(a: Axis) -> tuple[int, int]:
        c = coefficient(store, a)
        if c is None or not c.terms:
            return (0, 0)
        mono, k = c.terms[0]
        return (len(mono), abs(k))

    return sorted(axes, key=stride, reverse=True)


def free_loops(goal: Goal, axes: tuple[Axis, ...], apart: Container[Axis] = ()) -> list[Level]:
    """Loops over free axes in stored order, the best one vectorised, unless a reduction inside vectorises better.

    `apart` are axes whose guards do not hinder vectors, as their loops are split where guards change.
    """
    order = order_of(axes, goal.offset)
    loads = offsets_of(goal.value)
    guards = [g for n in walk(goal.value) if isinstance(n, Load) for g in n.guards]
    ranges = [r for n in walk(goal.value) if isinstance(n, Reduce) for r in n.ranges if n.combine in WIDE]
    stores = [goal.offset]
    harmful = [g for g in guards if any(a in order and a not in apart for a in axes_of(g.index))]
    steps = steps_of(goal.value)
    best = vector_axis(order, loads, stores, harmful, steps)
    if best is not None and ranges:
        inner = vector_axis(ranges, loads, (), guards, steps)
        outside = _fitness(best, loads, stores, steps)
        if inner is not None and _better_inside(_fitness(inner, loads, (), steps), outside, inner):
            best = None
    rest = [Level(a) for a in order if a != best]
    return [*rest, Level(best, "vector")] if best is not None else rest


def _better_inside(inside: tuple[int, int, int], outside: tuple[int, int, int], axis: Axis) -> bool:
    """Whether a reduction axis of this fitness is a better vector axis than a free axis of that one.

    A reduction axis shorter than a vector is better only if the free axis would be accessed lane by lane; one that does
    not even fill half of one is never, since nothing would be a vector.
    """
    if not fills_half(axis):
        return False
    short = (axis.extent.constant or WIDEST) < WIDEST
    return inside[:1] > outside[:1] if short else inside[:2] > outside[:2]


def fills_half(axis: Axis) -> bool:
    """Whether vectors along an axis are at least half full, as far as its extent is known."""
    return (axis.extent.constant or WIDEST) >= WIDEST // 2
