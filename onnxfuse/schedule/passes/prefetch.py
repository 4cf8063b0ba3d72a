"""Software prefetches of the next row while one is computed, for each tensor in the last loop that reads it.

Of several loops over one row only the first waits for memory; the later ones leave bandwidth for the prefetches. A
window that reads more lines of an image at a time than a machine follows as streams fetches those of the next block.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from onnxfuse.ir.compose import loads
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, looked_up, product, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Kernel,
    Let,
    Loop,
    Param,
    Phase,
    Prefetch,
    ReduceLoop,
    Stmt,
    Store,
    statements,
)
from onnxfuse.ir.lanes import FARTHEST
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.ir.tile import Tile
from onnxfuse.target import Cpu

LONG = 256  # elements of a row, at least


def prefetched(kernel: Kernel, target: Cpu) -> Kernel:
    """The kernel with prefetches of the inputs in phases over rows, if their row windows are short."""
    inputs = frozenset(p.name for p in kernel.inputs)
    far = frozenset(p.name for p in kernel.inputs if _bytes(p) > target.l2_bytes)

    def phase(p: Phase) -> Phase:
        if any(isinstance(s, Tile) for s in statements(p.body)):
            return p
        if p.rows is None:
            return replace(p, body=_next_blocks(p.body, far, target)) if far else p
        if p.rows[1] > target.lanes:
            return p
        return replace(p, body=_fetching(p.body, inputs, *p.rows, target.lanes))

    return replace(kernel, phases=tuple(map(phase, kernel.phases)))


def _fetching(stmts: tuple[Stmt, ...], inputs: Container[str], row: Axis, ahead: int, lanes: int) -> tuple[Stmt, ...]:
    """Statements of one row (or window of rows) that also prefetch the inputs of the row `ahead` rows later."""
    wanted: dict[str, tuple[Loop, Prefetch]] = {}
    for loop in _vector_loops(stmts):
        if (loop.end - loop.begin).constant is not None and (loop.end - loop.begin).constant < LONG:
            continue
        for load in _loads(loop.body):
            at = load.index[0]
            if looked_up(at):  # an index looked up ahead may be out of bounds
                continue
            if load.source in inputs and coefficient(at, loop.axis) == ONE and row in axes_of(at):
                wanted[load.source] = (loop, Prefetch(load.source, substitute(at, {row: Index.of(row) + ahead}), lanes))
    return _with(stmts, list(wanted.values()))


def _next_blocks(stmts: tuple[Stmt, ...], far: Container[str], target: Cpu) -> tuple[Stmt, ...]:
    """Statements in which windows over blocks of lines fetch, vector by vector, what the next block reads anew."""
    made: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Loop) and s.kind == "serial":
            inner = _next_blocks(s.body, far, target)
            if inner == s.body:
                inner = tuple(_fetching_lines(x, s.axis, far, target) for x in s.body)
            s = replace(s, body=inner)
        made.append(s)
    return tuple(made)


def _fetching_lines(s: Stmt, block: Axis, far: Container[str], target: Cpu) -> Stmt:
    """A vector loop in a loop over blocks that fetches the lines of the next block, if they are many."""
    if not isinstance(s, Loop) or s.kind != "vector" or block.extent == ONE:
        return s
    starts = {x.axis: ZERO for x in statements(s.body) if isinstance(x, Loop)}
    values = (v for x in statements(s.body) for v in _values(x))
    read = {(x.source, substitute(x.index[0], starts)) for v in values for x in loads(v) if x.source in far}
    apart = {(coefficient(at, s.axis) or ZERO).constant or 0 for _, at in read}
    later = {(name, substitute(at, {block: Index.of(block) + 1})) for name, at in read}
    new = sorted(later - read, key=str)
    if len(new) <= target.streams or len(apart) != 1 or not 1 <= min(apart) <= FARTHEST:
        return s
    touches = tuple(Prefetch(name, at, target.lanes * min(apart)) for name, at in new)
    return replace(s, body=(*touches, *s.body))


def _vector_loops(stmts: tuple[Stmt, ...]) -> Iterator[Loop]:
    for s in stmts:
        if isinstance(s, Loop) and s.kind == "vector":
            yield s
        elif isinstance(s, (Loop, ReduceLoop)):
            yield from _vector_loops(s.body)


def _loads(stmts: tuple[Stmt, ...]) -> Iterator[Load]:
    return (x for s in stmts for v in _values(s) for x in loads(v) if x.index and not x.guards)


def _values(s: Stmt) -> tuple[Scalar, ...]:
    if isinstance(s, Let):
        return (s.value,)
    return s.values if isinstance(s, (Store, Accumulate)) else ()


def _bytes(p: Param) -> int:
    return p.dtype.bytes * (product(p.shape).constant or 0)


def _with(stmts: tuple[Stmt, ...], wanted: list[tuple[Loop, Prefetch]]) -> tuple[Stmt, ...]:
    made: list[Stmt] = []
    for s in stmts:
        if isinstance(s, (Loop, ReduceLoop)):
            touches = tuple(touch for loop, touch in wanted if loop is s)
            made.append(replace(s, body=(*touches, *_with(s.body, wanted))))
        else:
            made.append(s)
    return tuple(made)
