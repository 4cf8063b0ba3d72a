"""Short names for the statements and values that kernels of threads are written with."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.fragments import Fragment
from onnxfuse.ir.index import ONE, ZERO, Axis, Index
from onnxfuse.ir.kernel import Loop, LoopKind, Stmt, Store
from onnxfuse.ir.scalar import Load, Scalar, apply, variable


def axis(name: str, extent: int | Index) -> Axis:
    """A loop's axis."""
    return Axis(name, Index.of(extent))


def loop(a: Axis, kind: LoopKind, *body: Stmt) -> Loop:
    """A loop over all of an axis."""
    return Loop(a, ZERO, a.extent, kind, body)


def at(buffer: str, offset: Index, dtype: DType = F32) -> Load:
    """An element of a buffer."""
    return Load(buffer, (offset,), dtype)


def of(name: str) -> Load:
    """A variable."""
    return variable(name, F32)


def plus(x: Scalar, y: Scalar) -> Scalar:
    """A sum."""
    return apply("add", x, y)


def times(x: Scalar, y: Scalar) -> Scalar:
    """A product."""
    return apply("mul", x, y)


def wide(v: Axis, s: Store) -> Stmt:
    """A store of elements that are read at once."""
    return loop(v, "vector" if v.extent != ONE else "unroll", s)


def elements(
    name: str, f: Fragment, body: Callable[[Index, Index, Index], tuple[Stmt, ...]], pairs: LoopKind = "unroll"
) -> Loop:
    """A loop over what the lanes hold of a matrix, two registers at a time: body(row, column, register)."""
    lane, half, v = axis(f"lane_{name}", f.lanes), axis(f"half_{name}", f.registers // 2), axis(f"v_{name}", 2)
    register = Index.of(half) * 2 + v
    made = body(*f.element(Index.of(lane), register), register)
    return loop(lane, "lane", loop(half, "unroll", loop(v, pairs, *made)))
