"""Cases of contractions: sizes that fill tiles and sizes that do not, batches, transposes, epilogues, attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxfuse.ir.dtype import F16, F32, F64, I32, I64, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Array, Case, Sizes
from tests.rules.build import Build, draw


def scaled(b: Build, *shape: int, dtype: DType = F32) -> str:
    """Weights of which a sum over the first axis stays near 1."""
    values = b.rng.normal(size=shape) / np.sqrt(max(1, shape[0] if len(shape) < 3 else shape[-2]))
    return b.constant(values.astype(dtype.numpy))


def gemm(m: int | str, k: int, n: int, *, after: str = "", dtype: DType = F32) -> Graph:
    """x @ w, and what comes after it."""
    b = Build()
    x = b.input("x", m, k, dtype=dtype)
    y = b.node("MatMul", x, scaled(b, k, n, dtype=dtype))
    outputs = []
    if after:
        y = b.node("Add", y, scaled(b, n, dtype=dtype))
    if after == "gelu":
        b.opset = 20
        y = b.node("Gelu", y)
    elif after == "relu_both":
        outputs = [y]
        y = b.node("Relu", y)
    elif after == "norm":
        y = b.node("Add", y, b.input("r", m, n, dtype=dtype))
        y = b.node("LayerNormalization", y, b.weights(n), b.weights(n), axis=-1)
    elif after == "erf":  # GELU in primitives, its input read twice
        bent = b.node("Erf", b.node("Div", y, b.constant(2.0**0.5)))
        y = b.node("Mul", b.node("Mul", y, b.node("Add", bent, b.constant(1.0))), b.constant(0.5))
    return b.graph(*outputs, y)


def gemm_of(b: Build, m: int, k: int, n: int) -> str:
    """x @ w with a wider x than other products have."""
    return b.node("MatMul", b.input("deep", m, k), scaled(b, k, n))


def tied() -> Graph:
    """Two products by the same weights."""
    b = Build()
    w = scaled(b, 70, 45)
    first, second = (b.node("MatMul", b.input(x, 19, 70), w) for x in ("x", "z"))
    return b.graph(first, b.node("Relu", second))


def backwards(axis: int, n: int) -> Graph:
    """A product of a tensor whose rows are read in reversed order, along one of its axes."""
    b = Build()
    x = b.node("Slice", b.input("x", 5, 3, 8), b.ints(-1), b.ints(-1000), b.ints(axis), b.ints(-1))
    return b.graph(b.node("MatMul", x, scaled(b, 8, n)))


SHAPES = ((1, 64, 64), (1, 7, 33), (17, 31, 37), (14, 8, 32), (15, 9, 33), (13, 300, 290), (29, 257, 321),
          (3, 1100, 1000), (200, 16, 8), (2, 3, 5), (1, 1, 1), (5, 64, 1), (100, 5, 100),
          (1, 513, 129), (57, 3, 64), (43, 61, 7))  # fmt: skip
ANY_ROWS = tuple({"M": m} for m in (1, 2, 13, 14, 15, 64, 100))


def rows_of_weights() -> Graph:
    """A product by weights whose rows are added to it too, by indices: they stay in their layout."""
    b = Build()
    w = b.constant(b.rng.normal(size=(33, 70)).astype(np.float32))
    rows = b.node("Gather", w, b.input("i", 7, dtype=I64), axis=0)
    return b.graph(b.node("Relu", b.node("Add", b.node("MatMul", b.input("x", 7, 33), w), rows)))


def products() -> list[Case]:
    out = [Case(f"gemm_{m}_{k}_{n}", gemm(m, k, n)) for m, k, n in SHAPES]
    out += [Case(f"gemm_{a}", gemm(19, 70, 45, after=a)) for a in ("bias", "gelu", "erf", "relu_both", "norm")]
    out += [Case("gemm_tied", tied()), Case("gemm_rows_of_weights", rows_of_weights())]
    out += [Case(f"gemm_any_{a}", gemm("M", 70, 45, after=a), ANY_ROWS) for a in ("gelu", "norm", "relu_both")]
    out.append(Case("gemm_deep_43", gemm(43, 6144, 260, after="norm"), way=-1))  # taken in parts of its depth
    out.append(Case("gemm_deep_M", gemm("M", 6144, 260, after="norm"), ({"M": 3}, {"M": 50}), way=-1))
    out += [Case(f"gemm_way_{way}", gemm(61, 300, 150, after="norm"), way=way) for way in range(4)]
    out += [Case(f"gemm_any_way_{way}", gemm("M", 33, 70, after="gelu"), ANY_ROWS, way=way) for way in range(4)]
    out.append(Case("gemm_any_wide", gemm("M", 260, 270, after="gelu"), ANY_ROWS))
    out += [Case(f"gemm_{t}", gemm(5, 20, 33, after="bias", dtype=t)) for t in (F64, F16)]
    out += [Case(f"empty_{m}_{k}_{n}", gemm(m, k, n)) for m, k, n in ((0, 5, 40), (4, 0, 40), (4, 5, 0))]
    out.append(Case("empty_any", gemm("M", 5, 40), ({"M": 0}, {"M": 1})))
    b = Build()
    out.append(
        Case("gemm_i32", b.graph(b.node("MatMul", b.input("x", 4, 9, dtype=I32), b.input("w", 9, 5, dtype=I32))))
    )
    return out


def shallow() -> Iterator[Case]:
    """Products of a few terms, too few for a register tile."""
    for m, k, n in ((100, 4, 64), (1, 1, 33), ("M", 7, 40)):
        b = Build()
        y = b.node("Gemm", b.input("x", m, k), b.weights(n, k), b.weights(n), transB=1)
        yield Case(f"gemm_shallow_{m}_{k}_{n}", b.graph(y), ANY_ROWS if m == "M" else ({},))
    b = Build()  # of a few results of a product, as decisions in trees are
    y = b.node("Gemm", b.weights(21, 12), b.input("x", "M", 12), transB=1)
    y = b.node("Reshape", b.node("Relu", y), b.ints(3, 7, -1))
    yield Case("gemm_before_shallow", b.graph(b.node("MatMul", b.weights(3, 8, 7), y)), ANY_ROWS)


def transposed() -> list[Case]:
    out = [Case(f"backwards_{axis}_{n}", backwards(axis, n)) for axis in (0, 1) for n in (8, 32)]
    for ta, tb in ((0, 0), (0, 1), (1, 0), (1, 1)):
        b = Build()
        x = b.input("x", *((40, 19) if ta else (19, 40)))
        w = b.weights(*((35, 40) if tb else (40, 35)))
        y = b.node("Gemm", x, w, b.weights(35), transA=ta, transB=tb, alpha=0.5, beta=2.0)
        out.append(Case(f"gemm_t{ta}{tb}", b.graph(y)))
        b = Build()
        x, w = b.input("x", *((40, 19) if ta else (19, 40))), b.input("w", *((35, 40) if tb else (40, 35)))
        y = b.node("Gemm", x, w, b.input("c", 19, 1), transA=ta, transB=tb)
        out.append(Case(f"gemm_run_t{ta}{tb}", b.graph(y)))
    for name, left, right in (
        ("both", (3, 17, 20), (3, 20, 45)),
        ("left_one", (1, 17, 20), (3, 20, 45)),
        ("right_one", (3, 17, 20), (1, 20, 45)),
        ("nested", (2, 1, 9, 20), (3, 20, 14)),
        ("vector", (20,), (3, 20, 14)),
        ("column", (3, 9, 20), (20,)),
        ("dot", (20,), (20,)),
        ("thin", (2, 3, 130), (2, 130, 3)),
    ):
        b = Build()
        out.append(Case(f"batch_{name}", b.graph(b.node("MatMul", b.input("x", *left), b.input("w", *right)))))
    b = Build()
    out.append(Case("batch_weights", b.graph(b.node("MatMul", b.input("x", 3, 17, 20), scaled(b, 3, 20, 45)))))
    b = Build()
    x = b.node("Transpose", b.input("x", 9, 2, 20), perm=(1, 0, 2))
    w = b.node("Transpose", b.input("w", 33, 2, 20), perm=(1, 2, 0))
    out.append(Case("batch_turned", b.graph(b.node("Transpose", b.node("MatMul", x, w), perm=(1, 0, 2)))))
    b = Build()
    x = b.node("Exp", b.node("Transpose", b.input("x", 20, 9)))
    out.append(Case("left_computed", b.graph(b.node("MatMul", x, scaled(b, 20, 40)))))
    b = Build()
    x = b.node("Concat", b.input("x", 9, 20), b.input("z", 9, 13), axis=1)
    out.append(Case("left_joined", b.graph(b.node("MatMul", x, scaled(b, 33, 40)))))
    for rows, pieces in ((31, (9, 16, 7)), ("M", (16, 300, 8, 8))):  # three and four tensors side by side
        b = Build()
        x = b.node("Concat", *(b.input(f"x{i}", rows, n) for i, n in enumerate(pieces)), axis=1)
        y = b.node("MatMul", x, scaled(b, sum(pieces), 260))
        sizes = ANY_ROWS if rows == "M" else ({},)
        out.append(Case(f"left_joined_{rows}", b.graph(b.node("Relu", y)), sizes))
    b = Build()  # one tensor is there twice, and a part of it: nothing is joined before it is packed
    x = b.input("x", 21, 40)
    y = b.node("Concat", x, b.node("Slice", x, *map(b.ints, (8, 31, 1))), x, axis=1)
    out.append(Case("left_joined_with_itself", b.graph(b.node("MatMul", y, scaled(b, 103, 40)))))
    for rows, n in ((37, 150), (14, 33), (64, 8), (19, 70)):  # the result lies along the rows
        b = Build()
        y = b.node("Add", b.node("MatMul", b.input("x", 2, rows, 40), scaled(b, 40, n)), scaled(b, n))
        y = b.node("Add", y, b.input("r", 2, rows, n))
        out.append(Case(f"gemm_turned_{rows}_{n}", b.graph(b.node("Transpose", y, perm=(0, 2, 1)))))
    b = Build()
    out.append(Case("gemm_turned_deep", b.graph(b.node("Transpose", gemm_of(b, 43, 6144, 260), perm=(1, 0)))))
    return out


def attention(
    batch: int | str, length: int | str, heads: int = 3, size: int = 16, mask: str = "row", form: str = "operator"
) -> Graph:
    """Softmax(Q K^T / sqrt(size) + mask) V with heads split off one projection and merged again."""
    b = Build()
    width = heads * size
    qkv = b.input("qkv", batch, length, 3 * width)
    parts = b.node("Split", qkv, b.ints(width, width, width), count=3, axis=2)
    split = b.ints(0, 0, heads, size)
    q, k, v = (
        b.node("Transpose", b.node("Reshape", p, split), perm=perm)
        for p, perm in zip(parts, ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), strict=True)
    )
    s = b.node("Mul", b.node("MatMul", q, k), b.constant(size**-0.5))
    if mask == "row":
        s = b.node("Add", s, b.input("m", batch, 1, 1, length))
    elif mask == "square":
        s = b.node("Add", s, b.input("m", length, length))
    if form == "operator":
        p = b.node("Softmax", s, axis=-1)
    else:
        b.opset = 17
        e = b.node("Exp", b.node("Sub", s, b.node("ReduceMax", s, axes=(-1,))))
        p = b.node("Div", e, b.node("ReduceSum", e, b.ints(-1)))
    o = b.node("Transpose", b.node("MatMul", p, v), perm=(0, 2, 1, 3))
    return b.graph(b.node("Reshape", o, b.ints(0, 0, width)))


def padded_mask(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """The last key hidden by minus infinity, where there is more than one."""
    feeds = draw(graph, rng, sizes)
    feeds["m"] = np.zeros_like(feeds["m"])
    if feeds["m"].shape[-1] > 1:
        feeds["m"][..., -1] = -np.inf
    return feeds


def causal_mask(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Keys after the query hidden by a large negative number."""
    feeds = draw(graph, rng, sizes)
    feeds["m"] = np.triu(np.full_like(feeds["m"], -1e4), 1)
    return feeds


ANY_LENGTH = ({"B": 1, "S": 24}, {"B": 3, "S": 7}, {"B": 2, "S": 1}, {"B": 1, "S": 37})


def attention_of_image(batch: int | str, high: int, wide: int, *, last: bool, heads: int = 2, size: int = 10) -> Graph:
    """Attention between the places of an image as U-Nets write it: channels come first, or `last` in the memory."""
    b = Build()
    channels, places = heads * size, high * wide
    split = b.ints(-1, size, places)
    shape = (batch, places, channels) if last else (batch, channels, places)
    given = (b.input(name, *shape) for name in "qkv")
    q, k, v = (b.node("Reshape", b.node("Transpose", x, perm=(0, 2, 1)) if last else x, split) for x in given)
    p = b.node("Softmax", b.node("Einsum", q, k, equation="bct,bcs->bts"), axis=-1)
    y = b.node("Reshape", b.node("Einsum", p, v, equation="bts,bcs->bct"), b.ints(-1, channels, high, wide))
    return b.graph(b.node("Transpose", y, perm=(0, 2, 3, 1)) if last else y)


def attentions() -> list[Case]:
    out = [
        Case("attention", attention(1, 24)),
        Case("attention_long", attention(1, 130, heads=2, size=8, mask="")),
        Case("attention_odd", attention(2, 17, heads=3, size=10)),
        Case("attention_hidden", attention(2, 19), feeds=padded_mask),
        Case("attention_causal", attention(1, 21, mask="square"), feeds=causal_mask),
        Case("attention_chain", attention(2, 18, form="chain")),
        Case("attention_any", attention("B", "S"), ANY_LENGTH),
        Case("attention_any_chain", attention("B", "S", form="chain"), ANY_LENGTH),
        Case("attention_any_causal", attention("B", "S", mask="square"), ANY_LENGTH, feeds=causal_mask),
        Case("attention_one_head", attention(1, 12, heads=1, size=32)),
        Case("attention_channels_first", attention_of_image(2, 5, 7, last=False)),
        Case("attention_channels_last", attention_of_image(2, 5, 7, last=True)),
        Case("attention_channels_last_any", attention_of_image("B", 4, 9, last=True), ({"B": 1}, {"B": 3})),
        Case("attention_few_channels", attention_of_image(1, 3, 11, last=True, size=3)),
        Case("attention_narrow", attention(2, 33, heads=3, size=7)),
        Case("attention_narrow_any", attention("B", "S", heads=2, size=5), ANY_LENGTH),
    ]
    b = Build()  # keys lie along the columns of scores, as many as there are
    q, k, v = (b.input(name, "B", 2, *shape) for name, shape in (("q", ("S", 12)), ("k", (12, "S")), ("v", ("S", 12))))
    out.append(
        Case(
            "attention_turned_any",
            b.graph(b.node("MatMul", b.node("Softmax", b.node("MatMul", q, k), axis=-1), v)),
            ANY_LENGTH,
        )
    )
    b = Build()
    q, k, v = (b.input(n, 2, 3, s, 16) for n, s in (("q", 11), ("k", 23), ("v", 23)))
    p = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", k, perm=(0, 1, 3, 2))), axis=-1)
    out.append(Case("attention_cross", b.graph(b.node("MatMul", p, v))))
    b = Build()  # another product by the same values: both read one copy in panels
    q, p = b.input("q", "B", "S", 16), b.input("p", "B", "R", "S")
    y = b.node("MatMul", b.node("Softmax", b.node("MatMul", q, b.node("Transpose", q, perm=(0, 2, 1))), axis=-1), q)
    sizes = tuple({**at, "R": rows} for at, rows in zip(ANY_LENGTH, (5, 33, 1, 16), strict=True))
    out.append(Case("product_beside_attention", b.graph(y, b.node("MatMul", p, q)), sizes))
    b = Build()  # heads of which the first channels were turned and the others were not
    turned, kept = ([b.input(f"{n}{i}", 1, 3, 14, size) for i in "qk"] for n, size in (("turned", 8), ("kept", 24)))
    q, k = (b.node("Concat", *parts, axis=3) for parts in zip(turned, kept, strict=True))
    p = b.node("Softmax", b.node("MatMul", q, b.node("Transpose", k, perm=(0, 1, 3, 2))), axis=-1)
    out.append(Case("attention_of_joined", b.graph(b.node("MatMul", p, b.input("v", 1, 3, 14, 16)))))
    b = Build()
    i = b.input("i", 2, 5, dtype=I64)
    x = b.node("Gather", scaled(b, 30, 24), i)
    out.append(Case("rows_looked_up", b.graph(b.node("MatMul", x, scaled(b, 24, 40)))))
    b = Build()  # several tiles of rows: nothing behind the last one may be looked up
    y = b.node("MatMul", b.input("x", 2, 13, 24), scaled(b, 24, 64))
    kinds = b.node("Gather", scaled(b, 2, 64), b.input("i", 2, 13, dtype=I64))
    out.append(Case("rows_added_by_index", b.graph(b.node("Add", y, kinds)), feeds=two_kinds))
    return out


def two_kinds(graph: Graph, rng: np.random.Generator, sizes: Sizes) -> dict[str, Array]:
    """Indices of a table of two rows."""
    return draw(graph, rng, sizes) | {"i": rng.integers(0, 2, (2, 13))}


BLOCKWISE = (Case("gemm_by_blocks", gemm(331, 200, 262, after="bias", dtype=F16), way=0),)  # rows that are widened
CASES: tuple[Case, ...] = (*products(), *shallow(), *transposed(), *attentions())
