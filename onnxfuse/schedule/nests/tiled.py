"""A contraction whose operands are ready for register tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.products import SINGLE, ProductKind
from onnxfuse.ir.scalar import Guard, Load, Scalar
from onnxfuse.ir.tile import ZERO_ROW

MOST_SEGMENTS = 64  # of a row that a tile iterates over
SHORTEST_PIECE = 8  # elements of a segment, at least
PAIR = 2  # shares into which a few tiles are divided: cores have as many of them then, if there are two or one
SHARED = 8  # rows of a tile, at least, for that


@dataclass(frozen=True, slots=True)
class KSubrange:
    """A subrange of k, from `begin` on, one step per value of `axis`; its left operand is this load."""

    load: Load
    axis: Axis
    begin: int


@dataclass(frozen=True, slots=True)
class Tiled:
    """A contraction whose left side is rows of contiguous pieces and whose right side is panels.

    `left` is indexed by rows and reduction axes (segments, then one contiguous piece of `length`), `right` by batch,
    panel, reduction axes and column in the panel; `finish` reads the sum as %acc. If the storage dtype of `left` is not
    that of the micro-kernel's rows, it has no guards and is converted while it is packed. With `zeros`, the zero points
    of both sides, both are quantized, and the right side's panels interleave groups of four k (`code_panels`). If the
    left side is a concatenation along k, `parts` are its tensors, to be packed or read in segments that do not span
    two of them, and `left` is the first.
    With `lines`, operands are exchanged: `left` are constant filters in tiles, as panels are, `right` is read in place,
    and `lines` are axes besides rows and columns. With a `pitch`, columns are lines of an image and positions in them,
    `pitch` from one line to the next: positions behind the end of a line are computed too, but not stored. With
    `channels`, columns are contiguous in `left` and have windows of their own: `segments` of `length` elements, each
    with a pointer. A left side that is contiguous `along_rows` instead, of all of them as one axis, is packed: its
    `length` is that of k.
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
    product: ProductKind = SINGLE
    zeros: tuple[Scalar, Scalar] | None = None
    parts: tuple[KSubrange, ...] = ()
    lines: tuple[Axis, ...] | None = None
    pitch: Index = ZERO
    panels: tuple[Axis, Axis] | None = None  # axes of the side in panels: panel, and column in the panel
    channels: bool = False
    along_rows: bool = False

    @property
    def panel(self) -> Axis:
        """The axis that numbers panels."""
        assert self.panels is not None, "schedule: no side is in panels"
        return self.panels[0]

    @property
    def lane(self) -> Axis:
        """The axis over the columns of a panel."""
        assert self.panels is not None, "schedule: no side is in panels"
        return self.panels[1]

    @property
    def places(self) -> Index:
        """The number of columns, those included that are computed but not stored."""
        if self.pitch == ZERO:
            return product([a.extent for a in self.columns])
        line, place = self.columns
        return (line.extent - 1) * self.pitch + place.extent

    @property
    def pieces(self) -> tuple[Axis, ...]:
        """The reduction axes that number the pointers of a row."""
        return self.ranges if self.channels else self.segments

    @property
    def reach(self) -> Index:
        """Contiguous elements that are read behind a pointer."""
        return product([a.extent for a in self.columns]) if self.channels else self.length

    @property
    def depth(self) -> Index:
        """Elements of one column in a panel, padding and sums included."""
        if self.zeros is None:
            return product([s.extent for s in self.segments]) * self.length
        return code_depth(self.segments, self.length)

    @property
    def segment(self) -> int:
        """Elements of the equal segments that the parts are divided into, for unpacked rows; 0 if there are none."""
        extents = [p.axis.extent.constant or 0 for p in self.parts]
        found = gcd(*extents) if self.product == SINGLE and all(extents) else 0
        return found if found >= SHORTEST_PIECE and sum(extents) <= found * MOST_SEGMENTS else 0

    @property
    def lefts(self) -> tuple[Load, ...]:
        """The loads of the left side: its parts, or the one load."""
        return tuple(p.load for p in self.parts) or (self.left,)


def contiguous_pieces(
    offset: Index, ranges: tuple[Axis, ...], guards: tuple[Guard, ...]
) -> tuple[tuple[Axis, ...], Index] | None:
    """Reduction axes as outer segments and the length of the contiguous piece of the inner ones, if there is one."""
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
    """Whether pieces are long enough for a tile, few, and, if guarded, no longer than the row of zeros for padding."""
    if not few_enough(segments):
        return False
    if length.constant is None:
        return not guarded
    return length.constant >= SHORTEST_PIECE and (not guarded or length.constant <= ZERO_ROW)


def few_enough(segments: tuple[Axis, ...]) -> bool:
    """Whether a tile can iterate over so many segments."""
    return 0 < (product([s.extent for s in segments]).constant or 0) <= MOST_SEGMENTS


def code_depth(segments: tuple[Axis, ...], length: Index) -> Index:
    """Bytes of one column of an 8-bit panel: segments in groups of four, and four for the column's sum."""
    return product([s.extent for s in segments]) * floor_div(length + 3, Index.of(4)) * 4 + 4


def balanced(rows: int | None, most: int, shares: int = 1) -> int:
    """Rows of a tile or tiles of a block, at most `most`: the last is not much shorter. `most` if `rows` is unknown.

    Several tiles are divided evenly into so many `shares`, if they have enough rows then.

    >>> balanced(64, 14), balanced(64, 14, shares=2), balanced(22, 14, shares=4)
    (13, 11, 11)
    """
    if not rows:
        return most
    count = -(-rows // most)
    shared = -(-rows // (-(-count // shares) * shares))
    return shared if count > 1 and shared >= SHARED else -(-rows // count)
