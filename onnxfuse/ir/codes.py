"""Recognition of quantized contractions: sums of products of (quantized value - zero point) * scale on both sides.

Quantized values ("codes" in names) are multiplied and summed as integers, which is exact; the scales, which do not
depend on the summed axes, are factored out of the sum, as ONNX Runtime does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import free_axes, in_guards, rebuild
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.dtype import F32, I8, I32, U8, DType
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.indexing import product
from onnxfuse.ir.scalar import Apply, Const, Guard, Load, Reduce, Scalar, apply, cast, const

CODES = (U8, I8)
MOST = 1 << 16  # terms of a sum of products that cannot overflow 32 bits
FEW = 1 << 8  # terms of a sum of products that is exact in float32


@dataclass(frozen=True, slots=True)
class Side:
    """One factor of a quantized product: values, zero point, and the scales that multiply their difference.

    Where a guard of the values fails, they equal the zero point.
    """

    codes: Load
    zero: Scalar  # a number, or a code that is loaded
    scales: tuple[Scalar, ...]


def sides_of(total: Reduce) -> tuple[Side, Side] | None:
    """The two sides of a quantized contraction; None for other sums."""
    found, ranges = contraction_of((), total), frozenset(total.ranges)
    if found is None or total.dtype not in (F32, I32):
        return None
    left, right = _side(found.left, ranges), _side(found.right, ranges)
    return (left, right) if left is not None and right is not None else None


def scaled(total: Scalar, left: Side, right: Side) -> Scalar:
    """A sum of integer products, dequantized: times the product of the scales, which is rounded first."""
    scales = (*left.scales, *right.scales)
    return apply("mul", total, reduce(partial(apply, "mul"), scales)) if scales else total


def is_flat(zero: Scalar, columns: tuple[Axis, ...]) -> bool:
    """Whether the zero points of columns are one number, or contiguous in memory."""
    if isinstance(zero, Const):
        return True
    axes = {a for a in columns if a.extent != ONE}
    if not isinstance(zero, Load) or zero.guards or not free_axes(zero) <= axes:
        return False
    return not free_axes(zero) or (len(axes) == 1 and zero.index == tuple(map(Index.of, columns)))


@dataclass(frozen=True, slots=True)
class _Code:
    """A quantized value in float32: the rounded and clamped quotient by the scale, and the zero point."""

    steps: Scalar
    zero: Scalar


def _code(x: Scalar) -> _Code | None:
    """x as a quantized value with a zero point, None for others."""
    if not isinstance(x, Apply) or x.fn != "cast" or x.dtype.kind not in "iu":
        return None
    (moved,) = x.args
    if not isinstance(moved, Apply) or moved.fn != "add" or moved.dtype != I32:
        return None
    steps, zero = (_uncast(a) for a in moved.args)
    if not isinstance(steps, Apply) or steps.fn != "snap":
        return None
    limits = [b.args[1] for b in steps.args[1:] if isinstance(b, Apply) and b.fn == "sub"]
    return _Code(steps, limits[0]) if limits == [cast(zero, F32)] * 2 else None


def coded(x: Scalar) -> Scalar:
    """A quantization to 8 bits as one function of the quotient by the scale and the zero point; others as they are."""
    if not isinstance(x, Apply) or x.dtype not in CODES:
        return x
    low = const(-(1 << 7) if x.dtype == I8 else 0)
    high = const(low.value + (1 << 8) - 1)
    found, inner = _code(x), x.args[0]
    if found is not None and isinstance(found.steps, Apply):
        steps, *limits = found.steps.args
        if limits == [apply("sub", end, found.zero) for end in (low, high)]:
            return Apply("coded", (steps, low, high, cast(_uncast(found.zero), I32)), x.dtype)
    if x.fn == "cast" and isinstance(inner, Apply) and inner.fn == "snap" and inner.args[1:] == (low, high):
        return Apply("coded", (*inner.args, const(0, I32)), x.dtype)
    return x


def recoded(x: Scalar) -> Scalar:
    """x with a quantization that is followed by a dequantization kept in float32, without narrowing to integers.

    Where the zero point is subtracted again, it is not added either.
    """

    def go(node: Scalar) -> Scalar | None:
        if not isinstance(node, Apply) or node.dtype not in (F32, I32):
            return None
        if node.fn == "sub" and (code := _code(_uncast(node.args[0]))) is not None:
            return cast(recoded(code.steps), node.dtype) if cast(code.zero, node.dtype) == node.args[1] else None
        if node.fn == "cast" and isinstance(narrow := node.args[0], Apply) and narrow.fn == "cast":
            (steps,) = narrow.args
            if narrow.dtype.kind in "iu" and isinstance(steps, Apply) and steps.fn == "snap":
                return cast(recoded(steps), node.dtype)
            if node.dtype == F32 and (code := _code(narrow)) is not None:
                return apply("add", recoded(code.steps), code.zero)
        return None

    return rebuild(x, go, lambda i: i)


def without_scales(x: Scalar) -> Scalar:
    """x with the scales of quantized contractions factored out of their sums.

    Differences of quantized values, their products and short sums of them are exact in float32.
    """

    def go(node: Scalar) -> Scalar | None:
        sides = sides_of(node) if isinstance(node, Reduce) else None
        if sides is None or not isinstance(node, Reduce):
            return None
        exact = (product([r.extent for r in node.ranges]).constant or MOST) <= FEW
        dtype = F32 if exact else node.dtype
        terms = apply("mul", *(_difference(side, dtype) for side in sides))
        return scaled(cast(Reduce("sum", node.ranges, (terms,), dtype), node.dtype), *sides)

    return rebuild(x, go, lambda i: i)


def _difference(side: Side, dtype: DType) -> Scalar:
    code = cast(side.codes, dtype)
    return code if isinstance(side.zero, Const) and side.zero.value == 0 else apply("sub", code, cast(side.zero, dtype))


def _side(x: Scalar, ranges: frozenset[Axis]) -> Side | None:
    if isinstance(x, Apply) and x.fn == "select":
        return _guarded_side(x, ranges)
    if isinstance(x, Apply) and x.fn == "mul":
        for factor, scale in (x.args, x.args[::-1]):
            if not free_axes(scale) & ranges and (side := _side(factor, ranges)) is not None:
                return replace(side, scales=(*side.scales, scale))
        return None
    zero: Scalar | None = None
    if isinstance(x, Apply) and x.fn == "sub":
        x, zero = x.args
        if free_axes(zero) & ranges:
            return None
    codes = _uncast(x)
    if not isinstance(codes, Load) or codes.dtype not in CODES:
        return None
    if zero is None:
        return Side(codes, const(0, codes.dtype), ())
    zero = _uncast(zero)
    if isinstance(zero, Const):
        zero = const(int(zero.value), codes.dtype) if _is_code(zero, codes) else None
    elif not isinstance(zero, Load) or zero.dtype != codes.dtype:
        zero = None
    return Side(codes, zero, ()) if zero is not None else None


def _uncast(x: Scalar) -> Scalar:
    while isinstance(x, Apply) and x.fn == "cast" and x.dtype in (F32, I32):
        x = x.args[0]
    return x


def _is_code(zero: Const, codes: Load) -> bool:
    made = cast(const(int(zero.value), codes.dtype), I32)
    return isinstance(made, Const) and made.value == zero.value


def _guarded_side(x: Apply, ranges: frozenset[Axis]) -> Side | None:
    """A side that is zero where the guards of its values fail."""
    test, value, otherwise = x.args
    side = _side(value, ranges)
    if side is None or otherwise not in (const(0), const(0, I32)) or not side.codes.guards:
        return None
    guards = side.codes.guards
    if simplify(in_guards(guards)) != simplify(test):
        return None
    bare = _without(side.zero, guards)
    codes = replace(side.codes, otherwise=bare)
    return Side(codes, bare, tuple(_without(s, guards) for s in side.scales))


def _without(x: Scalar, guards: tuple[Guard, ...]) -> Scalar:
    """x with these guards removed from its loads, which took them over from the values' loads."""

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.guards[: len(guards)] == guards:
            rest = node.guards[len(guards) :]
            return Load(node.source, node.index, node.dtype, rest, node.otherwise if rest else None)
        return None

    return rebuild(x, go, lambda i: i)
