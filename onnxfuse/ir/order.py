"""Whether a kernel reads only what was stored before: the order of its statements, not their values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from onnxfuse.ir.compose import sources
from onnxfuse.ir.kernel import (
    Accumulate,
    Across,
    Bind,
    Fold,
    Kernel,
    Let,
    Loop,
    Pack,
    Point,
    Stmt,
    Store,
    Tile,
    Touch,
    When,
)


def early_reads(kernel: Kernel) -> tuple[str, ...]:
    """Buffers that some statement reads though no statement before it, in the order of the text, stores into them.

    Those of tasks are empty when a phase begins; inputs never are. What a loop carries from one iteration to the next
    has to be set before the loop.
    """
    made = {p.name for p in kernel.inputs}
    found: dict[str, None] = {}
    for phase in kernel.phases:
        made -= {b.name for b in phase.locals}
        _walk(phase.body, made, found)
    return tuple(found)


def _walk(body: tuple[Stmt, ...], made: set[str], found: dict[str, None]) -> None:
    for s in body:
        found.update(dict.fromkeys(name for name in _read(s) if name not in made))
        if isinstance(s, (Loop, Fold, When)):
            _walk(s.body, made, found)
        made.update(_stored(s))


def _read(s: Stmt) -> Iterator[str]:
    """Buffers that a statement itself reads."""
    match s:
        case Let():
            yield from sorted(sources(s.value))
        case Accumulate() | Store():
            for value in s.values:
                yield from sorted(sources(value))
        case Point():
            yield s.load.source
            yield from (s.padding,) if s.padding else ()
        case Pack():
            yield s.load.source
        case Tile():
            yield from (s.a, s.b)
        case Across():
            yield s.source
        case Bind() | Loop() | Fold() | When() | Touch():
            pass
        case _:
            assert_never(s)


def _stored(s: Stmt) -> tuple[str, ...]:
    """Buffers that a statement stores into, once all that it holds is done."""
    match s:
        case Store():
            return (s.buffer,)
        case Point():
            return (s.table,)
        case Pack() | Tile():
            return (s.out,)
        case Across():
            return (s.target,)
        case Fold():
            return (s.part[0],) if s.part is not None else ()
        case Let() | Accumulate() | Bind() | Loop() | When() | Touch():
            return ()
        case _:
            assert_never(s)
