"""Window reductions (depthwise convolution, pooling): several outputs of an image row at once, edges apart.

Inside the image no tap needs a guard and neighbouring outputs share weights and inputs, so that a few outputs are
jammed into one unrolled body; at the edges the plain loop with guards runs.
"""

from __future__ import annotations

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of, coefficient, lower, product, substitute, upper
from onnxfuse.ir.kernel import Loop, Stmt
from onnxfuse.ir.scalar import Load, Reduce, indices_of, walk
from onnxfuse.schedule.nest import Goal, Level
from onnxfuse.schedule.writer import written

MOST_TAPS = 32  # a longer window is not unrolled
OUTPUTS = (8, 7, 6, 4, 2)  # outputs of one jammed body, by preference


def jammed(goal: Goal, rows: list[Level], vector: Level) -> tuple[Axis, tuple[Stmt, ...]] | None:
    """Loops over the last row axis and the vector axis, jammed where no tap is outside; None where that does not fit.

    The result is the axis that the loops take off `rows`, and the statements for one iteration of the others.
    """
    found = [n for n in walk(goal.value) if isinstance(n, Reduce)]
    if len(found) != 1 or not rows or goal.also:
        return None
    reduce = found[0]
    taps = product([r.extent for r in reduce.ranges]).constant
    x = rows[-1].axis
    width = x.extent.constant
    if taps is None or taps > MOST_TAPS or width is None or width < 4 or vector.axis in reduce.ranges:
        return None
    span = _inside(x, reduce, width)
    if span is None:
        return None
    first, last = span
    outputs = next((u for u in OUTPUTS if (last - first) >= u), None)
    if outputs is None or not any(coefficient(e, x) not in (None, ZERO) for b in reduce.body for e in indices_of(b)):
        return None
    blocks = (last - first) // outputs
    stmts: list[Stmt] = []
    if first:
        stmts.append(_plain(goal, x, 0, first, vector, "a"))
    stmts.append(_block(goal, x, first, blocks, outputs, vector, "b"))
    done = first + blocks * outputs
    if last - done > 1:
        stmts.append(_block(goal, x, done, 1, last - done, vector, "d"))
        done = last
    if done < width:
        stmts.append(_plain(goal, x, done, width, vector, "c"))
    return x, tuple(stmts)


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


def _plain(goal: Goal, x: Axis, begin: int, end: int, vector: Level, prefix: str) -> Stmt:
    """The guarded loop over part of a row."""
    body = written([goal], [vector], prefix)
    return Loop(x, Index.of(begin), Index.of(end), "serial", body)


def _block(goal: Goal, x: Axis, first: int, blocks: int, outputs: int, vector: Level, prefix: str) -> Stmt:
    """The jammed loop over blocks of outputs."""
    block, one = Axis(f"{x.name}b", Index.of(blocks)), Axis(f"{x.name}u", Index.of(outputs))
    at = Index.of(block) * outputs + one + first
    inner = goal.substituted({x: at})
    inner = Goal(inner.buffer, inner.offset, simplify(inner.value))
    body = written([inner], [vector, Level(one, "unroll", jam=True)], prefix)
    return Loop(block, ZERO, block.extent, "serial", body)
