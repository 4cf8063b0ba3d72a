"""Cases of reductions over rows: softmax and normalization, long rows, short rows, other axes, other types."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxfuse.ir.dtype import BOOL, F16, F32, F64, I32, I64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Sizes
from tests.rules.build import Build, draw

ANY_ROWS = ({"A": 5, "N": 33}, {"A": 1, "N": 1}, {"A": 40, "N": 7}, {"A": 2, "N": 1025})


def softmax_chain(*shape: int | str) -> Graph:
    """Scale, mask, and a softmax in primitive operators."""
    b = Build(12)
    x = b.node("Mul", b.input("x", *shape), b.constant(0.125))
    x = b.node("Add", x, b.input("m", 1, shape[-1]))
    e = b.node("Exp", b.node("Sub", x, b.node("ReduceMax", x, axes=(-1,))))
    return b.graph(b.node("Div", e, b.node("ReduceSum", e, axes=(-1,))))


def norm_chain(*shape: int | str, square: str = "Pow") -> Graph:
    """Residual and a LayerNorm in primitive operators."""
    b = Build(12)
    width = int(shape[-1])
    x = b.node("Add", b.input("x", *shape), b.input("r", *shape))
    d = b.node("Sub", x, b.node("ReduceMean", x, axes=(-1,)))
    s = b.node("Pow", d, b.constant(2.0)) if square == "Pow" else b.node("Mul", d, d)
    v = b.node("Sqrt", b.node("Add", b.node("ReduceMean", s, axes=(-1,)), b.constant(1e-5)))
    y = b.node("Mul", b.node("Div", d, v), b.weights(width))
    return b.graph(b.node("Add", y, b.weights(width)))


def one(op: str, *shape: int | str, inputs: int = 0, opset: int = 18, dtype: DType = F32, **attrs: Any) -> Graph:
    """One operator, with that many weights of the length of the last axis."""
    b = Build(opset)
    x = b.input("x", *shape, dtype=dtype)
    more = [b.constant(b.rng.normal(size=int(shape[-1])).astype(dtype.numpy)) for _ in range(inputs)]
    return b.graph(b.node(op, x, *more, **attrs))


def operators() -> list[Case]:
    out = [
        Case("softmax_rows", one("Softmax", 50, 33, axis=-1)),
        Case("softmax_long", one("Softmax", 3, 5000, axis=-1)),
        Case("softmax_short", one("Softmax", 700, 5, axis=-1)),
        Case("softmax_single", one("Softmax", 1, 257, axis=-1)),
        Case("softmax_of_one", one("Softmax", 9, 1, axis=-1)),
        Case("log_softmax_of_one", one("LogSoftmax", 3, 1, 9, axis=1)),
        Case("norm_of_one", one("LayerNormalization", 9, 1, inputs=2, axis=-1)),
        Case("softmax_middle", one("Softmax", 3, 7, 19, axis=1)),
        Case("softmax_first", one("Softmax", 7, 40, axis=0)),
        Case("softmax_joined", one("Softmax", 6, 5, 9, opset=12, axis=1)),
        Case("softmax_any", one("Softmax", "A", "N", axis=-1), ANY_ROWS),
        Case("softmax_log", one("LogSoftmax", 20, 33, axis=-1)),
        Case("softmax_float64", one("Softmax", 20, 33, dtype=F64, axis=-1)),
        Case("softmax_float16", one("Softmax", 20, 33, dtype=F16, axis=-1)),
        Case("norm_rows", one("LayerNormalization", 30, 96, inputs=2, axis=-1)),
        Case("norm_odd", one("LayerNormalization", 7, 77, inputs=2, axis=-1)),
        Case("norm_short", one("LayerNormalization", 300, 6, inputs=1, axis=-1)),
        Case("norm_long", one("LayerNormalization", 2, 4099, inputs=2, axis=-1)),
        Case("norm_any", one("LayerNormalization", "A", 48, inputs=2, axis=-1), ({"A": 1}, {"A": 37})),
        Case("norm_float16", one("LayerNormalization", 9, 40, inputs=2, dtype=F16, axis=-1)),
        Case("rms", one("RMSNormalization", 12, 65, opset=23, inputs=1, axis=-1)),
    ]
    b = Build(17)
    y = b.node("LayerNormalization", b.input("x", 4, 6, 20), b.weights(6, 20), b.weights(6, 20), axis=-2)
    out.append(Case("norm_two_axes", b.graph(y)))
    b = Build(17)
    y = b.node("InstanceNormalization", b.input("x", 2, 6, 7, 5), b.weights(6), b.weights(6))
    out.append(Case("norm_images", b.graph(b.node("Relu", y))))
    return out


def softmax_turned(*shape: int | str) -> Graph:
    """A softmax over the channels of an image, which a Transpose makes the last axis."""
    b = Build(17)
    return b.graph(b.node("Softmax", b.node("Transpose", b.input("x", *shape), perm=(0, 2, 3, 1)), axis=-1))


def statistics_between(rows: int, groups: int) -> Graph:
    """A product, its rows in groups, and a normalization of each column over all groups of an image."""
    b = Build(17)
    y = b.node("Tanh", b.node("MatMul", b.input("x", 2, rows, 24), b.weights(24, 40)))
    y = b.node("Reshape", y, b.ints(2, rows // groups, 40 * groups))
    mean = b.node("ReduceMean", y, axes=(1,), keepdims=1)
    square = b.node("ReduceMean", b.node("Mul", y, y), axes=(1,), keepdims=1)
    variance = b.node("Sub", square, b.node("Mul", mean, mean))
    root = b.node("Sqrt", b.node("Add", variance, b.constant(1e-3)))
    return b.graph(b.node("Div", b.node("Sub", y, mean), root))


def mean_turned(axis: int, *shape: int | str) -> Graph:
    """The mean over the lines or columns of images, channels last, and an embedding of what is left."""
    b = Build(17)
    left = [extent for at, extent in enumerate(shape) if at not in (0, 1, axis)]
    mean = b.node("ReduceMean", b.input("x", *shape), axes=(axis,), keepdims=0)
    turned = b.node("Transpose", mean, perm=(0, 2, 1))
    return b.graph(b.node("Add", turned, b.input("embedding", 1, *left, shape[1])))


def chains() -> list[Case]:
    return [
        Case("chain_softmax_wide", softmax_chain(96, 128)),
        Case("chain_softmax_long", softmax_chain(5, 4096)),
        Case("chain_softmax_short", softmax_chain(800, 9)),
        Case("chain_softmax_any", softmax_chain("A", "N"), ANY_ROWS),
        Case("chain_softmax_3d", softmax_chain(2, 9, 30)),
        Case("chain_norm", norm_chain(2, 19, 64)),
        Case("chain_norm_product", norm_chain(40, 33, square="Mul")),
        Case("chain_norm_short", norm_chain(500, 8)),
        Case("chain_norm_any", norm_chain("A", "N", 40), ANY_ROWS[:2]),
        *(Case(f"softmax_turned_{form}", softmax_turned(2, 37, 5, 7), form=form) for form in range(3)),
        Case(
            "softmax_turned_any",
            softmax_turned("N", 19, "H", "W"),
            ({"N": 1, "H": 1, "W": 1}, {"N": 2, "H": 3, "W": 9}),
        ),
        Case("softmax_turned_narrow", softmax_turned(1, 3, 20, 17)),
        Case("softmax_narrow", one("Softmax", 300, 2, axis=-1)),
        Case("norm_narrow", one("LpNormalization", 260, 4, opset=22, axis=-1, p=1)),
        Case("statistics_between", statistics_between(28, 4)),
    ]


def ends_of(*shape: int) -> Graph:
    """What lies between the least and the greatest element, as parts of it."""
    b = Build(18)
    x = b.input("x", *shape)
    low, high = (b.node(op, x, axes=range(len(shape)), keepdims=0) for op in ("ReduceMin", "ReduceMax"))
    return b.graph(b.node("Div", b.node("Sub", x, low), b.node("Sub", high, low)))


OPS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2")


def reductions() -> list[Case]:
    out = [Case(f"{op}_last", one(op, 30, 21, opset=12, axes=(1,), keepdims=0)) for op in OPS]
    out += [Case(f"{op}_first", one(op, 21, 30, opset=12, axes=(0,))) for op in OPS[:4]]
    for axes in ((1,), (0, 2), (0, 1), (1, 2), (0, 1, 2)):
        name = "_".join(map(str, axes))
        out.append(Case(f"sum_over_{name}", one("ReduceSum", 6, 17, 20, opset=12, axes=axes, keepdims=0)))
        out.append(Case(f"max_over_{name}", one("ReduceMax", 6, 17, 20, opset=12, axes=axes)))
    out += [
        Case("sum_long", one("ReduceSum", 3, 30000, opset=12, axes=(1,))),
        Case("sum_all_long", one("ReduceSum", 30011, opset=12, axes=(0,))),
        Case("sum_tall", one("ReduceSum", 5000, 3, opset=12, axes=(0,))),
        Case("sum_any", one("ReduceSum", "A", "N", opset=12, axes=(1,)), ANY_ROWS),
        Case("max_any_first", one("ReduceMax", "A", "N", opset=12, axes=(0,)), ANY_ROWS),
        Case("sum_whole", one("ReduceSum", 40, 33, 130, opset=12, axes=(0, 1, 2))),
        Case("sum_whole_image", one("ReduceSum", 1, 40, 33, 130, opset=12, axes=(1, 2, 3))),
        Case("sum_whole_of_each", one("ReduceSum", "A", 64, 520, opset=12, axes=(1, 2)), ({"A": 1}, {"A": 3})),
        Case("max_whole_any", one("ReduceMax", "A", "N", opset=12, axes=(0, 1), keepdims=0), ANY_ROWS),
        Case("ends_whole", ends_of(64, 9, 257)),
        Case("mean_over_lines_turned", mean_turned(2, "A", 24, 18, 45), ({"A": 1}, {"A": 3})),
        Case("mean_over_columns_turned", mean_turned(3, "A", 24, 18, 45), ({"A": 1}, {"A": 3})),
        Case("sum_of_none", one("ReduceSum", 4, 0, opset=12, axes=(1,))),
        Case("sum_into_none", one("ReduceSum", 0, 5, opset=12, axes=(1,))),
        Case("max_of_one", one("ReduceMax", 4, 1, opset=12, axes=(1,))),
    ]
    for t in (F64, F16, I32, I64):
        out.append(Case(f"sum_{t}", one("ReduceSum", 9, 37, opset=12, dtype=t, axes=(1,))))
        out.append(Case(f"max_{t}", one("ReduceMax", 9, 37, opset=12, dtype=t, axes=(0,))))
    for op in ("ArgMax", "ArgMin"):
        out += [
            Case(f"{op}_last", one(op, 9, 33, axis=1, keepdims=0)),
            Case(f"{op}_first", one(op, 33, 9, axis=0)),
            Case(f"{op}_ties", one(op, 9, 40, dtype=I32, axis=1), feeds=few_values),
            Case(f"{op}_any", one(op, "A", "N", axis=1), ANY_ROWS),
        ]
    return out


def few_values(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Inputs with many equal elements."""
    return {k: (v % 3).astype(v.dtype) for k, v in draw(graph, rng, sizes).items()}


def several() -> list[Case]:
    """Several results, reductions of reductions, and reductions that only part of a kernel needs."""
    b = Build(12)
    x = b.input("x", 30, 41)
    mean, high = b.node("ReduceMean", x, axes=(1,)), b.node("ReduceMax", x, axes=(1,))
    out = [Case("two_statistics", b.graph(mean, high))]
    b = Build(12)
    x = b.input("x", 30, 41)
    mean = b.node("ReduceMean", x, axes=(1,))
    out.append(Case("statistic_and_rest", b.graph(mean, b.node("Sub", x, mean))))
    b = Build(12)
    x = b.input("x", 5, 30, 41)
    y = b.node("ReduceMax", b.node("ReduceSum", b.node("Exp", x), axes=(2,), keepdims=0), axes=(1,), keepdims=0)
    out.append(Case("reduction_of_reduction", b.graph(y)))
    b = Build(12)
    x = b.input("x", 6, 40)
    y = b.node("Div", x, b.node("ReduceL2", x, axes=(1,)))
    z = b.node("MatMul", y, b.weights(40, 33))
    out.append(Case("rows_then_weights", b.graph(z)))
    b = Build(12)
    x = b.input("x", 6, 40)
    columns = b.node("Sub", x, b.node("ReduceMean", x, axes=(0,)))
    y = b.node("Softmax", b.node("Sub", columns, b.node("ReduceMax", columns, axes=(1,))), axis=1)
    out.append(Case("columns_then_rows", b.graph(y)))
    b = Build(12)
    x = b.input("x", 6, 40)
    d = b.node("Sub", x, b.node("ReduceMean", x, axes=(0,)))
    v = b.node("ReduceMean", b.node("Mul", d, d), axes=(0,))
    out.append(Case("statistic_of_statistic", b.graph(b.node("Sqrt", v))))
    b = Build(12)
    e = b.node("Exp", b.input("x", 37, 5))
    y, z = b.node("Mul", e, b.constant(3.0)), b.node("Add", e, b.input("r", 37, 5))
    out.append(Case("hidden_value_read_twice", b.graph(y, z)))
    b = Build(12)
    x = b.input("x", 9, 33)
    out.append(
        Case("looked_up_by_place", b.graph(b.node("Gather", b.weights(33, 7), b.node("ArgMax", x, axis=1, keepdims=0))))
    )
    b = Build(12)
    m = b.node("Cast", b.input("x", 20, 33, dtype=BOOL), to=1)
    out.append(Case("share_of_true", b.graph(b.node("ReduceMean", m, axes=(1,), keepdims=0))))
    return out


def joined() -> list[Case]:
    """Rows put together from several tensors: pieces of whole vectors, odd ones, one too short to stand alone."""
    out = []
    for rows, sizes in ((50, (32, 16, 16)), (5, (20, 33, 9)), ("A", (40, 3, 21)), (37, (8, 1025))):
        for op, opset in (("LayerNormalization", 17), ("Softmax", 18), ("ReduceMin", 12)):
            b = Build(opset)
            x = b.node("Concat", *(b.input(f"x{i}", rows, n) for i, n in enumerate(sizes)), axis=1)
            more = (b.weights(sum(sizes)), b.weights(sum(sizes))) if op == "LayerNormalization" else ()
            y = b.node(op, x, *more, **({"axes": (1,)} if op == "ReduceMin" else {"axis": -1}))
            out.append(Case(f"{op}_joined_{rows}", b.graph(y), ({"A": 1}, {"A": 33}) if rows == "A" else ({},)))
    b = Build(17)  # patches of an image side by side, as in Swin
    x, ends = b.input("x", 2, 8, 6, 24), (8, 6)
    steps = b.ints(2, 2)
    found = [b.node("Slice", x, b.ints(i, j), b.ints(*ends), b.ints(1, 2), steps) for j in (0, 1) for i in (0, 1)]
    y = b.node("LayerNormalization", b.node("Concat", *found, axis=3), b.weights(96), b.weights(96), axis=-1)
    return [*out, Case("norm_of_patches", b.graph(y))]


def odd_numbers(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """NaN, infinities and large numbers in some of the rows."""
    feeds = draw(graph, rng, sizes)
    x = feeds["x"]
    x[1, 3], x[2, 0], x[3, -1], x[4, 5], x[4, 6], x[5] = np.nan, np.inf, -np.inf, np.inf, -np.inf, -np.inf
    x[6] *= 1e4
    return feeds


def special() -> list[Case]:
    return [
        Case("odd_softmax", one("Softmax", 40, 37, axis=-1), feeds=odd_numbers),
        Case("odd_softmax_long", one("Softmax", 8, 1500, axis=-1), feeds=odd_numbers),
        Case("odd_norm", one("LayerNormalization", 9, 37, inputs=2, axis=-1), feeds=odd_numbers),
        Case("odd_max", one("ReduceMax", 9, 37, opset=12, axes=(1,)), feeds=odd_numbers),
        Case("odd_min_first", one("ReduceMin", 9, 37, opset=12, axes=(0,)), feeds=odd_numbers),
        Case("odd_sum", one("ReduceSum", 9, 37, opset=12, axes=(1,)), feeds=odd_numbers),
    ]


CASES: tuple[Case, ...] = (*operators(), *chains(), *reductions(), *several(), *joined(), *special())
