"""The register tile of a contraction: what multiplies, where both sides lie, and where the sums go."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.fragments import Core, register_tile, tile_unit
from onnxfuse.ir.index import ZERO, Index, floor_div
from onnxfuse.ir.products import QUAD, SINGLE, Product
from onnxfuse.ir.scalar import Scalar

UNIT_SIDE = 16  # rows and columns of one register of a matrix unit
EVEN_ENTRIES = 4  # of a segment of even rows in a table: the first three and the last
ZERO_ROW = 4096  # elements of padding that a pointer, or a row that is packed, may stand for


@dataclass(frozen=True, slots=True)
class TileCore:
    """What a tile multiplies with: at most `most` rows by a panel of `width` columns, of the types of `product`.

    It goes through the depth step by step, each of which is a product of fragments.
    """

    most: int
    width: int
    product: Product = SINGLE

    def step(self, lanes: int) -> Core:
        """One step, on vectors of so many lanes, or by the matrix unit, of which a tile has several side by side."""
        p = self.product
        if p.unit is not None:
            return tile_unit(UNIT_SIDE, UNIT_SIDE, p.piece, p.step, p.left, p.right, p.sums)
        return register_tile(self.most, self.width, p.step, lanes, p.left, p.right, p.sums)


@dataclass(frozen=True, slots=True)
class Coding:
    """What the 8-bit codes of a tile mean: types and zero points of both sides; the left side has one.

    The right side has one zero point, or codes in a buffer, from an offset on one for each column.
    """

    left: DType
    left_zero: Scalar
    right: DType
    right_zero: Scalar | tuple[str, Index]


@dataclass(frozen=True, slots=True)
class Pointers:
    """Rows that lie anywhere, in `segments` pieces of `length` elements: a table has pointers to all of them.

    Of `even` rows it has those of the first three and of the last: all but these two lie at one distance.
    """

    buffer: str
    at: Index
    segments: int
    length: Index
    even: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows side by side in one block: element k of a row lies at k * rows + row."""

    buffer: str
    at: Index
    segments: int
    length: Index


@dataclass(frozen=True, slots=True)
class Quantized:
    """Rows of codes that a table of pointers leads to; summed up are products of distances from the zero points."""

    buffer: str
    at: Index
    segments: int
    length: Index
    coding: Coding


Left = Pointers | Packed | Quantized


@dataclass(frozen=True, slots=True)
class Panel:
    """Columns side by side: element k of a column lies at k * width + column.

    Where `columns` are given, so many there are, and no more vectors of them are made. Of codes they have to be.
    """

    buffer: str
    at: Index
    columns: Index = ZERO


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is fetched while a tile runs: part `turn` of `turns` of the next panel, at an offset of a buffer.

    In the last panel (its number, of how many) it is the first panel of another buffer, `after`.
    """

    buffer: str
    at: Index
    turn: Index = ZERO
    turns: Index = ZERO
    after: tuple[Index, Index, str] | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """out[row * width + column] = sum over k of left[row, k] * right[k, column], for so many rows.

    Packed tiles add to what `out` holds where `more` is not 0.
    """

    out: str
    out_at: Index
    rows: Index
    core: TileCore
    left: Left
    right: Panel
    more: Index = ZERO
    ahead: Ahead | None = None

    @property
    def some(self) -> bool:
        """Whether the first columns of a panel alone are wanted, of floats."""
        return not isinstance(self.left, Quantized) and self.right.columns != ZERO

    @property
    def depth(self) -> Index:
        """Elements of a row that are multiplied."""
        return self.left.length * self.left.segments

    @property
    def panel_depth(self) -> Index:
        """Elements of a panel's column: of codes there are whole groups of steps in each segment."""
        if isinstance(self.left, Quantized):
            return floor_div(self.left.length + (QUAD - 1), Index.of(QUAD)) * QUAD * self.left.segments
        return self.depth
