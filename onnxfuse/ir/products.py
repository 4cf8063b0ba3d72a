"""How register tiles multiply: one row for each pair of element types of rows and weight panels.

A new kind of tile is a row here, a `Product` in render/tiles/tile_code.h and its line in tile.h.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from onnxfuse.ir.dtype import BF16, F16, F32, I8, I32, U8, DType


@dataclass(frozen=True, slots=True)
class Product:
    """Element types of a tile's rows, panels and sums, and what a machine and a compiler need for it.

    `step` steps of the depth lie side by side in a panel, and in packed rows of the same type. Rows of another type are
    rounded or widened to `left` when they are packed or copied.
    """

    name: str
    left: DType
    right: DType
    step: int = 1
    sums: DType = F32
    features: tuple[str, ...] = ()  # of the processor, besides those of its class; names as in ort_glue.FEATURES
    flags: tuple[str, ...] = ()  # of the compiler for the tile itself, gcc spelling

    def __repr__(self) -> str:
        return self.name

    @property
    def exact(self) -> bool:
        """Whether integer codes are multiplied, and summed as integers."""
        return not self.sums.floating

    @property
    def rounds(self) -> bool:
        """Whether rows lose bits that a float32 has."""
        return self.left.floating and self.left.bits < F32.bits


SINGLE = Product("f32", F32, F32)
WIDENED_F16 = Product("f16", F32, F16)
WIDENED_BF16 = Product("bf16", F32, BF16, 2)
DOT_BF16 = Product("bf16_dot", BF16, BF16, 2, features=("avx512bf16",), flags=("-mavx512bf16",))

CODES = tuple(
    Product(f"codes_{left.name}_{right.name}", left, right, 4, I32) for left in (U8, I8) for right in (U8, I8)
)  # the tile asks the processor itself whether it multiplies codes

HALVES: Mapping[str, DType | None] = {"fp32": None, "bf16": BF16, "fp16": F16}  # by `--precision`
PRODUCTS = (SINGLE, WIDENED_F16, DOT_BF16, WIDENED_BF16, *CODES)  # of equal panels, the fastest first


def products_for(right: DType, have: Container[str]) -> tuple[Product, ...]:
    """The tiles for panels of a type on a machine that has these optional features, the fastest first."""
    return tuple(p for p in PRODUCTS if p.right == right and all(f in have for f in p.features) and not p.exact)


def product_of_codes(left: DType, right: DType) -> Product:
    """The tiles of codes of these types."""
    return next(p for p in CODES if (p.left, p.right) == (left, right))
