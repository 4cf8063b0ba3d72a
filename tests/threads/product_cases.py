"""Cases of products for GPU kernels: of few rows, as in decoding, and tiled ones, with prologues and epilogues."""

from __future__ import annotations

from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case
from tests.rules.build import Build


def product(rows: int | str, depth: int, columns: int, dtype: DType = F32) -> Graph:
    """Relu(x w + b) + r."""
    b = Build(22)
    y = b.node("MatMul", b.input("x", 1, rows, depth, dtype=dtype), b.input("w", depth, columns, dtype=dtype))
    y = b.node("Relu", b.node("Add", y, b.input("b", columns, dtype=dtype)))
    return b.graph(b.node("Add", y, b.input("r", 1, rows, columns, dtype=dtype)))


CASES = (
    Case("product_of_one_row", product(1, 96, 160)),
    Case("product_of_one_row_uneven_depth", product(1, 77, 64)),
    Case("product_of_few_rows", product(5, 130, 48)),
    Case("product_of_few_rows_float16", product(3, 64, 128, F16)),
)


def normalized(op: str, dtype: DType, rows: int = 19, depth: int = 64, columns: int = 48) -> Graph:
    """Gelu(norm(x + r) w + b)."""
    b = Build(23)
    x = b.node("Add", *(b.input(n, 2, rows, depth, dtype=dtype) for n in ("x", "r")))
    scale = [b.input(n, depth, dtype=dtype) for n in ("g", "h")[: 2 if op == "LayerNormalization" else 1]]
    y = b.node("MatMul", b.node(op, x, *scale, axis=-1), b.input("w", depth, columns, dtype=dtype))
    return b.graph(b.node("Gelu", b.node("Add", y, b.input("b", columns, dtype=dtype))))


def image(dtype: DType) -> Graph:
    """norm(x) w + b with its columns as channels of an image, that come first."""
    b = Build(22)
    x = b.node("LayerNormalization", b.input("x", 1, 30, 64, dtype=dtype), b.input("g", 64, dtype=dtype), axis=-1)
    y = b.node("Add", b.node("MatMul", x, b.input("w", 64, 40, dtype=dtype)), b.input("b", 40, dtype=dtype))
    return b.graph(b.node("Reshape", b.node("Transpose", y, perm=(0, 2, 1)), b.ints(1, 40, 5, 6)))


def pixels(dtype: DType, width: int = 6) -> Graph:
    """Gelu(norm(pixels of an image) w + b), whose channels come first."""
    b = Build(20)
    x = b.node("Transpose", b.input("x", 1, 64, 5, width, dtype=dtype), perm=(0, 2, 3, 1))
    scale = [b.input(n, 64, dtype=dtype) for n in ("g", "h")]
    y = b.node("MatMul", b.node("LayerNormalization", x, *scale, axis=-1), b.input("w", 64, 40, dtype=dtype))
    return b.graph(b.node("Gelu", b.node("Add", y, b.input("b", 40, dtype=dtype))))


def tanh_first(dtype: DType) -> Graph:
    """Tanh(x) w: elementwise work on the left side."""
    b = Build(22)
    x = b.node("Tanh", b.input("x", 40, 64, dtype=dtype))
    return b.graph(b.node("MatMul", x, b.input("w", 64, 40, dtype=dtype)))


def transposed(dtype: DType) -> Graph:
    """x w^T + b by Gemm, and its columns as heads apart."""
    b = Build(22)
    y = b.node("Gemm", b.input("x", 36, 64, dtype=dtype), b.input("w", 96, 64, dtype=dtype),
               b.input("b", 96, dtype=dtype), transB=1)  # fmt: skip
    return b.graph(b.node("Transpose", b.node("Reshape", y, b.ints(2, 18, 3, 32)), perm=(0, 2, 1, 3)))


def batched(dtype: DType) -> Graph:
    """Scores of three heads, scaled."""
    b = Build(22)
    k = b.node("Transpose", b.input("k", 3, 24, 32, dtype=dtype), perm=(0, 2, 1))
    return b.graph(b.node("Mul", b.node("MatMul", b.input("q", 3, 20, 32, dtype=dtype), k), b.input("s", dtype=dtype)))


def then_norm(dtype: DType) -> Graph:
    """A long sum, a residual, and a normalization behind it."""
    b = Build(22)
    y = b.node("MatMul", b.input("x", 24, 256, dtype=dtype), b.input("w", 256, 64, dtype=dtype))
    y = b.node("Add", y, b.input("r", 24, 64, dtype=dtype))
    return b.graph(y, b.node("LayerNormalization", y, b.input("g", 64, dtype=dtype), axis=-1))


def convolution() -> Graph:
    """3 x 3 with padding, which is a product whose side is read through windows."""
    b = Build(22)
    y = b.node("Conv", b.input("x", 1, 8, 9, 8), b.input("w", 16, 8, 3, 3), pads=(1, 1, 1, 1))
    return b.graph(b.node("Relu", y))


TILED = (
    *(Case(f"tiles_{t}", product(50, 64, 96, t)) for t in (F32, F16, BF16)),
    Case("tiles_uneven_float16", product(33, 77, 41, F16)),
    Case("tiles_uneven_float32", product(17, 45, 23)),
    Case("tiles_rows_unknown", product("N", 64, 48, F16), sizes=({"N": 9}, {"N": 33})),
    *(Case(f"layer_norm_first_{t}", normalized("LayerNormalization", t)) for t in (F32, F16)),
    *(Case(f"norm_first_and_turned_{t}", image(t)) for t in (F32, F16)),
    *(Case(f"norm_first_of_pixels_{t}", pixels(t)) for t in (F32, F16)),
    Case("rms_norm_first", normalized("RMSNormalization", F32)),
    Case("tanh_first", tanh_first(F16)),
    *(Case(f"transposed_{t}", transposed(t)) for t in (F32, F16)),
    *(Case(f"batched_{t}", batched(t)) for t in (F32, F16)),
    *(Case(f"norm_behind_{t}", then_norm(t)) for t in (F32, F16)),
    Case("convolution", convolution()),
)
