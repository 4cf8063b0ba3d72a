"""Products of integer codes: sums of (code - zero point) * scale on both sides, recognised from their definitions.

The codes are multiplied and summed as integers, which is exact; the scales, which do not depend on what is summed over,
multiply the sum, as ONNX Runtime has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, reduce

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import free_axes, in_guards, rebuild, walk
from onnxfuse.ir.dtype import F32, I8, I32, U8, DType
from onnxfuse.ir.index import ONE, Axis, Index
from onnxfuse.ir.scalar import Apply, Const, Guard, Load, Reduce, Scalar, apply, cast, const

CODES = (U8, I8)
MOST = 1 << 16  # terms of a sum, such that 32 bits hold it


@dataclass(frozen=True, slots=True)
class Side:
    """One factor: codes, the code of zero and what the difference is multiplied by.

    Where a guard of the codes fails, they are the code of zero.
    """

    codes: Load
    zero: Scalar  # a number, or a code that is loaded
    scales: tuple[Scalar, ...]


def sides_of(total: Reduce) -> tuple[Side, Side] | None:
    """The two sides of a sum of products of codes; None where it is something else."""
    body, ranges = total.body[0], frozenset(total.ranges)
    if total.combine != "sum" or total.dtype not in (F32, I32) or not isinstance(body, Apply) or body.fn != "mul":
        return None
    left, right = (_side(x, ranges) for x in body.args)
    return (left, right) if left is not None and right is not None else None


def scaled(total: Scalar, left: Side, right: Side) -> Scalar:
    """What a sum of products of differences stands for: it times the product of the scales, which no row changes."""
    scales = (*left.scales, *right.scales)
    return apply("mul", total, reduce(partial(apply, "mul"), scales)) if scales else total


def is_flat(zero: Scalar, columns: tuple[Axis, ...]) -> bool:
    """Whether the zero points of the columns are one number, or codes that lie one behind the other."""
    if isinstance(zero, Const):
        return True
    axes = {a for a in columns if a.extent != ONE}
    if not isinstance(zero, Load) or zero.guards or not free_axes(zero) <= axes:
        return False
    return not free_axes(zero) or (len(axes) == 1 and zero.index == tuple(map(Index.of, columns)))


def requantized(x: Scalar) -> Scalar:
    """x with divisions by a scale that follow a sum of codes as products with what is one over it, computed once.

    ONNX Runtime multiplies integer sums by one number as well; results differ by a rounding.
    """

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Apply) and node.fn == "div" and node.dtype == F32 and _is_scale(node.args[1]):
            return _times(requantized(node.args[0]), apply("div", const(1.0), node.args[1]))
        return None

    return rebuild(x, go, lambda i: i)


def _times(x: Scalar, scale: Scalar) -> Scalar:
    """x * scale, the scale multiplied into the factors and terms of x that are the same for all rows."""
    if isinstance(x, Apply) and x.fn in ("mul", "add"):
        one, two = x.args
        if x.fn == "mul" and (not _reads_sums(two)):
            return apply("mul", one, apply("mul", two, scale))
        if x.fn == "add" and not _reads_sums(two) and len(free_axes(two)) <= 1:
            return apply("add", _times(one, scale), apply("mul", two, scale))
    return apply("mul", x, scale)


def _reads_sums(x: Scalar) -> bool:
    return any(isinstance(n, Reduce) or (isinstance(n, Load) and n.source.startswith("%")) for n in walk(x))


def _is_scale(x: Scalar) -> bool:
    return isinstance(x, Load) and not x.guards and not free_axes(x)


def without_scales(x: Scalar) -> Scalar:
    """x with scales that all terms of a sum of products of codes have as factors of the sum; `requantized` where so."""

    def go(node: Scalar) -> Scalar | None:
        sides = sides_of(node) if isinstance(node, Reduce) else None
        if sides is None or not isinstance(node, Reduce):
            return None
        terms = apply("mul", *(_difference(side, node.dtype) for side in sides))
        return scaled(Reduce("sum", node.ranges, (terms,), node.dtype), *sides)

    made = rebuild(x, go, lambda i: i)
    return requantized(made) if made != x else x


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
    return cast(const(int(zero.value), codes.dtype), I32).value == zero.value  # type: ignore[union-attr]  # of a number


def _guarded_side(x: Apply, ranges: frozenset[Axis]) -> Side | None:
    """A side that is zero where its codes' guards fail."""
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
    """x with its loads free of these guards, which came to them from the codes beside them."""

    def go(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.guards[: len(guards)] == guards:
            rest = node.guards[len(guards) :]
            return Load(node.source, node.index, node.dtype, rest, node.otherwise if rest else None)
        return None

    return rebuild(x, go, lambda i: i)
