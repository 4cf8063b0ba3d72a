"""Window reductions (depthwise convolution, pooling): several outputs of an image row at once, edges apart.

Neighbouring outputs share weights and inputs, so that a few of them are jammed into one unrolled body. Inside the image
no tap needs a guard; at the edges the guards are of constants, once the body is unrolled, and cost nothing either.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, walk
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of, lower, upper
from onnxfuse.ir.indexing import coefficient, product, substitute
from onnxfuse.ir.kernel import Loop, Stmt
from onnxfuse.ir.scalar import Load, Reduce
from onnxfuse.schedule.nest import Goal, Level
from onnxfuse.schedule.writer import written

MOST_TAPS = 32  # a longer window is not unrolled


def jammed(goal: Goal, rows: list[Level], vector: Level, most: int) -> tuple[Axis, tuple[Stmt, ...]] | None:
    """Loops over the last row axis and the vector axis, at most `most` outputs jammed; None where that does not fit.

    The result is the axis that the loops take off `rows`, and the statements for one iteration of the others.
    """
    found = [n for n in walk(goal.value) if isinstance(n, Reduce)]
    if len(found) != 1 or not rows or goal.also:
        return None
    reduce = found[0]
    taps = product([r.extent for r in reduce.ranges]).constant
    x = rows[-1].axis
    width = x.extent.constant
    if taps is None or taps > MOST_TAPS or width is None or width < 2 or vector.axis in reduce.ranges:
        return None
    span = _inside(x, reduce, width)
    if span is None or not any(coefficient(e, x) not in (None, ZERO) for b in reduce.body for e in indices_of(b)):
        return None
    return x, tuple(_blocks(goal, x, span, width, _outputs(width, most), vector))


def _outputs(width: int, most: int) -> int:
    """Outputs of one body: the whole row when it is short, else the size of at most 8 that leaves the least over."""
    if width <= most:
        return width
    return min(range(min(8, most), 3, -1), key=lambda u: (-width % u, -u), default=width)


def _blocks(goal: Goal, x: Axis, span: tuple[int, int], width: int, outputs: int, vector: Level) -> Iterator[Stmt]:
    """Blocks of a row in order: those inside the image as one loop, those at its edges with guards spelled out."""
    begin = 0
    while begin < width:
        size = min(outputs, width - begin)
        inside = max(0, (span[1] - begin) // outputs) if begin >= span[0] else 0
        yield _block(goal, x, begin, max(inside, 1), size, vector, f"b{begin}")
        begin += size * max(inside, 1)


def _inside(x: Axis, reduce: Reduce, width: int) -> tuple[int, int] | None:
    """The range of x in which every guard that mentions it holds for all taps."""
    first, last = 0, width
    for b in reduce.body:
        for g in (g for n in walk(b) if isinstance(n, Load) for g in n.guards):
            if x not in axes_of(g.index):
                continue
            stride = (coefficient(g.index, x) or ZERO).constant
            rest = substitute(g.index, {x: ZERO})
            low, high, extent = (e.constant if e is not None else None for e in (_least(rest), upper(rest), g.extent))
            if not stride or stride < 0 or low is None or high is None or extent is None:
                return None
            first = max(first, -(low // stride) if low < 0 else 0)
            last = min(last, (extent - 1 - high) // stride + 1)
    return (first, last) if last > first else None


def _least(e: Index) -> Index | None:
    """The least value of an index, negative constants included."""
    shift = next((c for m, c in e.terms if not m), 0)
    low = lower(e - shift)
    return None if low is None else low + shift


def _block(goal: Goal, x: Axis, first: int, blocks: int, outputs: int, vector: Level, prefix: str) -> Stmt:
    """The jammed loop over blocks of outputs."""
    block, one = Axis(f"{x.name}b", Index.of(blocks)), Axis(f"{x.name}u", Index.of(outputs))
    at = (Index.of(block) * outputs if blocks > 1 else ZERO) + one + first
    inner = goal.substituted({x: at})
    inner = Goal(inner.buffer, inner.offset, simplify(inner.value))
    body = written([inner], [vector, Level(one, "unroll", jam=True)], prefix)
    return Loop(block, ZERO, block.extent, "serial", body)
