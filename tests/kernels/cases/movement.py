"""Cases of kernels that move elements: every operator of the kind, chains of them, and what they are fused with."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BOOL, F16, F32, F64, I8, I32, I64, U8, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Index, Symbol
from tests.kernels.compiled import Array, Case, Sizes
from tests.rules.build import Build, draw

ANY = ({"A": 3, "B": 37}, {"A": 1, "B": 1}, {"A": 40, "B": 2})


def one(op: str, *shape: int | str, after: str = "Neg", dtype: DType = F32, count: int = 1, **attrs: Any) -> Graph:
    """One operator on x, its further inputs given as tuples of integers, and something elementwise behind it."""
    b = Build(int(attrs.pop("opset", 18)))
    ints = attrs.pop("ints", ())
    x = b.input("x", *shape, dtype=dtype)
    y = b.node(op, x, *(b.ints(*i) for i in ints), count=count, **attrs)
    ys = y if count > 1 else (y,)
    return b.graph(*(b.node(after, v) if after else v for v in ys))


def scaled_image() -> Graph:
    """An image whose channels are scaled one by one and then lie side by side."""
    b = Build()
    x = b.node("Sub", b.input("x", 2, 3, 5, 37), b.weights(1, 3, 1, 1))
    return b.graph(b.node("Transpose", b.node("Mul", x, b.weights(3, 1, 1)), perm=(0, 2, 3, 1)))


def kept_and_copied() -> Graph:
    """Rows that are joined, stored, and stored again for each of several readers, as caches of keys and values are."""
    b = Build()
    x = b.node("Concat", b.input("past", 2, "A", 19), b.input("new", 2, 1, 19), axis=1)
    copies = b.node("Expand", b.node("Unsqueeze", x, b.ints(1)), b.ints(1, 3, 1, 1))
    return b.graph(x, copies)


def order() -> list[Case]:
    out = []
    for shape in ((19, 33), (33, 1), (5, 70)):
        out.append(Case(f"turn_{shape[0]}_{shape[1]}", one("Transpose", *shape, perm=(1, 0))))
    for perm in ((0, 2, 1), (1, 0, 2), (2, 0, 1), (2, 1, 0), (1, 2, 0)):
        name = "".join(map(str, perm))
        out.append(Case(f"turn_{name}", one("Transpose", 7, 19, 33, perm=perm)))
    out += [
        Case("turn_four", one("Transpose", 2, 6, 5, 16, perm=(0, 3, 1, 2))),
        *(
            Case(f"woven_{n}_{w}", one("Transpose", 2, n, 3, w, perm=(0, 2, 3, 1)))
            for n in (2, 3, 4)
            for w in (1, 16, 37)
        ),
        Case("woven_scaled", scaled_image()),
        Case("kept_and_copied", kept_and_copied(), ({"A": 5}, {"A": 1}, {"A": 0})),
        Case("woven_any", one("Transpose", 3, "A", perm=(1, 0)), ANY),
        Case("woven_none", one("Transpose", 3, 0, perm=(1, 0))),
        Case("turn_alone", one("Transpose", 3, 50, 19, perm=(0, 2, 1), after="")),
        Case("turn_alone_long", one("Transpose", 2, 9, 1040, perm=(2, 0, 1), after="")),
        Case("turn_alone_prime", one("Transpose", 31, 521, perm=(1, 0), after="")),
        Case("turn_any", one("Transpose", "A", "B", perm=(1, 0)), ANY),
        Case("turn_bytes", one("Transpose", 9, 34, perm=(1, 0), dtype=U8, after="")),
        Case("turn_none", one("Transpose", 0, 34, perm=(1, 0))),
        Case("space_to_depth", one("SpaceToDepth", 2, 3, 6, 8, blocksize=2)),
        Case("depth_to_space", one("DepthToSpace", 2, 12, 3, 5, blocksize=2)),
        Case("depth_to_space_crd", one("DepthToSpace", 2, 12, 3, 5, blocksize=2, mode="CRD")),
        Case("flatten", one("Flatten", 2, 3, 5, axis=2)),
        Case("reshape", one("Reshape", 6, 10, ints=((4, -1),))),
        Case("reshape_any", one("Reshape", "A", "B", 6, ints=((0, 0, 2, 3),)), ANY),
        Case("squeeze", one("Squeeze", 3, 1, 5, 1, ints=((1, 3),))),
        Case("unsqueeze", one("Unsqueeze", 3, 5, ints=((0, 3),))),
        Case("expand", one("Expand", 3, 1, 5, ints=((2, 3, 4, 5),))),
        Case("tile", one("Tile", 3, 5, ints=((2, 3),))),
    ]
    b = Build()
    x = b.node("Reshape", b.input("x", 2, 12, 20), b.ints(2, 3, 4, 20))
    x = b.node("Transpose", x, perm=(0, 2, 1, 3))
    out.append(Case("heads_split_and_merged", b.graph(b.node("Exp", b.node("Reshape", x, b.ints(2, 4, 60))))))
    b = Build()
    x = b.node("Concat", b.input("x", 2, 35, 40), b.input("y", 2, 3, 40), b.input("z", 2, 16, 40), axis=1)
    out.append(Case("joined_and_turned", b.graph(b.node("Transpose", x, perm=(0, 2, 1)))))
    b = Build()
    x = b.input("x", 2, 6, 9, 20)
    for axis, first, last in ((1, 2, 6), (2, 3, 9)):
        pieces = [b.node("Slice", x, *map(b.ints, (i, j, axis))) for i, j in ((first, last), (0, first))]
        x = b.node("Concat", *pieces, axis=axis)
    out.append(Case("rolled_twice", b.graph(b.node("Relu", x))))
    b = Build()
    x = b.node("Transpose", b.input("x", 8, 9, 20), perm=(2, 1, 0))
    y = b.node("Reshape", x, b.ints(18, 80))
    out.append(Case("turned_and_cut", b.graph(b.node("Transpose", y, perm=(1, 0)))))
    return out


def pieces() -> list[Case]:
    out = []
    for name, shape, ints in (
        ("middle", (9, 40), ((2, 5), (7, 33), (0, 1))),
        ("steps", (9, 40), ((0, 1), (9, 40), (0, 1), (2, 3))),
        ("backwards", (9, 40), ((-1, -1), (-10, -41), (0, 1), (-1, -2))),
        ("last", (9, 40), ((-3,), (1000,), (1,))),
        ("none", (9, 40), ((5,), (5,), (1,))),
    ):
        out.append(Case(f"slice_{name}", one("Slice", *shape, ints=ints)))
    out += [
        Case("slice_any", one("Slice", "A", 40, ints=((3,), (-2,), (1,))), ({"A": 5}, {"A": 1})),
        Case("split_even", one("Split", 4, 33, opset=13, count=3, axis=1, ints=((11, 11, 11),))),
        Case("split_uneven", one("Split", 9, 4, opset=13, count=3, axis=0, ints=((1, 6, 2),))),
        Case("split_any", one("Split", "A", 20, opset=13, count=2, axis=-1, ints=((4, 16),)), ({"A": 5}, {"A": 1})),
    ]
    out += [triangle(step, upper) for step in (1, 2, 3, -1, -2, -3) for upper in (0, 1)]
    out.append(Case("pad_zeros", one("Pad", 9, 20, ints=((1, 2, 3, 4),))))
    out.append(Case("pad_cut", one("Pad", 9, 20, ints=((-1, 2, -3, -4),))))
    b = Build()
    y = b.node("Pad", b.input("x", 5, 12), b.ints(0, 1, 2, 0), b.constant(2.5))
    out.append(Case("pad_value", b.graph(b.node("Sqrt", b.node("Abs", y)))))
    out.append(Case("pad_any", one("Pad", "A", "B", ints=((1, 0, 0, 2),)), ANY))
    out.append(Case("pad_int8", one("Pad", 5, 6, ints=((1, 1, 1, 1),), dtype=I8, after="")))
    return out


def triangle(step: int, upper: int) -> Case:
    """Every `step`-th column of a triangle of sums, so that lanes are compared with an index of that slope."""
    b, rows, width = Build(18), 40, 53
    x = b.node("Trilu", b.node("Add", b.input("x", rows, width), b.constant(3.0)), upper=upper)
    ends = (0, width) if step > 0 else (width - 1, -width - 1)
    y = b.node("Exp", b.node("Slice", x, *(b.ints(n) for n in (*ends, 1, step))), out="y")
    return Case(f"triangle_{'upper' if upper else 'lower'}_{step}".replace("-", "back_"), b.graph(y))


def joined(shapes: Any, axis: int, dtype: DType = F32, after: str = "Relu") -> Graph:
    b = Build()
    x = b.node("Concat", *(b.input(f"x{i}", *s, dtype=dtype) for i, s in enumerate(shapes)), axis=axis)
    return b.graph(b.node(after, x) if after else x)


def joins() -> list[Case]:
    out = [
        Case("concat_middle", joined(((2, 3, 5), (2, 4, 5)), 1)),
        Case("concat_last", joined(((7, 16), (7, 3), (7, 20)), -1)),
        Case("concat_first", joined(((3, 40), (1, 40), (2, 40)), 0)),
        Case("concat_empty", joined(((3, 4), (0, 4), (2, 4)), 0)),
        Case("concat_many", joined(tuple((2, 1 + i % 3, 16) for i in range(8)), 1)),
        Case("concat_any_last", joined((("A", 5), ("A", 12)), 1), ({"A": 3}, {"A": 1})),
        Case("concat_any_first", joined((("A", 5), ("B", 5)), 0), ANY),
        Case("concat_images", joined(((1, 6, 5, 5), (1, 11, 5, 5)), 1, after=""), last=("x0", "x1", "v0")),
    ]
    for t in (F64, F16, I8, BOOL, I64):
        out.append(Case(f"concat_{t}", joined(((5, 9), (5, 8)), 1, t, "")))
    b = Build()
    x, y = b.input("x", 5, 9), b.input("y", 5, 9)
    z = b.node("Concat", b.node("Exp", x), b.node("Mul", x, y), b.node("Pad", y, b.ints(0, 1, 0, 1)), axis=1)
    out.append(Case("concat_of_work", b.graph(b.node("Slice", z, b.ints(4), b.ints(26), b.ints(1)))))
    b = Build()
    x = b.input("x", 4, 6)
    pieces = b.node("Split", x, b.ints(2, 4), count=2, axis=1)
    out.append(Case("concat_swaps_halves", b.graph(b.node("Concat", b.node("Neg", pieces[1]), pieces[0], axis=1))))
    return out


def places(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Indices in their range, negative ones too."""
    feeds = draw(graph, rng, sizes)
    for name, value in feeds.items():
        if value.dtype.kind == "i":
            feeds[name] = rng.integers(-4, 4, value.shape).astype(value.dtype)
    return feeds


def look_ups() -> list[Case]:
    out = []

    def add(name: str, b: Build, y: str, sizes: Any = ({},)) -> None:
        out.append(Case(name, b.graph(b.node("Neg", y)), tuple(sizes), feeds=places))

    for axis in (0, 1, 2):
        for t in (I64, I32):
            b = Build()
            add(
                f"gather_{axis}_{t}", b, b.node("Gather", b.input("x", 4, 5, 6), b.input("i", 3, 2, dtype=t), axis=axis)
            )
    b = Build()
    add("gather_one", b, b.node("Gather", b.input("x", 4, 5, 6), b.input("i", dtype=I64), axis=1))
    b = Build()
    add("gather_weights", b, b.node("Gather", b.weights(9, 20), b.input("i", "A", "B", dtype=I64)), ANY)
    b = Build()
    add("gather_known", b, b.node("Gather", b.input("x", 4, 20), b.constant([[2, 0], [3, -1]], np.int64), axis=0))
    b = Build()
    add("gather_elements", b, b.node("GatherElements", b.input("x", 4, 20), b.input("i", 7, 20, dtype=I64), axis=0))
    b = Build()
    add("gather_elements_last", b, b.node("GatherElements", b.input("x", 4, 20), b.input("i", 4, 9, dtype=I64), axis=1))
    b = Build()
    add("gather_nd", b, b.node("GatherND", b.input("x", 4, 5, 17), b.input("i", 6, 2, dtype=I64)))
    b = Build()
    add("gather_nd_whole", b, b.node("GatherND", b.input("x", 4, 5), b.input("i", 3, 2, 2, dtype=I64)))
    b = Build(13)
    add("gather_nd_batch", b, b.node("GatherND", b.input("x", 3, 5, 4), b.input("i", 3, 2, 1, dtype=I64), batch_dims=1))
    b = Build()
    at = b.constant([[0, 2, 1], [3, -4, 1]], np.int64)
    add("scatter_elements", b, b.node("ScatterElements", b.input("x", 4, 20), at, b.input("u", 2, 3), axis=0))
    b = Build()
    at = b.constant([[[0, 1], [3, -1]], [[2, 2], [1, 0]]], np.int64)
    add("scatter_nd", b, b.node("ScatterND", b.input("x", 4, 5, "A"), at, b.input("u", 2, 2, "A")), ANY)
    b = Build()
    i, t = b.input("i", "A", "B", dtype=I64), b.input("t", "A", "B", dtype=I64)
    x = b.node("Add", b.node("Gather", b.weights(50, 64), i), b.node("Gather", b.weights(4, 64), t))
    y = b.node("LayerNormalization", x, b.weights(64), b.weights(64), axis=-1)
    out.append(Case("embedding", b.graph(y), ANY, feeds=places))
    out.append(Case("look_up_behind_a_guard", neighbours(7), feeds=places))
    out.append(Case("look_up_behind_a_guard_one", neighbours(1), feeds=places))
    return out


def neighbours(length: int | str) -> Graph:
    """Words between those before and behind them, zeros at the ends: what is looked up lies behind a guard."""
    b = Build()
    words = b.node("Gather", b.weights(9, 20), b.input("i", 2, length, dtype=I64))
    behind = b.node("Slice", words, b.ints(1), b.ints(2**62), b.ints(1))
    before = b.node("Slice", words, b.ints(0), b.ints(-1), b.ints(1))
    behind = b.node("Pad", behind, b.ints(0, 0, 0, 0, 1, 0))
    before = b.node("Pad", before, b.ints(0, 1, 0, 0, 0, 0))
    return b.graph(b.node("Concat", behind, words, before, axis=2))


def rolled(batch: int | str) -> Graph:
    """An image rolled along both axes, as places of a sequence."""
    b = Build()
    x = b.input("x", batch, 10, 10, 16)
    for axis in (1, 2):
        first = b.node("Slice", x, b.ints(8), b.ints(10), b.ints(axis))
        rest = b.node("Slice", x, b.ints(0), b.ints(8), b.ints(axis))
        x = b.node("Concat", first, rest, axis=axis)
    x = b.node("Reshape", x, b.ints(-1, 100, 16))
    return b.graph(b.node("Add", x, b.input("y", batch, 100, 16)))


def made() -> list[Case]:
    out = []
    b = Build()
    r = b.node("Range", b.constant(np.array(3)), b.constant(np.array(40)), b.constant(np.array(2)))
    x = b.node("Add", b.input("x", 1, dtype=I64), r)
    out.append(Case("range", b.graph(x)))
    b = Build()
    x = b.node("Reshape", b.input("x", 4, 15), b.ints(4, 3, 5))
    x = b.node("Transpose", x, perm=(1, 0, 2))
    x = b.node("Slice", x, b.ints(1), b.ints(3), b.ints(1))
    x = b.node("Concat", x, b.input("y", 3, 1, 5), axis=1)
    x = b.node("Pad", x, b.ints(0, 0, 1, 0, 0, 1))
    out.append(Case("long_way", b.graph(b.node("Tanh", x))))
    b = Build()
    x = b.node("Transpose", b.node("Pad", b.input("x", 1, 3, 6, 6), b.ints(0, 0, 1, 1, 0, 0, 1, 1)), perm=(0, 2, 3, 1))
    out.append(Case("pad_then_turn", b.graph(x)))
    out.append(Case("rolled", rolled(2)))
    out.append(Case("rolled_any", rolled("A"), ({"A": 3}, {"A": 1})))
    return out


def alike_along(op: str, *shape: int | str, axis: int, size: int = 1) -> Graph:
    """Padded values, and their reduction along an axis on which they do not depend: it has `size` equal elements."""
    b = Build()
    rank = len(shape)
    x = b.input("x", *shape)
    padded = b.node("Pad", x, b.ints(*(0,) * rank, *(i != axis for i in range(rank))))
    many = b.node("Expand", padded, b.ints(*(size if i == axis else 1 for i in range(rank))))
    return b.graph(padded, b.node(op, many, b.ints(axis), keepdims=0))


def padded_and_summed(*shape: int | str, op: str = "ReduceSum") -> Graph:
    """Values padded along all axes but the last, which both the caller and a reduction along that axis take."""
    b = Build()
    before, behind = [[int(0 < i < len(shape) - 1) for i in range(len(shape))] for _ in range(2)]
    padded = b.node("Pad", b.input("x", *shape), b.ints(*before, *behind))
    return b.graph(padded, b.node(op, padded, b.ints(-1), keepdims=0))


def reductions() -> list[Case]:
    """Reductions of padded values: the guards of what they read are those of their loops, which read elsewhere."""
    return [
        Case("padded_and_summed", padded_and_summed(2, 7, 9, 32)),
        Case("padded_and_summed_any", padded_and_summed(3, "A", 1, "B"), ANY),
        Case("padded_and_squared", padded_and_summed(2, 3, 5, 48, op="ReduceSumSquare")),
        Case("padded_sum_of_one", alike_along("ReduceSum", 1, 8, 11, axis=0)),
        Case("padded_sum_of_equals", alike_along("ReduceSum", 1, 8, 11, axis=0, size=3)),
        Case("padded_sum_of_columns", alike_along("ReduceSum", 9, 5, 1, axis=2, size=4)),
        Case("padded_sum_any", alike_along("ReduceSum", 1, "A", "B", axis=0, size=2), ANY),
    ]


def extents() -> list[Case]:
    """Kernels whose inputs have products of symbols, and multiples of one, as extents."""
    out = []
    a, both = Index.of(Symbol("A")), Index.of(Symbol("A")) * Symbol("B")
    b = Build()
    out.append(Case("product_of_symbols", b.graph(b.node("Exp", b.node("Neg", b.input("x", both, 6)))), ANY))
    b = Build()
    x = b.node("Reshape", b.input("x", a * 4, 6), b.ints(-1, 4, 6))
    out.append(Case("multiple_of_a_symbol", b.graph(b.node("Exp", b.node("Transpose", x, perm=(0, 2, 1)))), ANY))
    return out


CASES: tuple[Case, ...] = (*order(), *pieces(), *joins(), *look_ups(), *made(), *reductions(), *extents())
