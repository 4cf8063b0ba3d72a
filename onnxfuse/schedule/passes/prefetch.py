"""Software prefetches of the next row while one is computed, for each tensor in the last loop that reads it.

Of several loops over one row only the first waits for memory; the later ones leave bandwidth for the prefetches.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from onnxfuse.ir.compose import loads
from onnxfuse.ir.index import ONE, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, looked_up, substitute
from onnxfuse.ir.kernel import (
    Accumulate,
    Kernel,
    Let,
    Loop,
    Phase,
    Prefetch,
    ReduceLoop,
    Stmt,
    Store,
    statements,
)
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.ir.tile import Tile
from onnxfuse.target import Cpu

LONG = 256  # elements of a row, at least


def prefetched(kernel: Kernel, target: Cpu) -> Kernel:
    """The kernel with prefetches of the inputs in phases over rows, if their row windows are short."""
    inputs = frozenset(p.name for p in kernel.inputs)

    def phase(p: Phase) -> Phase:
        if p.rows is None or p.rows[1] > target.lanes or any(isinstance(s, Tile) for s in statements(p.body)):
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


def _vector_loops(stmts: tuple[Stmt, ...]) -> Iterator[Loop]:
    for s in stmts:
        if isinstance(s, Loop) and s.kind == "vector":
            yield s
        elif isinstance(s, (Loop, ReduceLoop)):
            yield from _vector_loops(s.body)


def _loads(stmts: tuple[Stmt, ...]) -> Iterator[Load]:
    for s in stmts:
        values: tuple[Scalar, ...] = ()
        if isinstance(s, Let):
            values = (s.value,)
        elif isinstance(s, (Store, Accumulate)):
            values = s.values
        yield from (x for v in values for x in loads(v) if x.index and not x.guards)


def _with(stmts: tuple[Stmt, ...], wanted: list[tuple[Loop, Prefetch]]) -> tuple[Stmt, ...]:
    made: list[Stmt] = []
    for s in stmts:
        if isinstance(s, (Loop, ReduceLoop)):
            touches = tuple(touch for loop, touch in wanted if loop is s)
            made.append(replace(s, body=(*touches, *_with(s.body, wanted))))
        else:
            made.append(s)
    return tuple(made)
