"""The axes of convolutions of 3x3 filters, for which there is an algorithm with fewer products than taps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.dtype import F32
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div
from onnxfuse.ir.indexing import coefficient, substitute
from onnxfuse.ir.products import SINGLE, WIDENED_F16
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.nests.tiled import Tiled

TAPS = 3  # of a filter along each axis


@dataclass(frozen=True, slots=True)
class Windows:
    """The axes of a contraction that slides 3x3 filters over images with stride 1 and any dilation.

    With dilations d the lines of an image fall into d interleaved sets, each convolved for itself; likewise its
    columns. The outputs of a tile are then d apart.
    """

    images: tuple[Axis, ...]
    place: tuple[Axis, Axis]  # in the result: line and column
    taps: tuple[Axis, Axis]
    dilations: tuple[int, int]
    channel: Axis  # contiguous in the image and in the filters

    def tiles(self, outputs: int) -> tuple[Index, ...]:
        """How many tiles of so many outputs there are along lines and along columns."""
        return tuple(
            floor_div(a.extent + (outputs * d - 1), Index.of(outputs * d)) * d
            for a, d in zip(self.place, self.dilations, strict=True)
        )


def windows_of(t: Tiled, places: Mapping[str, Place]) -> Windows | None:
    """The axes of a float32 contraction that slides constant 3x3 filters; None for other contractions.

    Filters may be stored in 16 bits, if they are not interleaved: they are widened when they are transformed.
    """
    numbers = t.product in (SINGLE, WIDENED_F16) and t.left.dtype == F32 and t.zeros is None
    if not numbers or t.parts or len(t.ranges) != TAPS:
        return None
    moving = {e: slides for e in t.left.index if (slides := _slides(e, t)) is not None}
    if len(moving) != 2 or len({a for y, tap, _ in moving.values() for a in (y, tap)}) != 4:
        return None
    (y, i, down), (x, j, along) = moving.values()
    (channel,) = (r for r in t.ranges if r not in (i, j))
    images = tuple(a for a in t.rows if a not in (x, y))
    rest = [substitute(e, dict.fromkeys(t.batch, ZERO)) for e in t.left.index if e not in moving]
    known = {Index.of(a) for a in (*images, channel)}
    offset, right = places[t.left.source].offset(t.left.index), places[t.right.source].offset(t.right.index)
    width = t.lane.extent
    if channel.extent.constant is None or Index.of(channel) not in rest:
        return None
    if any(e not in known and e.constant is None for e in rest) or any(g.index not in moving for g in t.left.guards):
        return None
    if coefficient(offset, channel) != ONE or coefficient(right, channel) != width:
        return None
    return Windows(images, (y, x), (i, j), (down, along), channel)


def _slides(e: Index, t: Tiled) -> tuple[Axis, Axis, int] | None:
    """Row axis y, axis k of three taps and dilation d of an index y + d k + constant; None for other indices."""
    rows, taps = ([a for a in part if a in axes_of(e)] for part in (t.rows, t.ranges))
    if len(rows) != 1 or len(taps) != 1 or taps[0].extent.constant != TAPS:
        return None
    factor = coefficient(e, taps[0])
    dilation = factor.constant if factor is not None else None
    if dilation is None or dilation < 1 or (e - rows[0] - Index.of(taps[0]) * dilation).constant is None:
        return None
    return rows[0], taps[0], dilation
