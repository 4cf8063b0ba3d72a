"""A lower bound of Winograd's predicted time from extents alone: divisions above the best candidate are not scheduled.

It counts register tiles as the cost model does, and of the transforms their stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from onnxfuse.cost import number
from onnxfuse.cost.count import CALL, SEGMENT
from onnxfuse.cost.means import SymbolUnknown
from onnxfuse.ir.indexing import product
from onnxfuse.ir.tasks import few_parts_of
from onnxfuse.schedule.cpu.winograd import Windows, WinogradBlocking
from onnxfuse.schedule.nests.tiled import PAIR, Tiled, balanced
from onnxfuse.target import Cpu

LOOPS = 2  # cycles of loop overhead per vector


def least_seconds(t: Tiled, w: Windows, d: WinogradBlocking, target: Cpu, sizes: Mapping[str, int]) -> float:
    """A lower bound of the seconds predicted for a division of the work; 0 if an extent is not known."""
    try:
        images, tiled = ([number(e, sizes) for e in es] for es in ([a.extent for a in w.images], w.tiles(d.transform)))
        depth, columns = number(w.channel.extent, sizes), number(product([a.extent for a in t.columns]), sizes)
    except SymbolUnknown:
        return 0.0
    size, outputs, vectors = d.transform.size, d.transform.outputs, target.panel / target.lanes
    rows, panels = prod(images) * prod(tiled), -(-columns // target.panel)
    known = product([*(a.extent for a in (*w.images, *w.place))]).constant
    tiles = -(-rows // balanced(known and rows, target.rows, PAIR))
    blocks = -(-tiles // d.block)
    work = int(rows * columns * (size * size * depth * target.serial.multiply_add))
    splits = (int(panels), int(tiles if blocks == 1 else blocks)) if d.by_panels else (int(blocks), 1)
    outer, inner = few_parts_of(target.cores, work, *splits)
    mine, all_ = (panels / outer, rows / inner) if d.by_panels else (panels, rows / outer)
    products = size**2 * mine * all_ * vectors * (depth / 2 + 2)
    calls = size**2 * mine * (all_ / rows) * tiles * (CALL + SEGMENT)
    image = all_ * ceil(depth / target.lanes) * 2 * size * (size + LOOPS)
    line = max(outputs, size / 2) + LOOPS  # cycles per vector
    stored = ceil(columns / target.lanes) / panels * outputs**2 * 2
    results = all_ * mine * (vectors * (size + outputs) * line + stored)
    times = 1.0 if d.keep else blocks * all_ / rows
    filters = size**2 * depth * vectors * mine * times
    return (products + calls + image + results + filters) * target.cycle
