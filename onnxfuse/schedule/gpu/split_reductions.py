"""Two-stage reductions for GPUs: partial sums, maxima or positions in parallel, then one more over the partial results.

Three kinds have too few threads as they are: few long rows, a block at each; few columns, a thread at each; and first
places of extremes, whose elements have an order, so that one thread goes through all of a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.contraction import contraction_of
from onnxfuse.ir.index import ONE, Axis, Index, axes_of
from onnxfuse.ir.indexing import coefficient, product
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.scalar import Reduce
from onnxfuse.lower.scans import scan_of
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.memory import Place
from onnxfuse.schedule.analysis.two_stage import divided
from onnxfuse.schedule.gpu.phases import LONG
from onnxfuse.schedule.gpu.thread_mapping import BLOCK
from onnxfuse.target import Gpu

PIECE = 1 << 13  # elements of a part of a row, at least
TALL = 1 << 12  # elements of a column from which on it is divided
COLUMN = 32  # elements of a part of a column, or of a row whose elements have an order
ORDERED = 128  # elements of such a row from which on it is divided


@dataclass(frozen=True, slots=True)
class SplitReductions:
    """Definitions with some reductions in parts, and the names of the parts, which have phases of their own."""

    definitions: tuple[Definition, ...]
    parts: frozenset[str]


def split_reductions(definitions: Sequence[Definition], places: Mapping[str, Place], target: Gpu) -> SplitReductions:
    """The definitions with reductions in parts where that fills a GPU better."""
    made: list[Definition] = []
    names: set[str] = set()
    for d in definitions:
        while (found := _in_parts(d, places, target, len(names))) is not None:
            *parts, d = found
            made += parts
            names |= {p.name for p in parts}
        made.append(d)
    return SplitReductions(tuple(made), frozenset(names))


def _in_parts(d: Definition, places: Mapping[str, Place], target: Gpu, at: int) -> tuple[Definition, ...] | None:
    """The parts of a definition's reduction, and the definition that reads them; None where it stays whole."""
    x = _lone_reduction(d)
    n = product([r.extent for r in x.ranges]).constant if x is not None else None
    rows = product(d.shape).constant
    if x is None or not n or not rows or any(r.extent.constant is None for r in x.ranges):
        return None
    ordered, columns = MONOIDS[x.combine].numpy is None, _columns(x, places)
    if ordered:
        wanted = -(-n // COLUMN) if n >= ORDERED and rows <= target.sms * BLOCK else 1
    elif columns:
        wanted = min(2 * target.sms * BLOCK // rows, n // COLUMN) if n >= TALL else 1
    else:
        wanted = min(2 * target.sms // rows, n // PIECE) if n > LONG and 2 * rows <= target.sms else 1
    if wanted <= 1:
        return None
    return divided(d, x, dict(zip(x.ranges, _cut(x.ranges, wanted), strict=False)), at, columns=columns)


def _lone_reduction(d: Definition) -> Reduce | None:
    """The one reduction of a definition that is no product of two matrices, and no scan; None for others."""
    if scan_of(d) is not None:
        return None
    found = {replace(n, slot=0): n for n in walk(d.value) if isinstance(n, Reduce)}
    if len(found) != 1:
        return None
    (x,) = found.values()
    c = contraction_of(d.axes, x)
    multiplies = c is not None and bool(c.rows or c.columns)
    slots = {n.slot for n in walk(d.value) if isinstance(n, Reduce)}
    return None if multiplies or len(slots) > 1 else x


def _columns(x: Reduce, places: Mapping[str, Place]) -> bool:
    """Whether what is read lies side by side along the rows, and not along what is reduced."""
    offsets = [places[n.source].offset(n.index) for b in x.body for n in loads(b) if n.source in places]
    moving = [e for e in offsets if axes_of(e) & {*x.ranges}]
    runs = [a for e in moving for a in axes_of(e) if coefficient(e, a) == ONE and a.extent != ONE]
    return bool(runs) and not any(a in x.ranges for a in runs)


def _cut(ranges: Sequence[Axis], wanted: int) -> list[tuple[Index, Index]]:
    """How many parts the first ranges have, and elements of each: whole ranges first, then the best of one more."""
    found: list[tuple[Index, Index]] = []
    have = 1
    for r in ranges:
        extent = r.extent.constant or 1
        left = max(wanted // have, 1)
        if extent <= left:
            found.append((Index.of(extent), ONE))
            have *= extent
            continue
        if left > 1:
            even = next((q for q in range(left, left // 2, -1) if extent % q == 0), None)
            parts = even or left
            within = -(-extent // parts)
            found.append((Index.of(-(-extent // within)), Index.of(within)))
        break
    return found
