"""The register tile of a contraction (a GEMM micro-kernel): core, operands, and destination of the sums."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.fragments import Core, register_tile, tile_unit
from onnxfuse.ir.index import ZERO, Index, floor_div
from onnxfuse.ir.products import QUAD, SINGLE, ProductKind
from onnxfuse.ir.scalar import Scalar

UNIT_SIDE = 16  # rows and columns of one register of a matrix unit
EVEN_ENTRIES = 4  # row pointers of a segment with equidistant rows: the first three and the last
ZERO_ROW = 4096  # maximum elements of padding that a row pointer or a packed row may read


@dataclass(frozen=True, slots=True)
class TileCore:
    """The micro-kernel of a tile: at most `most` rows by a panel of `width` columns, with the types of `product`.

    Its k loop executes one product of fragments per step.
    """

    most: int
    width: int
    product: ProductKind = SINGLE

    def step(self, lanes: int) -> Core:
        """The product of one k step, on vectors of so many lanes, or by the matrix unit."""
        p = self.product
        if p.unit is not None:
            return tile_unit(UNIT_SIDE, UNIT_SIDE, p.piece, p.step, p.left, p.right, p.sums)
        return register_tile(self.most, self.width, p.step, lanes, p.left, p.right, p.sums)


@dataclass(frozen=True, slots=True)
class Coding:
    """Types and zero points of both sides of a quantized tile.

    The right zero point is a scalar, or (buffer, offset) of one for each column.
    """

    left: DType
    left_zero: Scalar
    right: DType
    right_zero: Scalar | tuple[str, Index]


@dataclass(frozen=True, slots=True)
class Pointers:
    """Rows at arbitrary addresses, in `segments` of `length` contiguous elements: a table has a pointer to each.

    Of `even` (equidistant) rows it has those of the first three and the last; the first and last may deviate.
    """

    buffer: str
    at: Index
    segments: int
    length: Index
    even: bool = False


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows packed k-major in one block: element k of a row is at k * rows + row."""

    buffer: str
    at: Index
    segments: int
    length: Index


@dataclass(frozen=True, slots=True)
class Quantized:
    """Rows of 8-bit integers behind a table of pointers; the product is of values minus their zero points."""

    buffer: str
    at: Index
    segments: int
    length: Index
    coding: Coding


@dataclass(frozen=True, slots=True)
class Channels(Quantized):
    """8-bit integers of windows of one channel each: column j reads element `across + j` behind each pointer.

    `segments` are the columns of a window, `length` the elements of one, each with a pointer of its own in the table.
    The right side holds signed integers without a zero point. `slides`: segment s of each row but the first is segment
    s + 1 of the row before.
    """

    across: Index = ZERO
    slides: bool = False

    @property
    def pointers(self) -> int:
        """Pointers of a row."""
        return self.segments * (self.length.constant or 1)


Left = Pointers | Packed | Quantized | Channels


@dataclass(frozen=True, slots=True)
class Panel:
    """A k-major panel of columns: element k of a column is at k * width + column.

    `columns` is the number of valid columns, if given: no vectors beyond them are computed. Quantized tiles require it.
    With a `source` the tile makes a whole panel while it multiplies: a table has a pointer to each row of columns.
    """

    buffer: str
    at: Index
    columns: Index = ZERO
    source: Pointers | None = None


@dataclass(frozen=True, slots=True)
class Ahead:
    """A prefetch during a tile: part `turn` of `turns` of the next panel, at an offset of a buffer.

    `after` is (panel, panels, buffer): during the last panel, the first panel of that buffer is prefetched.
    """

    buffer: str
    at: Index
    turn: Index = ZERO
    turns: Index = ZERO
    after: tuple[Index, Index, str] | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """out[row * width + column] = sum over k of left[row, k] * right[k, column], for so many rows.

    Packed tiles accumulate into `out` where `more` is not 0.
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
        """Whether it is a float tile that computes only the first columns of a panel."""
        return not isinstance(self.left, Quantized) and self.right.columns != ZERO and self.right.source is None

    @property
    def depth(self) -> Index:
        """The extent of k."""
        return self.left.length * self.left.segments

    @property
    def panel_depth(self) -> Index:
        """Elements of a panel's column: for 8-bit integers, segments are padded to groups of interleaved k."""
        if isinstance(self.left, Quantized):
            return floor_div(self.left.length + (QUAD - 1), Index.of(QUAD)) * QUAD * self.left.segments
        return self.depth
