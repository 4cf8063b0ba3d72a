"""Cases of prefix sums: along every axis, at odd and symbolic sizes, with producers and consumers fused."""

from __future__ import annotations

from typing import Any

from onnxfuse.ir.dtype import F16, F64, I32, I64, DType
from tests.kernels.cases.border import strange
from tests.kernels.compiled import Case, Sizes
from tests.rules.build import Build


def scan(
    shape: tuple[int | str, ...], axis: int, before: str = "", behind: str = "", dtype: DType | None = None,
    op: str = "CumSum", **attrs: Any,
) -> Any:  # fmt: skip
    """A scan with up to one operator before and behind it."""
    b = Build()
    x = b.input("x", *shape, **({} if dtype is None else {"dtype": dtype}))
    x = b.node(before, x) if before else x
    x = b.node(op, x, b.constant(axis, int), **attrs)
    return b.graph(b.node(behind, x) if behind else x)


BACK, EXCLUSIVE = {"reverse": 1}, {"exclusive": 1}
SOME: tuple[Sizes, ...] = ({"N": 1, "C": 3}, {"N": 13, "C": 1}, {"N": 101, "C": 67})


def cases() -> list[Case]:
    """All of them."""
    shapes = {"small": (2, 3, 5), "prime": (7, 11, 13), "long": (3, 37, 131), "one_place": (5, 1, 9), "one": (1, 1, 1)}
    out = []
    for name, shape in shapes.items():
        for axis in range(3):
            for way, attrs in (("", {}), ("_back", BACK), ("_exclusive", EXCLUSIVE), ("_both", BACK | EXCLUSIVE)):
                out.append(Case(f"{name}{axis}{way}", scan(shape, axis, "Sigmoid", **attrs)))
    for axis in range(3):
        for dtype in (F16, F64, I32, I64):
            out.append(Case(f"typed{axis}_{dtype.name}", scan((3, 19, 21), axis, "Neg", dtype=dtype)))
        out.append(Case(f"bare{axis}", scan((3, 19, 21), axis)))
        out.append(Case(f"behind{axis}", scan((3, 19, 21), axis, "Sigmoid", "Tanh")))
        out.append(Case(f"product{axis}", scan((3, 5, 7), axis, "Sigmoid", op="CumProd")))
        out.append(Case(f"strange{axis}", scan((5, 17, 19), axis, "Relu"), feeds=strange))
    for axis in range(2):
        for way, attrs in (("", {}), ("_both", BACK | EXCLUSIVE)):
            out.append(Case(f"open{axis}{way}", scan(("N", "C"), axis, "Exp", **attrs), SOME))
    out.append(Case("line", scan((1013,), 0, "Sigmoid")))
    return [*out, *_around()]


def _around() -> list[Case]:
    """Scans of scans, of what is moved on the way in, and read by others than elementwise operators."""
    b = Build()
    x = b.node("Reshape", b.input("x", 6, 35), b.ints(6, 5, 7))
    y = b.node("CumSum", b.node("Transpose", x, perm=(1, 2, 0)), b.constant(0, int))
    moved = b.graph(b.node("Reshape", b.node("Neg", y), b.ints(7, 30)))
    b = Build()
    x = b.node("Reshape", b.input("x", 6, 35), b.ints(42, 5))
    cut = b.graph(b.node("CumSum", b.node("Sigmoid", x), b.constant(0, int)))
    b = Build()
    x = b.node("CumSum", b.input("x", 9, 14), b.constant(1, int))
    twice = b.graph(b.node("CumSum", b.node("Exp", b.node("Neg", x)), b.constant(0, int)))
    b = Build()
    x = b.node("CumSum", b.input("x", 9, 14), b.constant(1, int))
    read = b.graph(b.node("Softmax", x, axis=1), b.node("ReduceMax", x, axes=(0,)))
    return [Case("moved", moved), Case("cut", cut), Case("twice", twice), Case("read", read)]


CASES = tuple(cases())
