"""Horizontal reductions of several rows together: vectors of partial results first, then one cross-lane pass for all.

Reducing one vector takes log2(lanes) shuffles; a window of rows shares them.
"""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.compose import walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.kernel import Buffer, HorizontalReduce, Let, Loop, ReduceLoop, Stmt, Store
from onnxfuse.ir.scalar import Load, Scalar, variable

TOGETHER = ("sum", "max", "maxnum", "min")
PARTS, SUMS = "parts", "sums"


def share_lane_reductions(
    stmts: tuple[Stmt, ...], row: Axis, first: Index, tile_rows: int, lanes: int
) -> tuple[tuple[Stmt, ...], tuple[Buffer, ...]]:
    """A stage whose row reductions share one horizontal reduction, if it has that form, and the buffers it needs."""
    if len(stmts) != 1 or not isinstance(stmts[0], Loop) or stmts[0].axis != row:
        return stmts, ()
    loop = stmts[0]
    *before, store = loop.body
    reduction = before[-1] if before else None
    if not isinstance(reduction, ReduceLoop) or not isinstance(store, Store) or not _suits(reduction, store.value):
        return stmts, ()
    at = Index.of(row) - first
    carried = replace(reduction, part=(PARTS, at * lanes))
    rows = (replace(loop, body=(*before[:-1], carried)),)
    buffers = (Buffer(PARTS, F32, Index.of(tile_rows * lanes), "local"),)
    if store.value == variable(reduction.targets[0], F32) and store.offset == at:
        return (*rows, HorizontalReduce(store.buffer, PARTS, reduction.combine, loop.end - loop.begin, lanes)), buffers
    read = Let(reduction.targets[0], Load(SUMS, (at,), F32))
    across = HorizontalReduce(SUMS, PARTS, reduction.combine, loop.end - loop.begin, lanes)
    finish = replace(loop, body=(read, store))
    return (*rows, across, finish), (*buffers, Buffer(SUMS, F32, Index.of(max(tile_rows, lanes)), "local"))


def _suits(reduction: ReduceLoop, value: Scalar) -> bool:
    """Whether a reduction has one accumulator in a vector loop, and the stored value depends on nothing else."""
    alone = all(not isinstance(n, Load) or n.source == reduction.targets[0] for n in walk(value))
    return (
        reduction.scope == "lane"
        and alone
        and reduction.combine in TOGETHER
        and reduction.dtype == F32
        and len(reduction.targets) == 1
    )
