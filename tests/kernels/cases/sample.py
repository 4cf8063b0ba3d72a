"""Cases of kernels that sample images at computed places, or enlarge them: every mode, open sizes, and what follows."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import F16, F32, F64, I64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case
from tests.rules.build import Build

OPEN = ({"N": 1, "H": 5, "W": 7, "P": 3}, {"N": 2, "H": 1, "W": 1, "P": 37}, {"N": 1, "H": 2, "W": 33, "P": 1})

ENLARGED = tuple({"N": n, "H": h, "W": w} for n, h, w in ((1, 1, 1), (2, 3, 7), (1, 2, 33), (1, 5, 40), (1, 1, 130)))
IMAGES = tuple({**sizes, "N": 5} for sizes in OPEN)  # as many as an index may be


def sampled(*shape: int | str, points: tuple[int | str, ...], opset: int = 20, **attrs: Any) -> Graph:
    """An image at places that are computed from a grid in the same kernel, with something elementwise behind."""
    b = Build(opset)
    grid = b.node("Mul", b.input("g", shape[0], *points, len(shape) - 2), b.constant([1.2]))
    return b.graph(b.node("Relu", b.node("GridSample", b.input("x", *shape), grid, **attrs)))


def lost(*shape: int | str, points: tuple[int | str, ...], **attrs: Any) -> Graph:
    """An image at places that are NaN along one axis, as those of an image of one element by steps from -1 to 1 are."""
    b = Build(17)
    steps = b.node("Mul", b.input("g", shape[0], *points, len(shape) - 2), b.constant([0.0, 1.0]))
    grid = b.node("Div", steps, b.constant([0.0, 1.0]))
    return b.graph(b.node("GridSample", b.input("x", *shape), grid, **attrs))


def attended() -> Graph:
    """Deformable attention: values that lie channels last, sampled, weighted and summed over the points of a query."""
    b = Build(16)
    image = b.node("Transpose", b.input("v", 2, 5, 7, 16), perm=(0, 3, 1, 2))
    found = b.node("GridSample", image, b.input("g", 2, 9, 4, 2), mode="bilinear", padding_mode="zeros")
    weighed = b.node("Mul", found, b.input("w", 2, 1, 9, 4))
    return b.graph(b.node("ReduceSum", weighed, b.ints(-1), keepdims=0))


def stacked(count: int | str, heads: int = 4, queries: int = 21) -> Graph:
    """Deformable attention over a pyramid: heads of values, channels last, are sampled at every level and stacked."""
    b, found = Build(16), []
    start, values = 0, b.input("v", count, 20, heads, 16)
    for side in (4, 2):
        level = b.node("Slice", values, b.ints(start), b.ints(start + side * side), b.ints(1))
        start += side * side
        places = b.node("Transpose", b.input(f"g{side}", count, queries, heads, 4, 2), perm=(0, 2, 1, 3, 4))
        image = b.node("Reshape", b.node("Transpose", level, perm=(0, 2, 3, 1)), b.ints(-1, 16, side, side))
        grid = b.node("Reshape", places, b.ints(-1, queries, 4, 2))
        seen = b.node("GridSample", image, grid, mode="bilinear", padding_mode="zeros")
        found.append(b.node("Unsqueeze", seen, b.ints(3)))
    return b.graph(b.node("Concat", *found, axis=3))


def aligned(*shape: int | str, regions: int | str, **attrs: Any) -> Graph:
    """Regions of images of which each names its own, with something elementwise behind."""
    b = Build(16)
    corner, extent = b.input("corner", regions, 2), b.node("Exp", b.input("extent", regions, 2))
    rois = b.node("Concat", corner, b.node("Add", corner, extent), axis=1)
    return b.graph(
        b.node("Relu", b.node("RoiAlign", b.input("x", *shape), rois, b.input("i", regions, dtype=I64), **attrs))
    )


def levels() -> Graph:
    """Regions of two levels of a pyramid whose images lie channels last, put together by the places of each level."""
    b = Build(16)
    found = b.node("Sub", b.input("z", 7, 16, 3, 3), b.input("y", 1))
    for name, side, count in (("a", 9, 4), ("c", 5, 3)):
        image = b.node("Transpose", b.input(f"{name}x", 1, side, side, 16), perm=(0, 3, 1, 2))
        rois, of = b.input(f"{name}r", count, 4), b.constant(np.zeros(count, np.int64))
        how = {"output_height": 3, "output_width": 3, "sampling_ratio": 2, "spatial_scale": side / 18}
        places = b.node("Reshape", b.input(f"{name}i", count, dtype=I64), b.ints(count, 1))
        found = b.node("ScatterND", found, places, b.node("RoiAlign", image, rois, of, **how))
    return b.graph(found)


def enlarged(times: int, dtype: DType = F32, **attrs: Any) -> Graph:
    """An image of any size, enlarged, with something elementwise behind."""
    b = Build(17)
    wide = b.node("Resize", b.input("x", "N", 2, "H", "W", dtype=dtype), "", b.constant([1, 1, times, times]), **attrs)
    return b.graph(b.node("Relu", wide))


def _cases() -> list[Case]:
    out = [Case("sample_attended", attended()), Case("regions_of_levels", levels())]
    out.append(Case("sample_stacked", stacked(2)))
    out.append(Case("sample_stacked_any", stacked("N"), ({"N": 1}, {"N": 3})))
    sides = {"output_height": 3, "output_width": 5, "spatial_scale": 0.5}
    out.append(Case("regions_of_images", aligned(5, 2, 6, 9, regions=7, sampling_ratio=1, **sides)))
    out.append(Case("regions_any", aligned("N", 3, "H", "W", regions="P", sampling_ratio=2, **sides), IMAGES))
    for mode in ("linear", "nearest", "cubic"):
        for padding in ("zeros", "reflection") if mode == "cubic" else ("zeros", "border", "reflection"):
            graph = sampled(2, 3, 5, 7, points=(4, 19), mode=mode, padding_mode=padding)
            out.append(Case(f"sample_{mode}_{padding}", graph))
    out += [Case(f"enlarged_{n}_any", enlarged(n, mode="linear"), ENLARGED) for n in (2, 3, 4, 8)]
    out += [Case(f"enlarged_{n}_repeated", enlarged(n, mode="nearest"), ENLARGED) for n in (2, 3, 8)]
    out.append(Case("enlarged_2_double", enlarged(2, F64, mode="linear"), ENLARGED))
    out.append(Case("enlarged_4_half", enlarged(4, F16, mode="linear"), ENLARGED))
    graph = sampled("N", 17, "H", "W", points=("P", 5))
    out.append(Case("sample_any", graph, OPEN))
    for padding in ("zeros", "border", "reflection"):
        out.append(Case(f"sample_lost_{padding}", lost("N", 17, "H", "W", points=("P", 5), padding_mode=padding), OPEN))
    out.append(Case("sample_solid", sampled(1, 2, 3, 4, 5, points=(2, 3, 18))))
    return out


CASES: list[Case] = _cases()
