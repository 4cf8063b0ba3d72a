"""Products that cuBLASLt may compute in place of a phase: plain matrices, and an epilogue that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxfuse.cost.gpu import library_seconds
from onnxfuse.cost.gpu_products import USUAL, seconds_of, tiles_of
from onnxfuse.cost.library_products import epilogue_of
from onnxfuse.ir.dtype import BF16, F16, F32
from onnxfuse.ir.indexing import product
from onnxfuse.ir.launch import LibraryProduct
from onnxfuse.ir.scalar import Load, variable
from onnxfuse.schedule.analysis.attention import SUM
from onnxfuse.schedule.analysis.memory import Place, dense
from onnxfuse.schedule.gpu.matrices import matrix_of, pitch_of
from onnxfuse.schedule.gpu.products import MatrixProduct
from onnxfuse.target import LIBRARY_SINCE, Gpu

TYPES = (F32, F16, BF16)


def with_library(p: MatrixProduct, places: Mapping[str, Place], target: Gpu) -> MatrixProduct:
    """The product, computed by cuBLASLt where that can do so and is predicted to be faster.

    Its own tile, for where the library is not there, then has the whole depth, so that it is one phase. A tile that was
    measured to be faster than the one predicted best stays.
    """
    tiles = tiles_of(p.sizes, target)
    found = library_product(p, places) if p.tile == tiles[0] and target.capability >= LIBRARY_SINCE else None
    tile = next((t for t in tiles if t.splits == 1), None)
    if found is None or tile is None:
        return p
    rows = p.sizes.rows or USUAL
    theirs = library_seconds(
        rows, found.columns, found.depth, found.dtype, found.activation, target, residual=found.residual != ""
    )
    own = seconds_of(p.sizes, p.tile, target)
    return replace(p, tile=tile, library=found) if theirs < own else p


def library_product(p: MatrixProduct, places: Mapping[str, Place]) -> LibraryProduct | None:
    """The call that computes a product; None where it has other operands than matrices, or another epilogue."""
    dtype = p.nest.dtype
    made = places.get(p.nest.name) or dense(p.nest.name, dtype, p.nest.shape)  # a value of the kernel goes to scratch
    epilogue = epilogue_of(p.finish, variable(SUM, F32), p.columns)
    columns, depth = (product([a.extent for a in axes]).constant for axes in (p.columns, p.depth))
    if epilogue is None or p.numbers or p.batch or not columns or not depth or dtype not in TYPES:
        return None
    left = matrix_of(p.left, p.rows, p.depth, places)
    plain = matrix_of(p.right, p.depth, p.columns, places)
    right = plain or matrix_of(p.right, p.columns, p.depth, places)
    bias = matrix_of(epilogue.bias, (), p.columns, places) if epilogue.bias is not None else ("", 0)
    added = epilogue.residual
    residual = matrix_of(added, p.rows, p.columns, places) if added is not None else ("", columns)
    result = pitch_of(made.offset(p.nest.dims), p.rows, p.columns)
    if left is None or right is None or bias is None or residual is None or result is None:
        return None
    read = [places[x.source].dtype for x in (p.left, p.right, epilogue.bias, epilogue.residual) if isinstance(x, Load)]
    if any(t != dtype for t in read):
        return None
    return LibraryProduct(
        dtype,
        product([a.extent for a in p.rows]),
        columns,
        depth,
        left[0],
        right[0],
        made.buffer,
        (left[1], right[1], residual[1], result),
        bias[0],
        residual[0],
        epilogue.activation,
        transposed=plain is None,
    )
