"""Window reductions (depthwise convolution, pooling) by unroll-and-jam: several outputs of an image row per loop body.

Neighbouring outputs share weights and inputs, so that a few of them are computed in one body with all taps unrolled:
each weight and each input is loaded once. Outputs at the edges have bodies of their own, without the taps in padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import gcd

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, rebuild, substitute_axes, walk
from onnxfuse.ir.contraction import factors
from onnxfuse.ir.dtype import BOOL
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of, floor_div, greatest, least, lower, upper
from onnxfuse.ir.indexing import coefficient, product, substitute
from onnxfuse.ir.kernel import Bind, Loop, Prefetch, Stmt
from onnxfuse.ir.scalar import Apply, Const, FromIndex, Guard, Load, Reduce, Scalar, const
from onnxfuse.schedule.nests.nest import WIDE, Goal, Level
from onnxfuse.schedule.nests.writer import Writer, finished, lifted, written

FEW_TAPS = 9  # of outputs that share no inputs
MOST_TAPS = 32  # of one line: a longer one is not unrolled
MOST_OUTPUTS, FEW = 8, 2  # outputs of one body; of the remainder in rows of symbolic length
WITH_WEIGHT = 2  # vectors that a term reads: of the image, and of the weights
FEW_REGISTERS = 16  # of vectors: for more of them it was not measured
MOST_EDGES = 16  # unrolled bodies of a row at the edges of an image


def unroll_and_jam(
    goal: Goal, rows: list[Level], vector: Level, most: int, ahead: int = 0
) -> tuple[Axis, tuple[Stmt, ...]] | None:
    """Loops over the last row axis and the vector axis with up to `most` outputs per body; None if not applicable.

    There are twice as many vector registers as `most`. Lines that the next body is the first to read are prefetched, a
    vector of `ahead` lanes at a time, if that is not 0.

    Returns the row axis that the loops cover, and the statements for one iteration of the other row axes.
    """
    found = [n for n in walk(goal.value) if isinstance(n, Reduce)]
    if len(found) != 1 or not rows or goal.also or found[0].combine not in WIDE:
        return None
    reduce = found[0]
    x = rows[-1].axis
    width = x.extent.constant
    unrolled = _unrolled_ranges(reduce, x) or _few_guarded(reduce, x)
    moves = any(coefficient(e, x) not in (None, ZERO) for b in reduce.body for e in indices_of(b))
    if not unrolled or not moves or vector.axis in reduce.ranges:
        return None
    if width is None:
        row = _open_row(goal, x, reduce, most, vector, unrolled)
        return (x, row) if row is not None else None
    span = range_inside(x, reduce, width) if width > 1 else None
    if span is None:
        return None
    outputs = _outputs(width, most)
    if span[0] + width - span[1] > MOST_EDGES * outputs:
        return None
    blocks = list(_blocks(goal, x, span, width, outputs, most, vector, unrolled, ahead))
    made = tuple(b for b in blocks if b is not None)
    return (x, made) if len(made) == len(blocks) else None


def _unrolled_ranges(reduce: Reduce, x: Axis) -> tuple[Axis, ...]:
    """The reduction axes to unroll: all but the one along which neighbouring outputs share no inputs.

    Lines come first, which may be outside of the image: their guards are those of all taps of a line. Without the
    longest axes if there are too many taps; empty if outputs share no inputs at all.
    """
    indices = [e for b in reduce.body for e in indices_of(b)]
    shared = {r for r in reduce.ranges for e in indices if _shares(e, r, x)}
    if not shared:
        return ()
    guards = [g.index for b in reduce.body for n in walk(b) if isinstance(n, Load) for g in n.guards]
    lines = {r for e in guards if x not in axes_of(e) for r in axes_of(e)}
    looped = min(reduce.ranges, key=lambda r: (r not in lines, r in shared))
    made = tuple(r for r in reduce.ranges if r != looped)
    while made and (product([r.extent for r in made]).constant or MOST_TAPS + 1) > MOST_TAPS:
        longest = max(made, key=lambda r: r.extent.constant or MOST_TAPS + 1)
        made = tuple(r for r in made if r != longest)
    return made


def _few_guarded(reduce: Reduce, x: Axis) -> tuple[Axis, ...]:
    """The reduction axes of a few taps in rows of open length but the last, if guards depend on the row.

    Outputs that share no inputs gain by the interior, where those guards are known to hold.
    """
    taps = product([r.extent for r in reduce.ranges]).constant
    open_ = x.extent.constant is None and bool(_guards_along(reduce, x))
    return reduce.ranges[:-1] if open_ and (taps or FEW_TAPS + 1) <= FEW_TAPS else ()


def _guards_along(value: Scalar, axis: Axis) -> list[Guard]:
    """The guards of all loads in a value that depend on an axis."""
    return [g for n in walk(value) if isinstance(n, Load) for g in n.guards if axis in axes_of(g.index)]


def _shares(e: Index, r: Axis, x: Axis) -> bool:
    """Whether neighbouring outputs along x read the same index at different steps of the reduction axis.

    Steps that are multiples of different symbols are those of different axes of the image: of the next image, whose
    length is open, and of the next tap.
    """
    if not {r, x} <= axes_of(e):
        return False
    along, step, extent = coefficient(e, x), coefficient(e, r), r.extent.constant
    if along is None or step is None or extent is None:
        return True
    one, other = (gcd(*(c for _, c in each.terms)) for each in (along, step))
    if along * other not in (step * one, step * -one):
        return False
    both = gcd(one, other)
    return one // both < extent and other // both < MOST_OUTPUTS


def _outputs(width: int, most: int) -> int:
    """Outputs of one body: a whole short row, else the number up to `most` with the smallest remainder."""
    if width <= most:
        return width
    return min(range(min(MOST_OUTPUTS, most), 3, -1), key=lambda u: (-width % u, -u), default=width)


def _blocks(
    goal: Goal, x: Axis, span: tuple[int, int], width: int, outputs: int, most: int, vector: Level,
    unrolled: tuple[Axis, ...], ahead: int,
) -> Iterator[Stmt | None]:  # fmt: skip
    """Blocks of a row in order: the interior as one loop, blocks at the edges with their guards decided per tap."""
    begin = 0
    while begin < width:
        size = min(outputs, width - begin)
        whole = max(0, (span[1] - begin) // outputs) if begin >= span[0] else 0
        block = Axis(f"{x.name}b", Index.of(max(whole, 1)))
        first = (Index.of(block) * size if whole > 1 else ZERO) + begin
        fetched = ahead if whole > 1 else 0
        yield _block(goal, x, first, block, block.extent, size, vector, unrolled, f"b{begin}", 2 * most, fetched)
        begin += size * max(whole, 1)


def range_inside(x: Axis, reduce: Reduce, width: int) -> tuple[int, int] | None:
    """The range of x in which every guard that depends on it holds for all taps."""
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


def unmasked_points(values: Sequence[Scalar], axis: Axis, lanes: int) -> tuple[int, ...] | None:
    """Points at which to split a vector loop so that its longest part has whole vectors without masks, ends included.

    None if no masks are needed, or all of the loop is near an edge.
    """
    width = axis.extent.constant
    reduces = [n for x in values for n in walk(x) if isinstance(n, Reduce)]
    spans = [range_inside(axis, n, width) for n in reduces] if width is not None else []
    known = [span for span in spans if span is not None]
    if width is None or not spans or len(known) < len(spans):
        return None
    first, last = max(a for a, _ in known), min(b for _, b in known)
    first, last = -(-first // lanes) * lanes, (last // lanes * lanes if last < width else width)
    masked = first > 0 or last < width
    return tuple(sorted({0, first, last, width})) if masked and 2 * (last - first) >= max(width, 2 * lanes) else None


def _least(e: Index) -> Index | None:
    """The minimum of an index, which may be negative."""
    shift = next((c for m, c in e.terms if not m), 0)
    low = lower(e - shift)
    return None if low is None else low + shift


def _open_row(
    goal: Goal, x: Axis, reduce: Reduce, most: int, vector: Level, unrolled: tuple[Axis, ...]
) -> tuple[Stmt, ...] | None:
    """A row of symbolic length: outputs at its edges one by one under guards, blocks of outputs in the interior."""
    span, outputs = _open_inside(x, goal.value), min(MOST_OUTPUTS, most)
    if span is None or span[0] > MOST_EDGES * outputs:
        return None
    part = vector.axis.name.partition(".")[2]  # rows of several parts of a vector loop stand side by side
    width, n = x.extent, Axis(f"{x.name}n{part}", x.extent + 1)
    first, inside = Index.of(span[0]), Index.of(n)
    bare = Goal(goal.buffer, goal.offset, _inside_of(goal.value, x))
    made: list[Stmt | None] = [Bind(n, span[1])]
    made.append(_one_by_one(goal, Axis(f"{x.name}a", width), ZERO, least(first, width), vector, x))
    for size in (outputs, FEW):
        block, count = Axis(f"{x.name}b", floor_div(width, Index.of(size)) + 1), floor_div(inside, Index.of(size))
        made.append(
            _block(bare, x, Index.of(block) * size + first, block, count, size, vector, unrolled, f"b{size}", 2 * most)
        )
        first, inside = first + count * size, inside - count * size
    made.append(_one_by_one(goal, Axis(f"{x.name}z", width), least(first, width), width, vector, x))
    done = tuple(s for s in made if s is not None)
    return done if len(done) == len(made) else None


def _one_by_one(goal: Goal, at: Axis, begin: Index, end: Index, vector: Level, x: Axis) -> Stmt:
    """The outputs of a subrange of a row, one by one."""
    return Loop(at, begin, end, "serial", written([goal.substituted({x: Index.of(at)})], [vector], at.name))


def _open_inside(x: Axis, value: Scalar) -> tuple[int, Index] | None:
    """Begin and length of the range of x in which every guard that depends on it holds for all taps."""
    found: list[tuple[int, int, Index]] = []
    for g in _guards_along(value, x):
        rest = substitute(g.index, {x: ZERO})
        bounds = (coefficient(g.index, x), _least(rest), upper(rest))
        stride, low, high = (e.constant if e is not None else None for e in bounds)
        if not stride or stride < 0 or low is None or high is None:
            return None
        found.append((stride, low, g.extent - high))
    first = max((-(low // stride) for stride, low, _ in found if low < 0), default=0)
    count = greatest(ZERO, x.extent - first)
    for stride, _, end in found:
        count = least(count, floor_div(greatest(ZERO, end + (stride - 1) - stride * first), Index.of(stride)))
    return first, count


def _inside_of(x: Scalar, axis: Axis) -> Scalar:
    """A value without the guards that depend on an axis, and comparisons that say the same."""
    held = _guards_along(x, axis)
    said = {"greater_equal": {g.index for g in held}, "less": {g.index - g.extent for g in held}}

    def known(n: Scalar) -> Scalar | None:
        if isinstance(n, Apply) and n.fn in said:
            left, right = n.args
            if isinstance(left, FromIndex) and left.index in said[n.fn] and right == const(0, left.dtype):
                return const(value=True, dtype=BOOL)
            return None
        if not isinstance(n, Load) or not any(axis in axes_of(g.index) for g in n.guards):
            return None
        guards = tuple(g for g in n.guards if axis not in axes_of(g.index))
        return Load(n.source, n.index, n.dtype, guards, n.otherwise if guards else None)

    return rebuild(x, known, lambda i: i)


def _block(
    goal: Goal, x: Axis, at: Index, block: Axis, end: Index, outputs: int, vector: Level, unrolled: tuple[Axis, ...],
    prefix: str, registers: int, ahead: int = 0,
) -> Stmt | None:  # fmt: skip
    """The loop over blocks of outputs, from `at` on, with unrolled taps; None if guards differ among the blocks."""
    goals = [goal.substituted({x: at + u}) for u in range(outputs)]
    goals = [Goal(g.buffer, g.offset, simplify(g.value)) for g in goals]
    reduces = [next(n for n in walk(g.value) if isinstance(n, Reduce)) for g in goals]
    terms = _by_vectors(list(_terms(reduces, vector.axis, unrolled)), vector.axis, registers)
    guards = terms[0][2] if terms else []
    if any(g != guards for _, _, g in terms):
        return None
    writer = Writer([vector], at=[[], []], prefix=prefix)
    looped = tuple(r for r in reduces[0].ranges if r not in unrolled)
    if ahead:
        writer.at[-1] += _next_lines([term for _, term, _ in terms], block, outputs, vector.axis, looped, ahead)
    writer.reduce_together(reduces, looped, [(u, term) for u, term, _ in terms], guards)
    return Loop(block, ZERO, end, "serial", finished(writer, goals))


def _next_lines(
    terms: list[Scalar], block: Axis, outputs: int, vector: Axis, looped: tuple[Axis, ...], lanes: int
) -> list[Stmt]:
    """Prefetches of the lines that the next block is the first to read: each vector fetches its share of all of them.

    None where what a block reads is not a number of whole lines that follow each other in memory.
    """
    made: list[Stmt] = []
    width = vector.extent.constant
    read = [n for term in terms for n in loads(term) if vector in axes_of(n.index[0])]
    for source in dict.fromkeys(n.source for n in read):
        at = max((n.index[0] for n in read if n.source == source), key=_constant)
        step, *along = ((coefficient(at, a) or ZERO).constant for a in (block, *looped))
        if width is None or not step or any(not a or a * outputs >= step for a in along):
            continue
        share = -(-step // width)  # elements for each lane
        begin = substitute(at, dict.fromkeys((vector, *looped), ZERO)) + step // outputs
        made.append(Prefetch(source, begin + Index.of(vector) * share, share * lanes))
    return made


def _terms(reduces: list[Reduce], vector: Axis, unrolled: tuple[Axis, ...]) -> Iterator[Term]:
    """The term of each reduction at each unrolled tap, and the remaining guards; taps in padding are left out."""
    known: dict[Scalar, tuple[Scalar, list[Guard]] | None] = {}  # outputs beside each other have terms in common
    for taps in itertools.product(*(range(r.extent.constant or 0) for r in unrolled)):
        values = {r: Index.of(t) for r, t in zip(unrolled, taps, strict=True)}
        for u, x in enumerate(reduces):
            whole = substitute_axes(x.body[0], values)
            if whole not in known:
                term = simplify(whole)
                idle = _idle(term, x.combine)
                bare, guards = ((), []) if idle else lifted(Reduce(x.combine, x.ranges[:1], (term,), x.dtype), {vector})
                known[whole] = None if idle else (bare[0], guards)
            found = known[whole]
            if found is not None:
                yield u, *found


Term = tuple[int, Scalar, list[Guard]]  # number of the reduction, term, guards


def _by_vectors(terms: list[Term], vector: Axis, registers: int) -> list[Term]:
    """Terms ordered by the vector they read, if each reads one, so that few vectors are live at a time.

    If each reads a weight too, by that of the image, where there are few `registers`: beside sums and weights there is
    one for it, beside sums alone not for all vectors of the image.
    """
    read = [[n for n in loads(term) if vector in axes_of(n.index[0])] for _, term, _ in terms]
    if read and all(len(found) == WITH_WEIGHT for found in read):
        weights, image = sorted(range(WITH_WEIGHT), key=lambda at: len({found[at] for found in read}))
        fewer, more = (len({found[at] for found in read}) for at in (weights, image))
        sums = len({number for number, _, _ in terms})
        if fewer + sums < registers <= min(more + sums, FEW_REGISTERS):
            read = [[found[image]] for found in read]
    if any(len(found) != 1 for found in read):
        return terms
    first = {found[0]: at for at, found in reversed(list(enumerate(read)))}
    order = sorted(range(len(terms)), key=lambda at: (_constant(read[at][0].index[0]), first[read[at][0]]))
    return [terms[at] for at in order]


def _constant(e: Index) -> int:
    return next((c for mono, c in e.terms if not mono), 0)


def _idle(term: Scalar, combine: str) -> bool:
    """Whether a term is the identity of the reduction, as in padding."""
    parts = factors(term) if combine == "sum" else [term]
    nothing = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}.get(combine)
    return any(isinstance(part, Const) and part.value == nothing for part in parts)
