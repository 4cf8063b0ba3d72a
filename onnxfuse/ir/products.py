"""Instruction sequences of register tiles: one row for each pair of element types of rows and weight panels.

A new kind of tile is a row here, a `Product` in render/tiles/tile_code.h and its line in tile.h. Those of a matrix unit
have a header of their own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from onnxfuse.ir.dtype import BF16, F16, F32, I8, I32, U8, DType
from onnxfuse.target import AMX_FEATURES


@dataclass(frozen=True, slots=True)
class Unit:
    """A matrix unit with tile registers, which every task configures for the rows of its tiles.

    `name` is the prefix of its functions and of the header that declares them. Packed rows are split into pieces of
    `piece` bytes, the depth of one instruction, and zero-padded; every tile has space for the rows of the tallest one.
    """

    name: str
    rows: int  # maximum rows of a tile
    piece: int
    least: int  # minimum rows of a product for which it pays off: with fewer, loading weights is the bottleneck
    speed: int  # throughput relative to a vector unit


AMX = Unit("amx", 32, 64, 8, 8)
JOINED = 448  # bytes of short segments of 8-bit integers that are put side by side for a matrix unit, at most


@dataclass(frozen=True, slots=True)
class ProductKind:
    """Element types of a tile's rows, panels and sums, and the processor features and compiler flags it needs.

    `step` consecutive k are interleaved in a panel, and in packed rows of the same type. Rows of another type are
    rounded or widened to `left` when they are packed or copied.
    """

    name: str
    left: DType
    right: DType
    step: int = 1
    sums: DType = F32
    features: tuple[str, ...] = ()  # of the processor, besides those of its class; names as in ort_glue.FEATURES
    flags: tuple[str, ...] = ()  # compiler flags of the tile's translation unit, in gcc spelling
    unit: Unit | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def exact(self) -> bool:
        """Whether 8-bit integers are multiplied and summed exactly."""
        return not self.sums.floating

    @property
    def piece(self) -> int:
        """Elements of k that packed rows are padded to a multiple of."""
        return self.unit.piece // self.left.bytes if self.unit is not None else self.step

    def takes(self, length: int | None, segments: int) -> bool:
        """Whether it suits rows in so many `segments` of `length`.

        A matrix unit wastes most of its depth on the padding of short segments, unless they are 8-bit integers that it
        can put side by side. For 8-bit integers shorter than one piece, vectors take half as long.
        """
        if self.unit is not None and length is not None:
            joined = -(-length // self.step) * self.step * segments
            short = 2 * length < self.piece if segments > 1 else self.exact and length < self.piece
            if short and not (self.exact and segments > 1 and self.piece <= 2 * joined <= 2 * JOINED):
                return False
        return self.exact or (length or 1) % self.step == 0

    @property
    def rounds(self) -> bool:
        """Whether rows are rounded to fewer bits than float32 has."""
        return self.left.floating and self.left.bits < F32.bits


SINGLE = ProductKind("f32", F32, F32)
WIDENED_F16 = ProductKind("f16", F32, F16)
PAIR = 2  # consecutive k of bfloat16 that are interleaved
WIDENED_BF16 = ProductKind("bf16", F32, BF16, PAIR)
DOT_BF16 = ProductKind("bf16_dot", BF16, BF16, PAIR, features=("avx512bf16",), flags=("-mavx512bf16",))

QUAD = 4  # consecutive k of 8-bit integers that are interleaved
CODES = tuple(
    ProductKind(f"codes_{left.name}_{right.name}", left, right, QUAD, I32) for left in (U8, I8) for right in (U8, I8)
)  # the tile detects dot-product instructions at run time

_AMX_FLAGS = tuple(f"-m{name}" for name in AMX_FEATURES)  # one source holds the tiles of all element types
AMX_BF16, *AMX_CODES = (
    replace(p, name=f"amx_{p.name}", features=AMX_FEATURES, flags=_AMX_FLAGS, unit=AMX) for p in (DOT_BF16, *CODES)
)

HALVES: Mapping[str, DType | None] = {"fp32": None, "bf16": BF16, "fp16": F16}  # by `--precision`
# In order of preference; those with equal panel types, the fastest first.
PRODUCTS = (SINGLE, WIDENED_F16, AMX_BF16, DOT_BF16, WIDENED_BF16, *AMX_CODES, *CODES)


def products_for(right: DType, have: Container[str], rows: int | None = None) -> tuple[ProductKind, ...]:
    """The tiles for panels of a type on a machine that has these optional features, the fastest first.

    `rows` is the number of rows (m), if known.
    """
    return tuple(p for p in PRODUCTS if p.right == right and not p.exact and _suits(p, have, rows))


def rounds_to(half: DType, have: Container[str]) -> bool:
    """Whether rows of products are rounded to this type on a machine that has these optional features."""
    return products_for(half, have)[0].left == half


def products_of_codes(
    left: DType, right: DType, have: Container[str], rows: int | None = None
) -> tuple[ProductKind, ...]:
    """The same for tiles of 8-bit integers of these types."""
    return tuple(p for p in PRODUCTS if (p.left, p.right) == (left, right) and p.exact and _suits(p, have, rows))


def _suits(p: ProductKind, have: Container[str], rows: int | None) -> bool:
    least = p.unit.least if p.unit is not None and rows is not None else 0
    return all(f in have for f in p.features) and (rows or 0) >= least
