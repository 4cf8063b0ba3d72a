"""Kernels of networks that the cost model is compared with a device on: products, attention, and what lies between.

Weights are inputs of the graphs, so that nothing large is drawn; kernels are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import TensorProto, helper

from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.load.models import graph_of
from tests.rules.build import Build

TYPES = (F16, F32)
# Rows, depth and columns; those of the first tables are measured first.
BATCH_1 = {
    "bert": ((128, 768, 3072), (128, 768, 768), (128, 768, 2304), (128, 3072, 768)),
    "mobilebert": ((128, 128, 512), (128, 512, 128), (128, 128, 128)),
    "swin, convnext": (
        (3136, 96, 384), (3136, 384, 96), (784, 192, 768), (784, 768, 192), (196, 384, 1536), (196, 1536, 384),
        (49, 768, 3072), (49, 3072, 768), (3136, 96, 288), (784, 192, 576), (196, 384, 1152), (49, 768, 2304),
    ),
    "vit": ((197, 768, 3072), (197, 3072, 768), (197, 768, 768), (197, 768, 2304)),
    "segformer": (
        (4096, 32, 128), (4096, 128, 32), (1024, 64, 256), (1024, 256, 64), (256, 160, 640), (256, 640, 160),
        (64, 256, 1024), (64, 1024, 256),
    ),
}  # fmt: skip
BATCH_8 = {
    "bert": ((1024, 768, 3072), (1024, 768, 768), (1024, 3072, 768)),
    "mobilebert": ((1024, 128, 512), (1024, 512, 128)),
    "swin, convnext": ((25088, 96, 384), (6272, 192, 768), (1568, 384, 1536), (392, 768, 3072)),
    "vit": ((1576, 768, 3072),),
}
FEW_ROWS = {
    "skinny": ((1, 768, 3072), (2, 768, 3072), (4, 768, 3072), (8, 768, 3072), (1, 3072, 768)),
    "llama": ((1, 4096, 4096), (1, 4096, 11008), (1, 11008, 4096), (8, 4096, 4096)),
}
NORMALIZED = ((128, 768, 3072), (3136, 96, 384), (784, 192, 576), (196, 384, 1152), (128, 128, 512))


@dataclass(frozen=True)
class Kind:
    """A graph that becomes one kernel, and what torch does instead.

    `sizes` are rows, depth and columns of a product. `fresh` are inputs that come from memory in a network, as weights
    do. `rank`: smaller ones are measured first.
    """

    what: str
    label: str
    dtype: DType
    graph: Graph
    torch: Mapping[str, Any]
    rank: int
    sizes: tuple[int, int, int] | None = None
    fresh: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def kinds() -> Iterator[Kind]:
    """All of them."""
    for dtype in TYPES:
        yield from _products(dtype)
        yield from _attentions(dtype)
        yield from _between(dtype)


# products -------------------------------------------------------------------------------------------------------------


def _products(dtype: DType) -> Iterator[Kind]:
    tables = ((BATCH_1, 0), (FEW_ROWS, 1), (BATCH_8, 2))
    for table, rank in tables:
        for sizes in dict.fromkeys(s for shapes in table.values() for s in shapes):
            for epilogue in ("gelu", "plain"):
                graph = _product(dtype, *sizes, epilogue)
                yield _product_kind(dtype, sizes, epilogue, graph, 2 * rank + (epilogue == "plain"))
    for sizes in NORMALIZED:
        graph = _product(dtype, *sizes, "gelu", normalized=True)
        yield _product_kind(dtype, sizes, "norm gelu", graph, 2)


def _product_kind(dtype: DType, sizes: tuple[int, int, int], epilogue: str, graph: Graph, rank: int) -> Kind:
    rows, depth, columns = sizes
    label = f"{rows}x{depth}x{columns} {epilogue}"
    theirs = {"op": "product", "rows": rows, "depth": depth, "columns": columns, "epilogue": epilogue}
    return Kind("product", label, dtype, graph, theirs, rank, sizes, ("w",))


def _product(dtype: DType, rows: int, depth: int, columns: int, epilogue: str, *, normalized: bool = False) -> Graph:
    b = Build(20)
    x = b.input("x", rows, depth, dtype=dtype)
    if normalized:
        gamma, beta = (b.input(n, depth, dtype=dtype) for n in ("gamma", "beta"))
        x = b.node("LayerNormalization", x, gamma, beta, axis=-1)
    y = b.node("MatMul", x, b.input("w", depth, columns, dtype=dtype))
    if epilogue == "gelu":
        y = b.node("Gelu", b.node("Add", y, b.input("bias", columns, dtype=dtype)))
    return b.graph(y)


# attention ------------------------------------------------------------------------------------------------------------


def _attentions(dtype: DType) -> Iterator[Kind]:
    rows = (  # batch, heads, queries, keys, depth, mask
        ("bert", 1, 12, 128, 128, 64, "keys"),
        ("vit", 1, 12, 197, 197, 64, ""),
        ("gpt2", 1, 12, 128, 128, 64, "causal"),
        ("gpt2 as exported", 1, 12, 128, 128, 64, "bias"),
        ("swin 1", 64, 3, 49, 49, 32, "bias"),
        ("swin 2", 16, 6, 49, 49, 32, "bias"),
        ("swin 3", 4, 12, 49, 49, 32, "bias"),
        ("swin 4", 1, 24, 49, 49, 32, "bias"),
        ("mobilebert", 1, 4, 128, 128, 32, "keys"),
        ("segformer 1", 1, 1, 4096, 64, 32, ""),
        ("segformer 512", 1, 1, 16384, 256, 32, ""),
        ("segformer 512, 3", 1, 5, 1024, 256, 32, ""),
        ("llama decode", 1, 32, 1, 2048, 128, ""),
        ("gpt2 decode", 1, 12, 1, 1024, 64, ""),
        ("bert x8", 8, 12, 128, 128, 64, "keys"),
        ("vit x8", 8, 12, 197, 197, 64, ""),
        ("swin 1 x8", 512, 3, 49, 49, 32, "bias"),
        ("long", 1, 12, 1024, 1024, 64, ""),
        ("long causal", 1, 12, 1024, 1024, 64, "causal"),
    )
    for name, batch, heads, queries, keys, depth, mask in rows:
        theirs = {
            "op": "attention", "batch": batch, "heads": heads, "queries": queries, "keys": keys, "depth": depth,
            "mask": mask,
        }  # fmt: skip
        label = f"{name}: {batch}x{heads}x{queries}x{keys}x{depth} {mask}".strip()
        graph = _attention(dtype, batch, heads, queries, keys, depth, mask)
        cold = ("k", "v") if "decode" in name else ()
        yield Kind("attention", label, dtype, graph, theirs, 1 if batch < 8 or batch == 64 else 4, None, cold)


def _causal(dtype: DType, batch: int, heads: int, rows: int, depth: int) -> Graph:
    """A call of the operator, whose function body says which keys are hidden."""
    kind = TensorProto.FLOAT16 if dtype == F16 else TensorProto.FLOAT
    shape = (batch, rows, heads * depth)
    q, k, v, y = (helper.make_tensor_value_info(n, kind, shape) for n in "qkvy")
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1, q_num_heads=heads, kv_num_heads=heads)
    graph = helper.make_graph([node], "attention", [q, k, v], [y])
    return graph_of(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10))


def _attention(dtype: DType, batch: int, heads: int, queries: int, keys: int, depth: int, mask: str) -> Graph:
    """Heads are split off projections and joined again; a cache of keys has them apart."""
    if mask == "causal":
        return _causal(dtype, batch, heads, queries, depth)
    b = Build(23)
    cached = queries == 1

    def split(name: str, count: int, perm: tuple[int, ...]) -> str:
        if cached:
            x = b.input(name, batch, heads, count, depth, dtype=dtype)
            return x if perm == (0, 2, 1, 3) else str(b.node("Transpose", x, perm=(0, 1, 3, 2)))
        x = b.input(name, batch, count, heads * depth, dtype=dtype)
        return str(b.node("Transpose", b.node("Reshape", x, b.ints(0, 0, heads, depth)), perm=perm))

    q, v = split("q", queries, (0, 2, 1, 3)), split("v", keys, (0, 2, 1, 3))
    k = split("k", keys, (0, 2, 3, 1))
    scale = b.constant([depth**-0.5], dtype.numpy.type)
    s = b.node("Mul", b.node("MatMul", q, k), scale)
    if mask:
        shape = (batch, 1, 1, keys) if mask == "keys" else (1, heads, queries, keys)
        s = b.node("Add", s, b.input("m", *shape, dtype=dtype))
    o = b.node("MatMul", b.node("Softmax", s, axis=-1), v)
    joined = b.node("Reshape", b.node("Transpose", o, perm=(0, 2, 1, 3)), b.ints(0, 0, heads * depth))
    return b.graph(joined)


# between products -----------------------------------------------------------------------------------------------------

Make = Callable[[Build, DType], str]


def _norm(b: Build, x: str, width: int, dtype: DType) -> str:
    gamma, beta = (b.input(n, width, dtype=dtype) for n in ("gamma", "beta"))
    return str(b.node("LayerNormalization", x, gamma, beta, axis=-1))


def _between(dtype: DType) -> Iterator[Kind]:
    for rows, width in ((128, 768), (197, 768), (3136, 96), (784, 192), (49, 768), (1024, 768), (25088, 96)):
        b = Build(20)
        y = _norm(b, b.input("x", rows, width, dtype=dtype), width, dtype)
        yield _row("layernorm", f"{rows}x{width}", dtype, b.graph(y), op="layernorm", shape=(rows, width))
    for rows, width in ((128, 768), (128, 512), (3136, 96), (1024, 768)):
        b = Build(20)
        total = b.node("Add", *(b.input(n, rows, width, dtype=dtype) for n in "xr"))
        y = _norm(b, total, width, dtype)
        shape = (rows, width)
        yield _row("residual layernorm", f"{rows}x{width}", dtype, b.graph(y), op="residual_layernorm", shape=shape)
    for heads, rows, width in ((12, 128, 128), (12, 197, 197), (192, 49, 49), (12, 1024, 1024)):
        b = Build(20)
        y = b.node("Softmax", b.input("x", heads, rows, width, dtype=dtype), axis=-1)
        label = f"{heads}x{rows}x{width}"
        yield _row("softmax", label, dtype, b.graph(y), op="softmax", shape=(heads, rows, width))
    for rows, width in ((128, 3072), (197, 3072), (3136, 384), (49, 3072), (1024, 3072)):
        b = Build(20)
        x, bias = b.input("x", rows, width, dtype=dtype), b.input("bias", width, dtype=dtype)
        y = b.node("Gelu", b.node("Add", x, bias))
        yield _row("bias gelu", f"{rows}x{width}", dtype, b.graph(y), op="bias_gelu", shape=(rows, width))
    for channels, side in ((256, 56), (512, 28), (64, 112)):
        b = Build(20)
        shape3 = (1, channels, side, side)
        y = b.node("Relu", b.node("Add", *(b.input(n, *shape3, dtype=dtype) for n in "xr")))
        yield _row("add relu", f"{channels}x{side}x{side}", dtype, b.graph(y), op="add_relu", shape=shape3)
    yield from _moved(dtype)
    yield from _convolved(dtype)


def _moved(dtype: DType) -> Iterator[Kind]:
    for batch, side, width in ((1, 56, 96), (1, 28, 192), (1, 14, 384), (8, 56, 96)):
        count = side // 7
        b = Build(20)
        x = b.input("x", batch, side, side, width, dtype=dtype)
        cut = b.node("Reshape", x, b.ints(batch, count, 7, count, 7, width))
        y = b.node("Transpose", cut, perm=(0, 1, 3, 2, 4, 5))
        windows = {"shape": (batch, count, 7, count, 7, width), "perm": (0, 1, 3, 2, 4, 5)}
        yield _row("windows", f"{batch}x{side}x{side}x{width}", dtype, b.graph(y), op="permute", **windows)
    moves: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = (
        ("heads", (128, 12, 64), (1, 0, 2)),
        ("keys", (128, 12, 64), (1, 2, 0)),
        ("channels last", (96, 3136), (1, 0)),
        ("channels last", (384, 196), (1, 0)),
        ("channels first", (3136, 96), (1, 0)),
        ("channels last", (8, 96, 3136), (0, 2, 1)),
    )
    for name, shape, perm in moves:
        b = Build(20)
        y = b.node("Transpose", b.input("x", *shape, dtype=dtype), perm=perm)
        yield _row(name, "x".join(map(str, shape)), dtype, b.graph(y), op="permute", shape=shape, perm=perm)
    for channels, sides in ((256, (64, 32, 16, 8)), (256, (128, 64, 32, 16))):  # SegFormer: images enlarged and joined
        label = f"{channels}x{sides[0]}x{sides[0]}"
        graph = _enlarged(channels, sides, dtype)
        yield _row("enlarged", label, dtype, graph, op="enlarged", shape=(channels, sides[0]), sides=sides)
    for channels, pixels in ((96, 3136), (384, 196)):  # ConvNeXt: a transposition and the normalization behind it
        b = Build(20)
        x = b.node("Transpose", b.input("x", channels, pixels, dtype=dtype), perm=(1, 0))
        y = _norm(b, x, channels, dtype)
        label = f"{channels}x{pixels}"
        yield _row("transposed layernorm", label, dtype, b.graph(y), op="norm_of_transposed", shape=(channels, pixels))


def _enlarged(channels: int, sides: Sequence[int], dtype: DType) -> Graph:
    """Images as products leave them, enlarged to the first one's side and joined."""
    b = Build(18)
    made = []
    for side in sides:
        x = b.node("Transpose", b.input(f"x{side}", 1, side * side, channels, dtype=dtype), perm=(0, 2, 1))
        x = b.node("Reshape", x, b.ints(1, channels, side, side))
        scales = b.constant([1, 1, sides[0] / side, sides[0] / side])
        made.append(x if side == sides[0] else b.node("Resize", x, "", scales, mode="linear"))
    return b.graph(b.node("Concat", *made[::-1], axis=1))


def _convolved(dtype: DType) -> Iterator[Kind]:
    for channels, side, taps, stride in (
        (96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1),
        (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (384, 14, 3, 1), (960, 7, 3, 1),
        (128, 64, 3, 1), (256, 32, 3, 1), (640, 16, 3, 1), (96, 112, 5, 2), (240, 28, 5, 1),
    ):  # fmt: skip
        b = Build(20)
        x = b.input("x", 1, channels, side, side, dtype=dtype)
        w, bias = b.input("w", channels, 1, taps, taps, dtype=dtype), b.input("bias", channels, dtype=dtype)
        pads = [taps // 2] * 4
        y = b.node("Conv", x, w, bias, group=channels, pads=pads, strides=[stride] * 2, kernel_shape=[taps] * 2)
        shape, label = (1, channels, side, side), f"{channels}x{side}x{side},{taps}x{taps},{stride}"
        yield _row("depthwise", label, dtype, b.graph(y), op="depthwise", shape=shape, taps=taps, stride=stride)
    for batch, channels, side, taps, stride in (
        (1, 64, 112, 3, 2), (1, 64, 112, 2, 2), (1, 128, 56, 3, 2), (1, 256, 20, 5, 1), (1, 512, 13, 5, 1),
        (8, 64, 112, 3, 2),
    ):  # fmt: skip
        shape = (batch, channels, side, side)
        pads, label = [(taps - 1) // 2] * 4, f"{'x'.join(map(str, shape))},{taps}x{taps},{stride}"
        for name, op in (("maxpool", "MaxPool"), ("average pool", "AveragePool")):
            b = Build(20)
            x = b.input("x", *shape, dtype=dtype)
            y = b.node(op, x, kernel_shape=[taps] * 2, strides=[stride] * 2, pads=pads)
            yield _row(name, label, dtype, b.graph(y), op=name, shape=shape, taps=taps, stride=stride)
    for channels in (2048, 1280):
        b = Build(20)
        shape = (1, channels, 7, 7)
        y = b.node("GlobalAveragePool", b.input("x", *shape, dtype=dtype))
        yield _row("global average", f"{channels}x7x7", dtype, b.graph(y), op="global_average", shape=shape)


def _row(name: str, label: str, dtype: DType, graph: Graph, **theirs: Any) -> Kind:
    return Kind("between", f"{name} {label}", dtype, graph, theirs, 3 if dtype == F16 else 4)
