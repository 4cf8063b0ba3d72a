"""Decides in which order contractions read operands that are contiguous along rows, not along k.

Those of constant filters over contiguous lines of an image may exchange their operands; rows that are contiguous as one
axis are packed as they lie.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from onnxfuse.ir.compose import loads
from onnxfuse.ir.dtype import F16, F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, divides
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.scalar import Load, Scalar
from onnxfuse.schedule.analysis.contract import Contracted
from onnxfuse.schedule.analysis.memory import Nest, Place
from onnxfuse.schedule.nests.nest import RECORDS, walks_as_one
from onnxfuse.schedule.nests.tiled import Tiled, balanced
from onnxfuse.target import Cpu

FEWEST_ALONG = 8  # rows, at least, that are packed as vectors
MOST_BETWEEN = 8  # pixels between two lines of an image of open size that are multiplied with them
FARTHEST = 8  # elements from one pixel to the next, at most, if the lanes of a panel are gathered


def rows_of_tiles(rows: Sequence[Axis], most: int) -> int:
    """Rows of a tile, at most `most`: whole records, if the last of several axes may run along one."""
    last = rows[-1].extent.constant if len(rows) > 1 else 1
    record = last if last in RECORDS else 1
    count = product([a.extent for a in rows]).constant
    return record * balanced(None if count is None else count // record, most // record)


def operand_of(x: Scalar) -> Load:
    """The load of an operand that is read in place."""
    assert isinstance(x, Load)
    return x


def filters_width(c: Contracted, places: Mapping[str, Place], constants: Container[str], target: Cpu) -> int:
    """How many filters are the rows of a tile; 0 if the pixels of the image are not contiguous."""
    image, filters = c.left, c.right
    if not isinstance(image, Load) or not isinstance(filters, Load) or c.batch or not c.rows or c.zeros is not None:
        return 0
    if image.source not in places or filters.source not in constants:
        return 0
    if not {image.dtype, filters.dtype} <= {F32, F16}:
        return 0
    stride = coefficient(places[image.source].offset(image.index), c.rows[-1])
    near = stride is not None and 1 <= (stride.constant or 0) <= FARTHEST
    return rows_of_tiles(c.columns, target.rows) if near else 0


def exchanged(
    c: Contracted,
    nest: Nest,
    image: Load,
    filters: Load,
    tiles: tuple[Axis, Axis],
    places: Mapping[str, Place],
    target: Cpu,
) -> Tiled:
    """The contraction with filters as rows, in `tiles`; its columns are pixels that all operands traverse linearly.

    Or they are those of several lines, if that fills panels better: with the elements between lines, or without them,
    where only the image has any.
    """
    read, made = places[image.source].offset(image.index), nest.name in places
    walked = [places[x.source].offset(x.index) for x in loads(c.finish) if x.source in places]
    if made:
        walked.append(places[nest.name].offset(nest.dims))
    at = len(c.rows) - 1
    while at and all(walks_as_one(e, *c.rows[at - 1 : at + 1]) for e in (read, *walked)):
        at -= 1
    length = product([r.extent for r in c.ranges])
    sides, axes = (filters, image, ()), (c.columns, c.rows[at:], c.ranges, ())
    single = Tiled(*sides, *axes, length, c.finish, lines=c.rows[:at], panels=tiles)
    if not at or len(c.rows) - at != 1:
        return single
    line, place = c.rows[at - 1 :]
    several = replace(single, columns=(line, place), lines=c.rows[: at - 1])
    if not (made and _has_seams(line, place, read, walked, target.lanes)):
        several = replace(several, pitch=_pitch(line, place, read))
        if several.pitch == ZERO:
            return single
        if place.extent.constant is None or line.extent.constant is None:
            return several
    counts = [_panels(t, target.panel) for t in (several, single)]
    return several if counts[0] < counts[1] else single


def _has_seams(line: Axis, place: Axis, read: Index, walked: Sequence[Index], width: int) -> bool:
    """Whether a vector lies in two lines of the image at most, and all that is not the image is contiguous across them.

    Then it may be read as whole vectors of either line: before and behind a line are elements of its neighbours.
    """
    if (place.extent.constant or 0) < width or line.extent.constant is None:
        return False
    across, along = (coefficient(read, a) or ZERO for a in (line, place))
    apart, step = across.constant, along.constant
    if not apart or not step or apart < (place.extent.constant or 0) * step:
        return False
    return all(walks_as_one(e, line, place) for e in walked)


def _pitch(line: Axis, place: Axis, offset: Index) -> Index:
    """The pitch of lines in pixels as an image is read; 0 if it is not a whole number, or lines are not in order.

    It is 0 as well where many pixels lie between two lines of an image of open size: how many panels lines of their own
    would leave unfilled is not known there.
    """
    across, along = (coefficient(offset, a) for a in (line, place))
    found = divides(along, across) if across is not None and along is not None else None
    between = (found - place.extent).constant if found is not None else None
    if found is None or between is None or between < 0:  # less than that where they are read backwards
        return ZERO
    known = line.extent.constant is not None and place.extent.constant is not None
    return found if known or between <= MOST_BETWEEN else ZERO


def _panels(t: Tiled, width: int) -> int:
    """The number of panels of an image of known size."""
    lines = product([a.extent for a in t.lines or ()]).constant or 1
    return lines * -(-(t.places.constant or 0) // width)


def along_rows(c: Contracted, places: Mapping[str, Place], constants: Container[str]) -> bool:
    """Whether a left side is contiguous along all of its rows, as pixels of an image whose channels come first."""
    left, constant = c.left, isinstance(c.right, Load) and c.right.source in constants
    if not isinstance(left, Load) or left.dtype != F32 or left.guards or left.source not in places:
        return False
    m, extents = Axis("m", product([a.extent for a in c.rows])), tuple(a.extent for a in c.rows)
    windows = any(axes_of(e) & {*c.ranges} and axes_of(e) & {*c.rows} for e in left.index)
    if not constant or c.batch or windows or (m.extent.constant or 0) < FEWEST_ALONG:
        return False
    offset = places[left.source].offset(left.index)
    flat = substitute(offset, dict(zip(c.rows, unflatten(Index.of(m), extents), strict=True)))
    return coefficient(flat, m) == ONE and all(coefficient(offset, r) is not None for r in c.ranges)
