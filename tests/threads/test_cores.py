"""The CPU's register tile and AMX as matrix instructions: a tile equals its instruction, applied step by step."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.ir.dtype import BF16
from onnxfuse.ir.fragments import TENSOR_CORES, Core
from onnxfuse.ir.index import ONE, ZERO, Index, floor_div, modulo
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.interpret.warps import elements, misfits
from onnxfuse.ir.kernel import Kernel, Param, Phase, Store
from onnxfuse.ir.launch import Launch, Mma
from onnxfuse.ir.layout import PLAIN
from onnxfuse.ir.products import AMX_BF16, DOT_BF16, PRODUCTS, SINGLE, WIDENED_F16, ProductKind
from onnxfuse.ir.scalar import const
from onnxfuse.ir.tile import Packed, Panel, Tile, TileCore
from onnxfuse.ir.verify import verify
from tests.kernels.compiled import Array
from tests.threads.written import at, axis, fragment, loop
from tests.threads.written import elements as elements_of

WIDTH, DEPTH, LANES = 32, 96, 16


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("product", PRODUCTS, ids=repr)
def test_fragments_of_a_tile_are_its_matrices(product: ProductKind, lanes: int) -> None:
    core = TileCore(32 if product.unit else 14, WIDTH, product).step(lanes)
    assert misfits(core) == []
    assert {f.dtype for f in (core.left, core.right, core.sums)} == {product.left, product.right, product.sums}


@pytest.mark.parametrize("core", TENSOR_CORES, ids=repr)
def test_fragments_of_a_tensor_core(core: Core) -> None:
    """As the PTX manual gives them: lane 5 is the second of group 1."""
    assert misfits(core) == []
    for f, want in (
        (core.left, [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]),
        (core.right, [(2, 1), (3, 1), (10, 1), (11, 1)]),
        (core.sums, [(1, 2), (1, 3), (9, 2), (9, 3)]),
    ):
        row, column = elements(f)
        assert [(int(r), int(c)) for r, c in zip(row[5], column[5], strict=True)] == want


# One tile ----------------------------------------------------------------------------------------------------------


def sides(product: ProductKind, rows: int) -> tuple[list[Param], Param]:
    inputs = [
        Param("in0", "x", product.left, (Index.of(rows * DEPTH),), PLAIN),
        Param("in1", "y", product.right, (Index.of(WIDTH * DEPTH),), PLAIN),
    ]
    return inputs, Param("out0", "z", product.sums, (Index.of(rows * WIDTH),), PLAIN)


def kernel(product: ProductKind, rows: int, phase: Phase) -> Kernel:
    inputs, out = sides(product, rows)
    made = Kernel(tuple(inputs), (out,), (), (), (phase,))
    assert verify(made) == ()
    return made


def packed_at(row: Index, k: Index, rows: int, piece: int) -> Index:
    """Where packed rows have step k of a row, and panels that of a column."""
    here = Index.of(piece)
    return (floor_div(k, here) * rows + row) * piece + modulo(k, here)


def as_tile(product: ProductKind, rows: int) -> Kernel:
    core = TileCore(rows, WIDTH, product)
    tile = Tile(
        "out0", ZERO, Index.of(rows), core, Packed("in0", ZERO, 1, Index.of(DEPTH)), Panel("in1", ZERO)
    )  # fmt: skip
    return kernel(product, rows, Phase((), ONE, (), (tile,)))


def as_cores(product: ProductKind, rows: int) -> Kernel:
    """The same by its core: blocks of rows and columns, each a sum over the depth of products of fragments."""
    core = TileCore(rows, WIDTH, product).step(LANES)
    m, n, k = axis("m", rows // core.m), axis("n", WIDTH // core.n), axis("k", DEPTH // core.k)
    row, column, depth = Index.of(m) * core.m, Index.of(n) * core.n, Index.of(k) * core.k
    body = (
        elements_of("c", core.sums, lambda i, j, r: (Store("c", r, const(0.0)),)),
        loop(
            k,
            "serial",
            elements_of("a", core.left, lambda i, j, r: (Store(
                "a", r, at("in0", packed_at(row + i, depth + j, rows, product.piece), product.left)),)),
            elements_of("b", core.right, lambda i, j, r: (Store(
                "b", r, at("in1", packed_at(column + j, depth + i, WIDTH, product.step), product.right)),)),
            Mma(core, "c", ZERO, "a", ZERO, "b", ZERO),
        ),
        elements_of("d", core.sums, lambda i, j, r: (Store("out0", (row + i) * WIDTH + column + j, at("c", r)),)),
    )  # fmt: skip
    buffers = tuple(fragment(name, f) for name, f in (("a", core.left), ("b", core.right), ("c", core.sums)))
    launch = Launch(ONE, Index.of(LANES), lanes=LANES)
    return kernel(product, rows, Phase((), ONE, buffers, (loop(m, "serial", loop(n, "serial", *body)),), launch=launch))


@pytest.mark.parametrize("product", [SINGLE, WIDENED_F16, DOT_BF16, AMX_BF16], ids=repr)
def test_a_tile_is_its_core_step_by_step(product: ProductKind) -> None:
    """Small integers, whose sums are exact in any order."""
    rows = 32 if product.unit else 14
    rng = np.random.default_rng(5)

    def drawn(p: Param) -> Array:
        x = rng.integers(-8, 9, [int(e.constant or 0) for e in p.shape]).astype(np.float32)
        return x if p.dtype == BF16 else x.astype(p.dtype.numpy)

    inputs = [drawn(p) for p in sides(product, rows)[0]]
    (one,), (other,) = (interpret(make(product, rows), inputs, LANES) for make in (as_tile, as_cores))
    assert one.any()
    assert (one == other).all()
