"""Expressions legalized: how vector lanes are loaded, and combinations that one instruction computes.

Values do not change; min and max only get to know which of their operands may be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from onnxfuse.ir.compose import free_axes
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, grouped
from onnxfuse.ir.lanes import NEAR, climbing, masked, piecewise
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Lanes, Load, Scalar

SNAPPED = 32  # bits of the widest integers to which one instruction rounds a float
ORDERED = {"max": "max_or_second", "min": "min_or_second"}


@dataclass(slots=True)
class LegalScalars:
    """Rewrites expressions in a vector loop over `axis`, or outside of vector loops (None), with memoization."""

    axis: Axis | None = None
    aligned: bool = False  # whether the loop's vectors begin at multiples of their lanes
    memo: dict[Scalar, Scalar] = field(default_factory=dict)

    def __call__(self, x: Scalar) -> Scalar:
        """The expression with all its subexpressions legalized."""
        made = self.memo.get(x)
        if made is None:
            made = self.memo[x] = self._made(x)
        return made

    def _made(self, x: Scalar) -> Scalar:
        if isinstance(x, Apply):
            return self._apply(x)
        if isinstance(x, Load) and x.index:
            otherwise = self(x.otherwise) if x.otherwise is not None else None
            lanes = self._lanes(x)
            same = otherwise is x.otherwise and lanes == x.lanes
            return x if same else replace(x, otherwise=otherwise, lanes=lanes)
        if isinstance(x, FromIndex) and self.axis is not None:
            return replace(x, lanes=self._numbers(x, self.axis))
        return x

    # Lanes ------------------------------------------------------------------------------------------------------------

    def _varies(self, e: Index) -> bool:
        return self.axis in axes_of(e)

    def _lanes(self, x: Load) -> Lanes | None:
        """How a vector is loaded, by the stride between lanes and by its guards."""
        if self.axis is None:
            return None
        if (apart := masked(x, self.axis)) is not None:
            return Lanes("masked", apart)
        if piecewise(x, self.axis):
            return Lanes("piecewise")
        if any(self._varies(g.index) for g in x.guards):
            return Lanes("guarded")
        stride = coefficient(x.index[0], self.axis)
        if stride in (ONE, ZERO):
            return Lanes("vector" if stride == ONE else "broadcast")
        if stride is not None and (near := stride.constant) is not None and near in NEAR:
            return Lanes("strided", near)
        if self.aligned and (found := grouped(x.index[0], self.axis)) is not None:
            return Lanes("grouped", *found)
        if (each := climbing(x, self.axis)) is not None:
            return Lanes("climbing", each)
        return Lanes("gathered")

    def _numbers(self, x: FromIndex, axis: Axis) -> Lanes:
        """How an index becomes a vector of numbers."""
        if not any(self._varies(e) for e in (x.index, *(g.index for g in x.guards))):
            return Lanes("broadcast")
        consecutive = not x.guards and x.dtype.kind in "iu" and coefficient(x.index, axis) == ONE
        return Lanes("vector" if consecutive else "gathered")

    # Functions --------------------------------------------------------------------------------------------------------

    def _apply(self, x: Apply) -> Scalar:
        """A function of legal operands, or an equivalent single instruction."""
        if (boundary := self._boundary(x)) is not None:
            return boundary
        args = tuple(map(self, x.args))
        if x.fn == "cast" and x.dtype.kind in "iu" and x.dtype.bits <= SNAPPED:
            (inner,) = args
            if isinstance(inner, Apply) and inner.fn == "snap":
                return Apply("snapped", inner.args, x.dtype)
        if x.fn in ORDERED:
            return _ordered(x, args)
        if x.fn == "coded" and (quotient := self._shared_quotient(args[0])) is not None:
            return Apply("coded", (quotient, *args[1:]), x.dtype)
        if x.fn == "mul" and x.dtype == F32 and any(map(_was_integer, args)):
            return Apply("rounded_mul", args, x.dtype)
        if x.fn == "select" and self.axis is not None:
            test = x.args[0]
            if isinstance(test, Apply) and test.fn == "greater" and test.args == x.args[1:]:
                return Apply(ORDERED["max"], args[1:], x.dtype)
        return x if all(a is b for a, b in zip(args, x.args, strict=True)) else Apply(x.fn, args, x.dtype)

    def _shared_quotient(self, x: Scalar) -> Scalar | None:
        """A quotient by what all lanes share, which takes multiplications only where its nearest integer is wanted."""
        if not isinstance(x, Apply) or x.fn != "div" or x.dtype != F32 or self.axis is None:
            return None
        return None if self.axis in free_axes(x.args[1]) else Apply("quotient_to_round", x.args, F32)

    def _boundary(self, x: Apply) -> Scalar | None:
        """A comparison of an index with 0 whose result changes once along the lanes, as a mask by number of lanes."""
        if self.axis is None or x.fn not in ("less", "greater_equal"):
            return None
        left, zero = x.args
        if not isinstance(left, FromIndex) or left.guards or zero != Const(0, left.dtype):
            return None
        stride = coefficient(left.index, self.axis)
        if stride is None or not stride.constant:
            return None
        return Apply(x.fn, (replace(left, lanes=Lanes("boundary", stride.constant)), zero), x.dtype)


def _was_integer(x: Scalar) -> bool:
    """Whether x is an integer as a number: its product with a scale dequantizes it.

    ONNX Runtime rounds that product before it adds a bias. Where the sum is quantized again, the last bit decides.
    """
    return isinstance(x, Apply) and x.fn == "cast" and x.args[0].dtype.kind in "iu"


def _ordered(x: Apply, args: tuple[Scalar, ...]) -> Apply:
    """max or min that propagates NaN; a single instruction if one operand is a constant other than NaN."""
    for constant, other in (args[::-1], args):
        if isinstance(constant, Const) and constant.value == constant.value:
            return Apply(ORDERED[x.fn], (constant, other), x.dtype)
    return x if all(a is b for a, b in zip(args, x.args, strict=True)) else Apply(x.fn, args, x.dtype)
