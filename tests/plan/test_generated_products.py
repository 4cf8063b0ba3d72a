"""Products that become kernels for GPUs: those that fuse enough of their neighbors."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.config import Options
from onnxfuse.ir.dtype import F16, F32, DType
from onnxfuse.ir.graph import Graph
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CUDA
from tests.rules.build import Build

ADDED = ("MatMul", "Add", "Add")


class Layer(Build):
    """A half of a transformer layer, in steps."""

    def __init__(self, rows: int, width: int, dtype: DType) -> None:
        Build.__init__(self, 17)
        self.width, self.dtype = width, dtype
        self.x, self.attended = (self.input(name, 1, rows, width, dtype=dtype) for name in ("x", "a"))

    def weight(self, *shape: int) -> str:
        """Constant numbers."""
        return self.constant(self.rng.normal(size=shape).astype(self.dtype.numpy))

    def linear(self, x: str, depth: int, columns: int) -> str:
        """A product and its bias."""
        made: str = self.node("Add", self.node("MatMul", x, self.weight(depth, columns)), self.weight(columns))
        return made

    def norm(self, x: str) -> str:
        """A normalization of rows."""
        made: str = self.node("LayerNormalization", x, self.weight(self.width), self.weight(self.width), axis=-1)
        return made


def half_layer(rows: int, width: int, dtype: DType, outputs: int = 1) -> Graph:
    """A projection, a residual, a normalization, and a product with an activation behind that."""
    b = Layer(rows, width, dtype)
    x = b.node("Add", b.linear(b.attended, width, width), b.x)
    rows_of_it = b.norm(x)
    y = b.node("Relu", b.linear(rows_of_it, width, 4 * width))
    return b.graph(y, x, *([rows_of_it] if outputs > 1 else []))


def planned(graph: Graph, *, replayed: bool = False) -> list[tuple[str, ...]]:
    """The operators of each group."""
    options = Options(strategy="anchors", min_group=1, target="cuda", arch=("sm_90",), cuda_graph=replayed)
    return [tuple(n.op for n in g.nodes) for g in plan(graph, ROWS, options, legality=CUDA).groups]


@pytest.mark.parametrize("dtype", [F16, F32])
def test_between_small_products_there_is_no_kernel(dtype: DType) -> None:
    assert planned(half_layer(64, 128, dtype)) == [ADDED, ("LayerNormalization", "MatMul", "Add", "Relu")]


def test_large_products_are_the_runtimes() -> None:
    assert planned(half_layer(1024, 1024, F32)) == [("Add", "Add", "LayerNormalization"), ("Add", "Relu")]


def test_large_products_whose_epilogue_a_library_has_take_it_in() -> None:
    """In float16: of float32 the runtime rounds products to TF32, and the library's would take three times as long."""
    assert planned(half_layer(1024, 1024, F16)) == [("Add", "Add", "LayerNormalization"), ("MatMul", "Add", "Relu")]


def test_large_products_with_another_function_behind_are_the_runtimes() -> None:
    """GELU by erf is no epilogue of the library, by tanh it is."""

    def behind(**how: str) -> list[tuple[str, ...]]:
        b = Build(20)
        x = b.input("x", 1024, 1024, dtype=F16)
        y = b.node("MatMul", x, b.constant(np.ones((1024, 4096), np.float16)))
        return planned(b.graph(b.node("Gelu", b.node("Add", y, b.constant(np.ones(4096, np.float16))), **how)))

    assert behind() == [("Add", "Gelu")]
    assert behind(approximate="tanh") == [("MatMul", "Add", "Gelu")]


def test_a_sum_that_others_read_is_no_epilogue() -> None:
    """The library gives one result."""
    b = Layer(1024, 1024, F16)
    y = b.linear(b.attended, 1024, 4096)
    assert planned(b.graph(y, b.node("Relu", y))) == [("Add", "Relu")]


def test_a_normalization_that_others_read_is_a_kernel() -> None:
    groups = planned(half_layer(64, 128, F16, outputs=2))
    assert any(ops[-1] == "LayerNormalization" for ops in groups)
    assert not any(ops[:2] == ("LayerNormalization", "MatMul") for ops in groups)


def test_a_normalization_of_what_is_no_product_stays_with_that() -> None:
    """Behind elementwise work of its own there is a kernel anyway, which reads the rows but once."""
    b = Layer(64, 128, F16)
    rows = b.norm(b.node("Add", b.attended, b.x))
    assert planned(b.graph(b.node("Relu", b.linear(rows, 128, 512)))) == [
        ("Add", "LayerNormalization"),
        ("MatMul", "Add", "Relu"),
    ]


def test_a_roll_after_a_product_is_not_fused_into_it() -> None:
    """Pieces that change places are read twice: with the residual and the norm behind them they are a kernel."""
    b = Layer(64, 384, F16)
    y = b.linear(b.attended, 384, 384)
    pieces = [b.node("Slice", y, b.ints(k), b.ints(n), b.ints(1)) for k, n in ((3, 64), (0, 3))]
    x = b.node("Add", b.node("Concat", *pieces, axis=1), b.x)
    groups = planned(b.graph(b.node("Relu", b.linear(b.norm(x), 384, 512)), x))
    assert groups[0] == ("Add", "Slice", "Slice", "Concat", "Add", "LayerNormalization")


def test_rows_of_unknown_number_are_the_runtimes() -> None:
    b = Build(17)
    y = b.node("MatMul", b.input("x", "N", 64), b.constant(np.ones((64, 64), np.float32)))
    assert planned(b.graph(b.node("Relu", b.node("Add", y, b.weights(64))))) == [("Add", "Relu")]


def test_a_saved_launch_is_worth_less_in_a_cuda_graph() -> None:
    """Behind a kernel of a stream the next begins later: what is saved there is not in a graph."""
    graph = half_layer(64, 128, F32)
    assert planned(graph)[0] == ADDED
    assert planned(graph, replayed=True)[0] == ("Add", "Add", "LayerNormalization")


def test_pieces_that_are_moved_again_are_one_kernel() -> None:
    """Rolled twice: each piece reads what was moved before, wherever that was."""
    b = Build(17)
    x = b.input("x", 1, 16, 16, 32)
    for axis in (1, 2):
        pieces = [b.node("Slice", x, b.ints(k), b.ints(n), b.ints(axis)) for k, n in ((3, 16), (0, 3))]
        x = b.node("Concat", *pieces, axis=axis)
    assert len(planned(b.graph(x))) == 1
