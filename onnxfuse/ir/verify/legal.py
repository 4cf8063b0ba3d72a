"""Verification of the annotations of `legalize`: that they are correct, and complete in legal kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import walk
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.index import ONE, ZERO, Axis, axes_of
from onnxfuse.ir.indexing import coefficient, grouped
from onnxfuse.ir.kernel import (
    Accumulate,
    Buffer,
    Kernel,
    Let,
    Loop,
    Phase,
    ReduceLoop,
    Stmt,
    Store,
    When,
    in_slots,
    statements,
)
from onnxfuse.ir.lanes import (
    NEAR,
    climbing,
    copies,
    cutting,
    masked,
    matrix_load,
    piecewise,
    runs_again,
    stores_codes,
    wide_accesses,
)
from onnxfuse.ir.launch import Sync
from onnxfuse.ir.products import Unit
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Lanes, Load, Scalar
from onnxfuse.ir.tile import Tile

COMPARED = ("less", "greater_equal")  # functions that compare a `boundary` with 0
_ACCUMULATORS = {True: "the reduction has vector accumulators", False: "the reduction has no vector accumulators here"}


def illegal(kernel: Kernel) -> Iterator[str]:
    """Wrong annotations of vectors, reductions and phases; in a legal kernel also missing ones."""
    types = {p.name: p.dtype for p in (*kernel.inputs, *kernel.outputs)} | {b.name: b.dtype for b in kernel.scratch}
    for number, phase in enumerate(kernel.phases):
        of_threads = {b.name: b for b in phase.locals} if phase.launch is not None else None
        place = _Place(kernel.legal, types | {b.name: b.dtype for b in phase.locals}, of_threads)
        found = (*_body(phase.body, place), *_of_phase(phase, legal=kernel.legal))
        yield from (f"phase {number}: {what}" for what in found)


def _of_phase(phase: Phase, *, legal: bool) -> Iterator[str]:
    """Annotations of a phase: its matrix unit, streams and slots; and what no renderer spells."""
    cores = [s.core for s in statements(phase.body) if isinstance(s, Tile)]
    units = {(core.product.unit, core.most) for core in cores if core.product.unit is not None}
    said = {phase.matrix_unit} if phase.matrix_unit is not None else set()
    if said != units and (legal or said):
        yield f"matrix unit is {_units(said)}, expected {_units(units)} as its tiles"
    streams = any(isinstance(s, Store) and s.stream for s in statements(phase.body))
    if phase.streams != streams and (legal or phase.streams):
        yield f"streams is {phase.streams}, expected {streams}: {'a' if streams else 'no'} store is non-temporal"

    slots = in_slots(phase)
    if phase.slots != slots and (legal or phase.slots):
        yield f"slots is {phase.slots}, expected {slots} by the sizes of its local buffers"
    if legal and any(isinstance(s, Sync) and s.scope == "grid" for s in statements(phase.body)):
        yield "a grid barrier, which no renderer spells"


def _units(units: Set[tuple[Unit, int] | None]) -> str:
    """Matrix units in words."""
    return " and ".join(f"{unit[0].name} for {unit[1]} rows" for unit in units if unit is not None) or "none"


@dataclass(frozen=True, slots=True)
class _Place:
    """The context of a statement: its vector loop, and the enclosing reductions' vector accumulators."""

    legal: bool
    types: Mapping[str, DType]  # of all buffers
    buffers: Mapping[str, Buffer] | None = None  # of the phase, if threads run it
    loop: Loop | None = None
    carried: tuple[tuple[str, int], ...] = ()  # accumulators, and the number of vectors of each


def _vectors_of(s: Loop, place: _Place) -> Loop | None:
    """The vector loop of a CPU whose vectors a loop stores: itself, or the one around a serial loop."""
    if s.kind == "vector":
        return s if place.buffers is None else None
    return place.loop if s.kind == "serial" else None


def _body(body: tuple[Stmt, ...], place: _Place) -> Iterator[str]:
    for s in body:
        match s:
            case Loop():
                if s.carries and s.kind != "vector":
                    yield f"carries of the loop over {s.axis!r} is {s.carries}, expected 0: it is {s.kind}, not vector"
                around = _vectors_of(s, place)
                codes = around is not None and stores_codes(s, around)
                if bool(s.together) != codes and (place.legal or s.together):
                    expected = "more than 0: it only stores 8-bit integers" if codes else "0"
                    yield f"together of the loop over {s.axis!r} is {s.together}, expected {expected}"
                again = place.buffers is None and s.kind == "vector" and not codes and runs_again(s)
                if s.again != again and (place.legal or s.again):
                    yield f"again of the loop over {s.axis!r} is {s.again}, expected {again}"
                yield from _wide(s, place)
                matrices = matrix_load(s, place.buffers) if place.buffers is not None else None
                if s.matrices != matrices and (place.legal or s.matrices is not None):
                    yield f"matrices of the loop over {s.axis!r} is {s.matrices}, expected {matrices}"
                yield from _body(s.body, replace(place, loop=s) if s.kind == "vector" else place)
            case ReduceLoop():
                mine = tuple((t, s.accumulators) for t in s.targets) if s.scope == "lane" else ()
                yield from _body(s.body, replace(place, carried=(*place.carried, *mine)))
            case When():
                yield from _body(s.body, place)
            case Let():
                yield from _value(s.value, place)
            case Accumulate():
                yield from _accumulate(s, place)
            case Store():
                yield from _store(s, place)
            case _:
                pass


def _wide(s: Loop, place: _Place) -> Iterator[str]:
    """Annotations of a vector loop: its wide accesses."""
    found = ((), ()) if place.buffers is None or s.kind != "vector" else wide_accesses(s, place.buffers)
    for name, said, expected in zip(("loads", "stores"), (s.loads, s.stores), found, strict=True):
        if said != expected and (place.legal or said):
            yield f"{name} of the loop over {s.axis!r} are {said}, expected {expected}"


def _accumulate(s: Accumulate, place: _Place) -> Iterator[str]:
    """Annotations of an accumulation: whether it is a vector accumulator, and how many its loop has."""
    for value in (*s.values, *s.merged):
        yield from _value(value, place)
    vectors = dict(place.carried).get(s.targets[0], 0) if place.loop is not None else 0
    if (place.legal or s.carried) and s.carried != bool(vectors):
        yield f"carried of {s.targets[0]} is {s.carried}, expected {bool(vectors)}: {_ACCUMULATORS[bool(vectors)]}"
    if s.carried and place.loop is not None and place.loop.carries != vectors:
        loop = place.loop
        yield f"carries of the loop over {loop.axis!r} is {loop.carries}, expected {vectors} for {s.targets[0]}"
    merged = len(s.targets) if len(s.targets) > 1 else 0
    if len(s.merged) != merged and (place.legal or s.merged):
        yield f"merged of {', '.join(s.targets)} has {len(s.merged)} values, expected {merged}"


def _store(s: Store, place: _Place) -> Iterator[str]:
    """Annotations of a store: whether lanes are contiguous."""
    for value in s.values:
        yield from _value(value, place)
    loop = place.loop
    apart = loop is not None and not s.behind and coefficient(s.offset, loop.axis) != ONE
    if s.scattered != apart and (place.legal or s.scattered):
        yield f"scattered of the store into {s.buffer} is {s.scattered}, expected {apart} by its offset"
    copied = place.buffers is not None and copies(s, place.types[s.buffer])
    if s.copied != copied and (place.legal or s.copied):
        yield f"copied of the store into {s.buffer} is {s.copied}, expected {copied} by its value"


def _value(x: Scalar, place: _Place) -> Iterator[str]:
    """Annotations of all nodes of a value: their lane kinds."""
    boundaries = {id(n.args[0]) for n in walk(x) if isinstance(n, Apply) and _is_boundary(n, place)}
    for n in walk(x):
        if isinstance(n, FromIndex) or (isinstance(n, Load) and n.index):
            if n.lanes is None:
                if place.legal and place.loop is not None:
                    yield f"lanes of {n!r} are not set"
            elif place.loop is None:
                yield f"lanes of {n!r} are set, expected none: it is in no vector loop"
            elif not (_fits(n, n.lanes, place.loop) or (n.lanes.kind == "boundary" and id(n) in boundaries)):
                yield f"lanes are {n.lanes!r}, which the index of {n!r} along {place.loop.axis!r} does not allow"


def _is_boundary(x: Apply, place: _Place) -> bool:
    """Whether it compares an index of constant slope along the lanes with 0."""
    if place.loop is None or x.fn not in COMPARED:
        return False
    left, zero = x.args
    if not isinstance(left, FromIndex) or left.guards or left.lanes is None or zero != Const(0, left.dtype):
        return False
    stride = coefficient(left.index, place.loop.axis)
    return stride is not None and (stride.constant or 0) != 0 and stride.constant == left.lanes.step


def _fits(x: Load | FromIndex, lanes: Lanes, loop: Loop) -> bool:
    """Whether a lane kind is valid for a load or index in this loop."""
    axis: Axis = loop.axis
    at = x.index[0] if isinstance(x, Load) else x.index
    stride, cut = coefficient(at, axis), any(axis in axes_of(g.index) for g in x.guards)
    match lanes.kind:
        case "vector":
            return stride == ONE and not cut
        case "broadcast":
            return stride == ZERO and not cut
        case "strided":
            return isinstance(x, Load) and stride is not None and stride.constant == lanes.step in NEAR and not cut
        case "grouped":
            return loop.aligned and grouped(at, axis) == (lanes.step, lanes.part) and not cut
        case "masked":
            return isinstance(x, Load) and bool(cutting(x, axis)) and masked(x, axis) == lanes.step
        case "piecewise":
            return isinstance(x, Load) and piecewise(x, axis)
        case "climbing":
            return isinstance(x, Load) and climbing(x, axis) == lanes.step
        case "gathered":
            return isinstance(x, FromIndex) or not cut
        case "guarded":
            return isinstance(x, Load)
        case "boundary":
            return False
