"""How many rows a register tile has, and how much of the left side it reads."""

from __future__ import annotations

from itertools import pairwise

from onnxfuse.ir.index import Index
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.schedule.nests.nest import walks_as_one
from onnxfuse.schedule.nests.tiled import Tiled, balanced
from onnxfuse.target import Cpu
from onnxfuse.target.cpu import in_flight


def tile_height(t: Tiled, offset: Index, target: Cpu) -> int:
    """Rows of a tile.

    Rows at a constant distance across lines are divided into tiles of equal height; other rows line by line, if a line
    divides into tiles that are high enough.
    """
    most = t.product.unit.rows if t.product.unit is not None else target.rows
    width, rows = t.rows[-1].extent.constant if t.rows else 1, product([a.extent for a in t.rows]).constant
    if t.left.guards or not all(walks_as_one(offset, high, low) for high, low in pairwise(t.rows)):
        heights = (h for h in range(most, most // 2, -1) if h == most or t.product.exact or in_flight(h))
        line = next((h for h in heights if width is not None and width % h == 0), None)
        if line is not None:
            return line
    return balanced(rows, most)


def tile_heights(t: Tiled, offset: Index, target: Cpu) -> tuple[int, ...]:
    """Rows of a tile, and half of the largest number if only such tiles divide a line, so that their rows are even.

    Even rows need fewer pointers to be loaded, which dominates if a tile has one vector of columns.
    """
    tile_rows, half = tile_height(t, offset, target), target.rows // 2
    width = t.rows[-1].extent.constant if t.rows else None
    lines = width is not None and width % half == 0 and width % tile_rows
    narrow = (product([a.extent for a in t.columns]).constant or target.panel) <= target.lanes
    return (tile_rows, half) if lines and narrow and t.product.unit is None and tile_rows > half else (tile_rows,)


def elements_read(t: Tiled, offset: Index, tile_rows: int, depth: int) -> int:
    """Elements of the left side that the rows of a tile have, each counted once; `offset` is where they are read.

    Windows of adjacent rows overlap, in a line by what is longer than a step to the next row; those of several lines
    have as much in common as these are wide.
    """
    segments = product([s.extent for s in t.segments]).constant or 1
    step = coefficient(offset, t.rows[-1]) if t.rows else None
    apart, piece = abs(step.constant or 0) if step is not None else 0, depth // segments
    in_line = (tile_rows - 1) * min(piece, apart or piece) + piece
    return min(tile_rows * depth // segments, segments * in_line)
