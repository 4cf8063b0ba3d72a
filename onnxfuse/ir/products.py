"""How register tiles multiply: one row for each pair of element types of rows and weight panels.

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
    """A matrix unit: its registers hold whole tiles, and every task sets it up for the rows of its tiles.

    Its functions begin with `name`, as the header does that declares them. Packed rows lie in pieces of `piece` bytes,
    which one instruction takes, padded with zeros; so many rows there are for every tile as the tallest has.
    """

    name: str
    rows: int  # of a tile at most
    piece: int
    least: int  # rows from which a product is worth it: fewer wait for weights, however they are multiplied
    speed: int  # as fast as so many vector units


AMX = Unit("amx", 32, 64, 8, 8)


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
    unit: Unit | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def exact(self) -> bool:
        """Whether integer codes are multiplied, and summed as integers."""
        return not self.sums.floating

    @property
    def piece(self) -> int:
        """Steps of the depth that packed rows are padded to."""
        return self.unit.piece // self.left.bytes if self.unit is not None else self.step

    def takes(self, length: int | None, *, several: bool) -> bool:
        """Whether rows may lie in pieces of `length`, of which there are `several`.

        A unit would spend more of its time on what fills its registers up where they are short. Codes that do not fill
        one piece alone take vectors half as long.
        """
        if self.unit is not None and length is not None:
            short = 2 * length < self.piece if several else self.exact and length < self.piece
            if short:
                return False
        return self.exact or (length or 1) % self.step == 0

    @property
    def rounds(self) -> bool:
        """Whether rows lose bits that a float32 has."""
        return self.left.floating and self.left.bits < F32.bits


SINGLE = Product("f32", F32, F32)
WIDENED_F16 = Product("f16", F32, F16)
PAIR = 2  # steps of bfloat16 that lie side by side
WIDENED_BF16 = Product("bf16", F32, BF16, PAIR)
DOT_BF16 = Product("bf16_dot", BF16, BF16, PAIR, features=("avx512bf16",), flags=("-mavx512bf16",))

QUAD = 4  # steps of codes that lie side by side
CODES = tuple(
    Product(f"codes_{left.name}_{right.name}", left, right, QUAD, I32) for left in (U8, I8) for right in (U8, I8)
)  # the tile asks the processor itself whether it multiplies codes

_AMX_FLAGS = tuple(f"-m{name}" for name in AMX_FEATURES)  # one source holds the tiles of all element types
AMX_BF16, *AMX_CODES = (
    replace(p, name=f"amx_{p.name}", features=AMX_FEATURES, flags=_AMX_FLAGS, unit=AMX) for p in (DOT_BF16, *CODES)
)

HALVES: Mapping[str, DType | None] = {"fp32": None, "bf16": BF16, "fp16": F16}  # by `--precision`
# Of equal panels, the fastest first.
PRODUCTS = (SINGLE, WIDENED_F16, AMX_BF16, DOT_BF16, WIDENED_BF16, *AMX_CODES, *CODES)


def products_for(right: DType, have: Container[str], rows: int | None = None) -> tuple[Product, ...]:
    """The tiles for panels of a type on a machine that has these optional features, the fastest first.

    `rows` is how many rows are multiplied, where that is known.
    """
    return tuple(p for p in PRODUCTS if p.right == right and not p.exact and _suits(p, have, rows))


def rounds_to(half: DType, have: Container[str]) -> bool:
    """Whether rows of products lie in this type on a machine that has these optional features."""
    return products_for(half, have)[0].left == half


def products_of_codes(left: DType, right: DType, have: Container[str], rows: int | None = None) -> tuple[Product, ...]:
    """The same for tiles of codes of these types."""
    return tuple(p for p in PRODUCTS if (p.left, p.right) == (left, right) and p.exact and _suits(p, have, rows))


def _suits(p: Product, have: Container[str], rows: int | None) -> bool:
    least = p.unit.least if p.unit is not None and rows is not None else 0
    return all(f in have for f in p.features) and (rows or 0) >= least
