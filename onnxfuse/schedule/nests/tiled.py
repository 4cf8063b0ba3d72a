"""What a contraction is once its operands are ready for register tiles."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.index import ONE, Axis, Index, axes_of, floor_div
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.products import SINGLE, Product
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.ir.tile import ZERO_ROW

MOST_SEGMENTS = 64  # of a row that a tile reads


@dataclass(frozen=True, slots=True)
class Part:
    """Steps of a contraction from `begin` on, one for each value of `axis`, whose left side is this load."""

    load: Load
    axis: Axis
    begin: int


@dataclass(frozen=True, slots=True)
class Tiled:
    """A contraction whose left side is rows of contiguous pieces and whose right side is panels.

    `left` runs over rows and ranges (segments, then one contiguous piece of `length`); `right` is indexed
    (batch, panel, ranges, column in panel); `finish` reads the sum as %acc. Where `left` has not the type of the
    product's rows, it has no guards and is converted while it is packed. With `zeros`, both hold codes, which these
    are the zero points of, and the right side panels of groups of four (`code_panels`). Where the left side is
    joined from several tensors along its range, `parts` are those, to be packed, and `left` is the first.
    Where `lines` are given, sides are exchanged: `left` are constants in tiles, `right` is read as it lies, and these
    are axes besides rows and columns. With a `pitch`, columns are lines of an image and places in them, so many from
    one line to the next: those behind the end of a line are computed too, and not stored.
    """

    left: Load
    right: Load
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    ranges: tuple[Axis, ...]
    segments: tuple[Axis, ...]
    length: Index
    finish: Scalar
    product: Product = SINGLE
    zeros: tuple[Scalar, Scalar] | None = None
    parts: tuple[Part, ...] = ()
    lines: tuple[Axis, ...] | None = None
    pitch: int = 0
    panels: tuple[Axis, Axis] | None = None  # axes of the right side: the panel, and the column in it

    @property
    def panel(self) -> Axis:
        """The axis of the right side that counts panels."""
        assert self.panels is not None, "schedule: sides that are exchanged have no panels"
        return self.panels[0]

    @property
    def lane(self) -> Axis:
        """The axis of the right side that runs over the columns of a panel."""
        assert self.panels is not None, "schedule: sides that are exchanged have no panels"
        return self.panels[1]

    @property
    def places(self) -> Index:
        """Columns with those that are computed in vain."""
        if not self.pitch:
            return product([a.extent for a in self.columns])
        line, place = self.columns
        return (line.extent - 1) * self.pitch + place.extent

    @property
    def depth(self) -> Index:
        """Elements of one column in a panel, with what lies behind them."""
        if self.zeros is None:
            return product([s.extent for s in self.segments]) * self.length
        return code_depth(self.segments, self.length)

    @property
    def lefts(self) -> tuple[Load, ...]:
        """Everything that the left side is read from."""
        return tuple(p.load for p in self.parts) or (self.left,)


def contiguous_pieces(
    offset: Index, ranges: tuple[Axis, ...], guards: tuple[Guard, ...]
) -> tuple[tuple[Axis, ...], Index] | None:
    """Ranges as outer segments, and the length of the contiguous piece that the inner ones make, if there is one."""
    guarded = {a for g in guards for a in axes_of(g.index)}
    length, at = ONE, len(ranges)
    while at and ranges[at - 1] not in guarded and coefficient(offset, ranges[at - 1]) == length:
        at -= 1
        length = length * ranges[at].extent
    if at == len(ranges):
        return None
    if any(coefficient(offset, r) is None for r in ranges[:at]):
        return None
    return ranges[:at], length


def readable_pieces(segments: tuple[Axis, ...], length: Index, *, guarded: bool) -> bool:
    """Whether pieces are long enough for a tile, and few, and short enough for the row of zeros if they are guarded."""
    if not few_enough(segments):
        return False
    if length.constant is None:
        return not guarded
    return length.constant >= 8 and (not guarded or length.constant <= ZERO_ROW)


def few_enough(segments: tuple[Axis, ...]) -> bool:
    """Whether so many segments are no more than a tile goes through."""
    return 0 < (product([s.extent for s in segments]).constant or 0) <= MOST_SEGMENTS


def code_depth(segments: tuple[Axis, ...], length: Index) -> Index:
    """Codes of one column of a panel: segments in groups of four, and four for the column's sum."""
    return product([s.extent for s in segments]) * floor_div(length + 3, Index.of(4)) * 4 + 4


def balanced(rows: int | None, most: int) -> int:
    """Rows of a tile, at most so many, such that the last one is not much shorter; where there are none, any."""
    return -(-rows // -(-rows // most)) if rows else most
