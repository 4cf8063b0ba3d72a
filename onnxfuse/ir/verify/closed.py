"""Verification of closed sets: kinds, scopes, spaces and monoids, and limits of single fields.

It runs before the other checks, which may look these up in tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from onnxfuse.ir.fragments import WARP
from onnxfuse.ir.kernel import (
    Buffer,
    ExtentBind,
    HorizontalReduce,
    Kernel,
    Pack,
    Phase,
    ReduceLoop,
    RowPointer,
    Space,
    Stmt,
    statements,
)
from onnxfuse.ir.launch import CopyAsync, Wait
from onnxfuse.ir.layout import Permute
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.products import PRODUCTS
from onnxfuse.ir.scalar import Lanes
from onnxfuse.ir.tile import Coding, Quantized, Tile

OF_TASKS: tuple[Space, ...] = ("local", "pointers")  # spaces of the buffers of a phase that tasks run
OF_THREADS: tuple[Space, ...] = ("shared", "local", "register", "fragment")

LANES = tuple(n for n in range(1, WARP + 1) if WARP % n == 0)  # a warp, or parts of it that shuffle among themselves


def unknown(kernel: Kernel) -> Iterator[str]:
    """Fields whose values are in no table, and buffers in spaces that their phase does not have."""
    yield from _params(kernel)
    for b in kernel.scratch:
        yield from _buffer(b, ("global",), "the kernel's")
    for number, phase in enumerate(kernel.phases):
        yield from (f"phase {number}: {what}" for what in _of_phase(phase))


def _params(kernel: Kernel) -> Iterator[str]:
    """Tensors whose layouts have another rank, and symbols of dimensions that no input has."""
    for p in (*kernel.inputs, *kernel.outputs):
        rank = next((len(step.perm) for step in p.layout.steps[:1] if isinstance(step, Permute)), len(p.shape))
        if rank != len(p.shape):
            yield f"{p.name} has {len(p.shape)} dimensions, expected {rank} as its layout"
            return
    for b in kernel.binds:
        if isinstance(b, ExtentBind):
            rank = len(kernel.inputs[b.input].storage) if 0 <= b.input < len(kernel.inputs) else 0
            if not 0 <= b.axis < rank:
                yield f"{b.symbol.name} is dimension {b.axis} of input {b.input}, which has {rank} dimensions"


def outside(x: Stmt | Lanes) -> Iterator[str]:
    """The fields of a statement or lane kind whose values are not in their closed sets."""
    kind: type = type(x)
    for name, known in _sets(kind):
        value = getattr(x, name)
        if value not in known:
            yield f"{type(x).__name__}.{name} is {value!r}, expected one of {', '.join(known)}"


@cache
def _sets(kind: type) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The fields of a class that have closed sets of values, and these."""
    hints: dict[str, Any] = get_type_hints(kind)
    found = [(name, get_args(hint)) for name, hint in hints.items() if get_origin(hint) is Literal]
    return (*found, ("combine", tuple(MONOIDS))) if "combine" in hints else tuple(found)


def _of_phase(phase: Phase) -> Iterator[str]:
    spaces, whose = (OF_TASKS, "tasks'") if phase.launch is None else (OF_THREADS, "threads'")
    for b in phase.locals:
        yield from _buffer(b, spaces, whose)
    if phase.launch is not None and phase.launch.lanes not in LANES:
        yield f"groups of {phase.launch.lanes} lanes, expected one of {', '.join(map(str, LANES))}"
    for s in statements(phase.body):
        yield from outside(s)
        yield from _limits(s)


def _buffer(b: Buffer, spaces: tuple[Space, ...], whose: str) -> Iterator[str]:
    if b.space not in spaces:
        yield f"buffer {b.name} is in the space {b.space!r}, expected one of the {whose} spaces: {', '.join(spaces)}"


def _limits(s: Stmt) -> Iterator[str]:
    """Numbers of a statement that are out of range."""
    match s:
        case Wait() if s.pending < 0:
            yield f"a Wait leaves {s.pending} groups of copies in flight, expected at least 0"
        case CopyAsync() if s.count < 1:
            yield f"a CopyAsync to {s.target} is of {s.count} elements, expected at least 1"
        case ReduceLoop() if s.accumulators < 1 or len(s.part or (1, 2)) != 2:
            yield f"the reduction of {', '.join(s.targets)} has {s.accumulators} accumulators, stored at {s.part}"
        case Pack(load=load) | RowPointer(load=load) if len(getattr(load, "index", ())) != 1:
            yield f"a {type(s).__name__} of {s.load!r}, expected a load"
        case HorizontalReduce() if s.lanes < 1 or MONOIDS.get(s.combine, MONOIDS["sum"]).numpy is None:
            yield f"{s.combine} of {s.source} across {s.lanes} lanes, expected a monoid of numbers and at least 1 lane"
        case Tile() if s.core.product not in PRODUCTS:
            yield f"the tile into {s.out} has the product {s.core.product!r}, which is not in the table of products"
        case Tile(left=Quantized(coding=Coding(right_zero=tuple() as zero))) if len(zero) != 2:
            yield f"the zero points of the tile into {s.out} are at {zero}, expected a buffer and an offset"
        case _:
            pass
