"""Cases of the sizes that kernels are least likely to expect: none, one, odd ones, in all types of floats."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.graph import Graph
from tests.kernels.compiled import Case
from tests.rules.build import Build
from tests.threads.product_cases import product

ANY = tuple({"A": a, "N": n} for a, n in ((0, 5), (3, 0), (1, 1), (5, 33), (2, 1027), (7, 64), (33, 7), (130, 129)))
ANY_ROWS = ({"A": 0}, {"A": 1}, {"A": 5}, {"A": 131})
WIDTHS = (1, 2, 3, 31, 33, 127, 257, 1027, 4099)
PRODUCTS = ((1, 1, 1), (1, 33, 7), (8, 127, 33), (9, 17, 5), (17, 33, 31), (65, 129, 63), (33, 1, 1), (40, 8, 8))
ATTENTIONS = ((1, 1, 16), (2, 1, 16), (1, 77, 32), (5, 33, 16), (17, 65, 7), (33, 129, 40))


def rows(dtype: DType) -> Graph:
    """A softmax with a mask, of any shape."""
    b = Build(18)
    x = b.node("Add", b.input("x", "A", "N", dtype=dtype), b.input("m", 1, "N", dtype=dtype))
    return b.graph(b.node("Softmax", x, axis=-1))


def norm(dtype: DType) -> Graph:
    """A residual and a normalization, of any shape, both given back."""
    b = Build(18)
    x = b.node("Add", b.input("x", "A", "N", dtype=dtype), b.input("r", "A", "N", dtype=dtype))
    scale = [b.input(n, "N", dtype=dtype) for n in ("g", "h")]
    return b.graph(x, b.node("LayerNormalization", x, *scale, axis=-1))


def first(dtype: DType) -> Graph:
    """A sum over the first axis."""
    b = Build(18)
    return b.graph(b.node("ReduceSum", b.input("x", "A", "N", dtype=dtype), b.ints(0)))


def elements(dtype: DType) -> Graph:
    """Two results of one tensor, with one broadcast over rows and one over columns."""
    b = Build(20)
    x = b.input("x", "A", "N", dtype=dtype)
    y = b.node("Gelu", b.node("Add", x, b.input("c", "N", dtype=dtype)))
    return b.graph(y, b.node("Mul", x, b.input("s", "A", 1, dtype=dtype)))


def turned(dtype: DType) -> Graph:
    """A transposition of three axes."""
    b = Build(20)
    return b.graph(b.node("Relu", b.node("Transpose", b.input("x", "A", 3, "N", dtype=dtype), perm=(2, 0, 1))))


def joined(dtype: DType) -> Graph:
    """Three tensors side by side, one of them computed."""
    b = Build(20)
    x, y, z = (b.input(n, "A", e, dtype=dtype) for n, e in (("x", "N"), ("y", 5), ("z", "N")))
    return b.graph(b.node("Concat", x, y, b.node("Neg", z), axis=1))


def of_width(width: int, dtype: DType) -> Graph:
    """A normalization of rows of a known width."""
    b = Build(18)
    scale = [b.input(n, width, dtype=dtype) for n in ("g", "h")]
    return b.graph(b.node("LayerNormalization", b.input("x", "A", width, dtype=dtype), *scale, axis=-1))


def pixels_given_twice() -> Graph:
    """A bias, a residual and a normalization of 160 channels, as they are and with channels first."""
    b = Build(18)
    x, r = (b.input(n, 1, 256, 160, dtype=F16) for n in ("x", "r"))
    c, g, h = (b.input(n, 160, dtype=F16) for n in ("c", "g", "h"))
    y = b.node("LayerNormalization", b.node("Add", b.node("Add", x, c), r), g, h, axis=-1)
    pixels = b.node("Reshape", y, b.ints(1, 16, 16, 160))
    return b.graph(y, b.node("Transpose", pixels, perm=(0, 3, 1, 2)))


def attention(queries: int, keys: int, depth: int, dtype: DType) -> Graph:
    """Softmax(q k^T) v of two heads."""
    b = Build(18)
    q, k, v = (b.input(n, 2, e, depth, dtype=dtype) for n, e in (("q", queries), ("k", keys), ("v", keys)))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=(0, 2, 1)))
    return b.graph(b.node("MatMul", b.node("Softmax", scores, axis=-1), v))


MAKERS: tuple[Callable[[DType], Graph], ...] = (rows, norm, first, elements, turned, joined)
TYPES = (F32, F16, BF16)
CASES = (
    *(Case(f"any_{make.__name__}_{t}", make(t), ANY) for make in MAKERS for t in TYPES),
    *(Case(f"width_{w}_{t}", of_width(w, t), ANY_ROWS) for w in WIDTHS for t in (F16, BF16)),
    *(Case(f"sized_product_{r}_{d}_{c}_{t}", product(r, d, c, t)) for r, d, c in PRODUCTS for t in TYPES),
    *(Case(f"sized_attention_{s}_{k}_{d}_{t}", attention(s, k, d, t)) for s, k, d in ATTENTIONS for t in TYPES),
)
