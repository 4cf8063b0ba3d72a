"""Rows of contractions: products of two operands summed over shared axes. Which axes are rows or columns is derived."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from onnxfuse.ir.compose import substitute_axes
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div
from onnxfuse.ir.scalar import Scalar, apply, cast, const
from onnxfuse.ops.elementwise import aligned, broadcast
from onnxfuse.ops.spec import Definition, Row, View
from onnxfuse.ops.stages import Element, Lift, total
from onnxfuse.ops.window import guarded_load, windows


@dataclass(frozen=True, slots=True)
class Operand:
    """A stack of matrices (or one row or column): its shape and its elements."""

    shape: tuple[Index, ...]
    at: Element


def matmul(view: View) -> tuple[Definition, ...]:
    """MatMul with broadcast batch axes; one-dimensional operands are rows or columns that vanish from the result."""
    a, b = (Operand(view.shape(i), partial(view.load, i)) for i in (0, 1))
    return multiplied(view, a, b)


def multiplied(view: View, left: Operand, right: Operand, finish: Lift = lambda x: x) -> tuple[Definition, ...]:
    """The product of two operands as NumPy's matmul has it, and what `finish` makes of each of its sums."""
    a, b = left.shape, right.shape
    if not a or not b:
        raise view.refuse("E-SHAPE-UNKNOWN", "a scalar operand")
    if a[-1] != (b[-2] if len(b) > 1 else b[0]):
        raise view.refuse("E-SHAPE-UNKNOWN", f"{a[-1]!r} and {b[max(0, len(b) - 2)]!r} may differ")
    batch = broadcast(view, [a[:-2], b[:-2]])
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    axes = view.axes((*batch, *rows, *columns))
    k = Axis(f"{view.out()}:k", a[-1])
    outer = axes[: len(batch)]
    m = tuple(Index.of(x) for x in axes[len(batch) : len(batch) + len(rows)])
    n = tuple(Index.of(x) for x in axes[len(batch) + len(rows) :])
    x = left.at((*aligned(a[:-2], outer), *m, Index.of(k)))
    y = right.at((*aligned(b[:-2], outer), Index.of(k), *n))
    value = finish(total("sum", (k,), _product(x, y)))
    return (Definition(view.out(), axes, cast(value, view.dtype(0))),)


def _product(left: Scalar, right: Scalar) -> Scalar:
    dtype = left.dtype.accumulator
    return apply("mul", cast(left, dtype), cast(right, dtype))


def gemm(view: View) -> tuple[Definition, ...]:
    """Gemm: alpha * A' B' + beta * C."""
    a, b = view.shape(0), view.shape(1)
    ta, tb = view.attr("transA", 0), view.attr("transB", 0)
    m, k_extent = (a[1], a[0]) if ta else (a[0], a[1])
    n = b[0] if tb else b[1]
    axes = view.axes((m, n))
    i, j = map(Index.of, axes)
    k = Axis(f"{view.out()}:k", k_extent)
    left = view.load(0, (Index.of(k), i) if ta else (i, Index.of(k)))
    right = view.load(1, (j, Index.of(k)) if tb else (Index.of(k), j))
    value = total("sum", (k,), _product(left, right))
    alpha, beta = view.attr("alpha", 1.0), view.attr("beta", 1.0)
    if alpha != 1.0:
        value = apply("mul", value, const(alpha, value.dtype))
    if view.has(2):
        c = cast(view.load(2, aligned(view.shape(2), axes)), value.dtype)
        value = apply("add", value, c if beta == 1.0 else apply("mul", c, const(beta, value.dtype)))
    return (Definition(view.out(), axes, cast(value, view.dtype(0))),)


def conv(view: View) -> tuple[Definition, ...]:
    """Conv of any rank, with groups, strides, dilations and padding."""
    x, w = view.shape(0), view.shape(1)
    kernel = tuple(e.constant or 0 for e in w[2:])
    if len(x) != len(w) or len(x) < 3 or not all(kernel):
        raise view.refuse("E-SHAPE-UNKNOWN", "the kernel's shape is not static")
    spots = windows(view, kernel)
    groups = Index.of(view.attr("group", 1))
    axes = view.axes((x[0], w[0], *(s.extent for s in spots)))
    channel = Axis(f"{view.out()}:c", w[1])
    taps = tuple(Axis(f"{view.out()}:k{i}", Index.of(k)) for i, k in enumerate(kernel))
    at = tuple(s.index(Index.of(a), Index.of(t)) for s, a, t in zip(spots, axes[2:], taps, strict=True))
    oc = Index.of(axes[1])
    ic = Index.of(channel) if w[1] != ONE else ZERO
    if groups != ONE:
        ic = floor_div(oc, floor_div(w[0], groups)) * w[1] + ic
    left = guarded_load(view, 0, (Index.of(axes[0]), ic, *at), spots, const(0, view.dtype(0)))
    right = view.load(1, (oc, Index.of(channel) if w[1] != ONE else ZERO, *map(Index.of, taps)))
    ranges = tuple(r for r in (*taps, channel) if r.extent != ONE)
    value = total("sum", ranges, _product(left, right))
    if view.has(2):
        value = apply("add", value, cast(view.load(2, (oc,)), value.dtype))
    if any(t.extent == ONE for t in taps):
        value = substitute_axes(value, {t: ZERO for t in taps if t.extent == ONE})
    return (Definition(view.out(), axes, cast(value, view.dtype(0))),)


ROWS: tuple[Row, ...] = (
    Row("MatMul", matmul),
    Row("Gemm", gemm),
    Row("Conv", conv),
)
