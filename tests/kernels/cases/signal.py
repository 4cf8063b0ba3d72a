"""Cases of signals: padding in every mode and first elements of their own, on lines of known and of open length."""

from __future__ import annotations

from typing import Any

from onnxfuse.ir.dtype import F16, F32, I64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case, Sizes
from tests.rules.build import Build

OPEN = ({"A": 2, "L": 203}, {"A": 1, "L": 9}, {"A": 3, "L": 64})
SHAPES: dict[str, tuple[tuple[int | str, ...], tuple[Sizes, ...]]] = {
    "any": (("A", "L"), OPEN),
    "fixed": ((2, 91), ({},)),
}


def padded(mode: str, *shape: int | str, before: int = 7, behind: int = 5, dtype: DType = F32) -> Graph:
    """Lines with padding at both ends, and something elementwise behind it."""
    b = Build(18)
    y = b.node("Pad", b.input("x", *shape, dtype=dtype), b.ints(0, before, 0, behind), mode=mode)
    return b.graph(b.node("Neg", y))


def pre_emphasis(*shape: int | str, mode: str = "first", **attrs: Any) -> Graph:
    """Each sample less a share of the one before it, the first as it is or less its own share; then zeros around."""
    b = Build(18)
    x = b.input("x", *shape)
    if mode == "first":
        first, rest, early = (b.node("Slice", x, *map(b.ints, (i, j, 1))) for i, j in ((0, 1), (1, 1 << 40), (0, -1)))
        y = b.node("Concat", first, b.node("Sub", rest, b.node("Mul", early, b.constant(0.97))), axis=1)
    else:
        early = b.node("Slice", b.node("Pad", x, b.ints(0, 1, 0, 0), mode="edge"), b.ints(0), b.ints(-1), b.ints(1))
        y = b.node("Sub", x, b.node("Mul", early, b.constant(0.97)))
    return b.graph(b.node("Pad", y, b.ints(0, 4, 0, 4), **attrs))


def scaled_by_line(*shape: int | str) -> Graph:
    """Lines times a number of each line, with zeros around."""
    b = Build(18)
    y = b.node("Add", b.input("x", *shape), b.input("each", shape[0], 1))
    return b.graph(b.node("Exp", b.node("Pad", y, b.ints(0, 3, 0, 20))))


def joined_lines(dtype: DType) -> Graph:
    """Three lines behind each other, two of them of open length."""
    b = Build(18)
    parts = (b.input(name, "A", extent, dtype=dtype) for name, extent in (("x", "L"), ("y", "L"), ("z", 5)))
    return b.graph(b.node("Neg", b.node("Concat", *parts, axis=1)))


def every_second() -> Graph:
    """Every second element of two lines behind each other."""
    b = Build(18)
    x = b.node("Concat", b.input("x", "A", "L"), b.input("y", "A", 40), axis=1)
    return b.graph(b.node("Neg", b.node("Slice", x, b.ints(1), b.ints(1 << 40), b.ints(1), b.ints(2))))


CASES = [
    *(
        Case(f"pad_{mode}_{name}", padded(mode, *shape), sizes)
        for mode in ("reflect", "edge")
        for name, (shape, sizes) in SHAPES.items()
    ),
    Case("pad_reflect_half", padded("reflect", "A", "L", dtype=F16), OPEN),
    Case("pad_reflect_codes", padded("reflect", "A", "L", dtype=I64), OPEN),
    Case("pad_reflect_one_side", padded("reflect", "A", "L", before=0, behind=8), OPEN),
    *(
        Case(f"pre_emphasis_{mode}_{name}", pre_emphasis(*shape, mode=mode), sizes)
        for mode in ("first", "edge")
        for name, (shape, sizes) in SHAPES.items()
    ),
    *(Case(f"scaled_by_line_{name}", scaled_by_line(*shape), sizes) for name, (shape, sizes) in SHAPES.items()),
    *(Case(f"joined_lines_{dtype}", joined_lines(dtype), OPEN) for dtype in (F32, F16, I64)),
    Case("every_second_joined", every_second(), OPEN),
]
