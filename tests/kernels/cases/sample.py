"""Cases of kernels that sample images at computed places: every mode, open sizes, and what they are fused with."""

from __future__ import annotations

from typing import Any

from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case
from tests.rules.build import Build

OPEN = ({"N": 1, "H": 5, "W": 7, "P": 3}, {"N": 2, "H": 1, "W": 1, "P": 37}, {"N": 1, "H": 2, "W": 33, "P": 1})


def sampled(*shape: int | str, points: tuple[int | str, ...], opset: int = 20, **attrs: Any) -> Graph:
    """An image at places that are computed from a grid in the same kernel, with something elementwise behind."""
    b = Build(opset)
    grid = b.node("Mul", b.input("g", shape[0], *points, len(shape) - 2), b.constant([1.2]))
    return b.graph(b.node("Relu", b.node("GridSample", b.input("x", *shape), grid, **attrs)))


def attended() -> Graph:
    """Deformable attention: values that lie channels last, sampled, weighted and summed over the points of a query."""
    b = Build(16)
    image = b.node("Transpose", b.input("v", 2, 5, 7, 16), perm=(0, 3, 1, 2))
    found = b.node("GridSample", image, b.input("g", 2, 9, 4, 2), mode="bilinear", padding_mode="zeros")
    weighed = b.node("Mul", found, b.input("w", 2, 1, 9, 4))
    return b.graph(b.node("ReduceSum", weighed, b.ints(-1), keepdims=0))


def _cases() -> list[Case]:
    out = [Case("sample_attended", attended())]
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "reflection") if mode == "cubic" else ("zeros", "border", "reflection"):
            graph = sampled(2, 3, 5, 7, points=(4, 19), mode=mode, padding_mode=padding)
            out.append(Case(f"sample_{mode}_{padding}", graph))
    graph = sampled("N", 17, "H", "W", points=("P", 5))
    out.append(Case("sample_any", graph, OPEN))
    out.append(Case("sample_solid", sampled(1, 2, 3, 4, 5, points=(2, 3, 18))))
    return out


CASES: list[Case] = _cases()
