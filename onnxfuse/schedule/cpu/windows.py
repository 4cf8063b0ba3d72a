"""Window reductions (depthwise convolution, pooling): several outputs of an image row at once, edges apart.

Neighbouring outputs share weights and inputs, so that a few of them are computed in one body with all taps spelled out:
each weight and each input is loaded once. Taps in the padding are known, and left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import gcd

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, rebuild, substitute_axes, walk
from onnxfuse.ir.contraction import factors
from onnxfuse.ir.index import ZERO, Axis, Index, axes_of, floor_div, greatest, least, lower, upper
from onnxfuse.ir.indexing import coefficient, product, substitute
from onnxfuse.ir.kernel import Bind, Loop, Stmt
from onnxfuse.ir.scalar import Const, Guard, Load, Reduce, Scalar
from onnxfuse.schedule.nests.nest import WIDE, Goal, Level
from onnxfuse.schedule.nests.writer import Writer, finished, lifted, written

MOST_TAPS = 32  # of one line: a longer one is not unrolled
MOST_OUTPUTS, FEW = 8, 2  # of one body; of those of what is left over in rows whose length is a symbol
MOST_EDGES = 16  # bodies of a row at the edges of an image, which are spelled out


def jammed(goal: Goal, rows: list[Level], vector: Level, most: int) -> tuple[Axis, tuple[Stmt, ...]] | None:
    """Loops over the last row axis and the vector axis, at most `most` outputs jammed; None where that does not fit.

    The result is the axis that the loops take off `rows`, and the statements for one iteration of the others.
    """
    found = [n for n in walk(goal.value) if isinstance(n, Reduce)]
    if len(found) != 1 or not rows or goal.also or found[0].combine not in WIDE:
        return None
    reduce = found[0]
    x = rows[-1].axis
    width = x.extent.constant
    spelled = _spelled(reduce, x)
    moves = any(coefficient(e, x) not in (None, ZERO) for b in reduce.body for e in indices_of(b))
    if not spelled or not moves or vector.axis in reduce.ranges:
        return None
    if width is None:
        row = _open_row(goal, x, reduce, min(MOST_OUTPUTS, most), vector, spelled)
        return (x, row) if row is not None else None
    span = _inside(x, reduce, width) if width > 1 else None
    if span is None:
        return None
    outputs = _outputs(width, most)
    if span[0] + width - span[1] > MOST_EDGES * outputs:
        return None
    blocks = list(_blocks(goal, x, span, width, outputs, vector, spelled))
    made = tuple(b for b in blocks if b is not None)
    return (x, made) if len(made) == len(blocks) else None


def _spelled(reduce: Reduce, x: Axis) -> tuple[Axis, ...]:
    """The ranges whose taps are spelled out: all but the first that neighbouring outputs share no inputs along.

    Where there are too many taps, less the longest; none where they share no inputs at all.
    """
    indices = [e for b in reduce.body for e in indices_of(b)]
    shared = {r for r in reduce.ranges for e in indices if _shares(e, r, x)}
    if not shared:
        return ()
    looped = next((r for r in reduce.ranges if r not in shared), reduce.ranges[0])
    made = tuple(r for r in reduce.ranges if r != looped)
    while made and (product([r.extent for r in made]).constant or MOST_TAPS + 1) > MOST_TAPS:
        longest = max(made, key=lambda r: r.extent.constant or MOST_TAPS + 1)
        made = tuple(r for r in made if r != longest)
    return made


def _shares(e: Index, r: Axis, x: Axis) -> bool:
    """Whether outputs that are near to each other along x meet at an index, each at another step of the range."""
    if not {r, x} <= axes_of(e):
        return False
    along, step, extent = coefficient(e, x), coefficient(e, r), r.extent.constant
    if along is None or step is None or extent is None or along.terms[0][0] != step.terms[0][0]:
        return True
    one, other = along.terms[0][1], step.terms[0][1]
    both = gcd(one, other)
    return abs(one) // both < extent and abs(other) // both < MOST_OUTPUTS


def _outputs(width: int, most: int) -> int:
    """Outputs of one body: the whole row when it is short, else the size of at most 8 that leaves the least over."""
    if width <= most:
        return width
    return min(range(min(MOST_OUTPUTS, most), 3, -1), key=lambda u: (-width % u, -u), default=width)


def _blocks(
    goal: Goal, x: Axis, span: tuple[int, int], width: int, outputs: int, vector: Level, spelled: tuple[Axis, ...]
) -> Iterator[Stmt | None]:
    """Blocks of a row in order: those inside the image as one loop, those at its edges with guards spelled out."""
    begin = 0
    while begin < width:
        size = min(outputs, width - begin)
        inside = max(0, (span[1] - begin) // outputs) if begin >= span[0] else 0
        block = Axis(f"{x.name}b", Index.of(max(inside, 1)))
        first = (Index.of(block) * size if inside > 1 else ZERO) + begin
        yield _block(goal, x, first, block, block.extent, size, vector, spelled, f"b{begin}")
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


def _open_row(
    goal: Goal, x: Axis, reduce: Reduce, outputs: int, vector: Level, spelled: tuple[Axis, ...]
) -> tuple[Stmt, ...] | None:
    """A row whose length is a symbol: outputs at its edges one by one under guards, blocks of those inside."""
    span = _open_inside(x, reduce)
    if span is None or span[0] > MOST_EDGES * outputs:
        return None
    part = vector.axis.name.partition(".")[2]  # rows of several parts of a vector loop stand side by side
    width, n = x.extent, Axis(f"{x.name}n{part}", x.extent + 1)
    first, inside = Index.of(span[0]), Index.of(n)
    bare = Goal(goal.buffer, goal.offset, _inside_of(goal.value, x))
    made: list[Stmt | None] = [Bind(n, span[1])]
    made.append(_singly(goal, Axis(f"{x.name}a", width), ZERO, least(first, width), vector, x))
    for size in (outputs, FEW):
        block, count = Axis(f"{x.name}b", floor_div(width, Index.of(size)) + 1), floor_div(inside, Index.of(size))
        made.append(_block(bare, x, Index.of(block) * size + first, block, count, size, vector, spelled, f"b{size}"))
        first, inside = first + count * size, inside - count * size
    made.append(_singly(goal, Axis(f"{x.name}z", width), least(first, width), width, vector, x))
    done = tuple(s for s in made if s is not None)
    return done if len(done) == len(made) else None


def _singly(goal: Goal, at: Axis, begin: Index, end: Index, vector: Level, x: Axis) -> Stmt:
    """Some outputs of a row, one by one."""
    return Loop(at, begin, end, "serial", written([goal.substituted({x: Index.of(at)})], [vector], at.name))


def _open_inside(x: Axis, reduce: Reduce) -> tuple[int, Index] | None:
    """The first place of x at which every guard that mentions it holds for all taps, and the number of such places."""
    found: list[tuple[int, int, Index]] = []
    for g in (g for b in reduce.body for n in walk(b) if isinstance(n, Load) for g in n.guards):
        if x in axes_of(g.index):
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
    """A value where every guard that mentions an axis holds."""

    def known(n: Scalar) -> Scalar | None:
        if not isinstance(n, Load) or not any(axis in axes_of(g.index) for g in n.guards):
            return None
        guards = tuple(g for g in n.guards if axis not in axes_of(g.index))
        return Load(n.source, n.index, n.dtype, guards, n.otherwise if guards else None)

    return rebuild(x, known, lambda i: i)


def _block(
    goal: Goal, x: Axis, at: Index, block: Axis, end: Index, outputs: int, vector: Level, spelled: tuple[Axis, ...],
    prefix: str,
) -> Stmt | None:  # fmt: skip
    """The loop over blocks of outputs, the first of them `at`, with spelled taps; None where their guards differ."""
    goals = [goal.substituted({x: at + u}) for u in range(outputs)]
    goals = [Goal(g.buffer, g.offset, simplify(g.value)) for g in goals]
    reduces = [next(n for n in walk(g.value) if isinstance(n, Reduce)) for g in goals]
    terms = _by_vectors(list(_terms(reduces, vector.axis, spelled)), vector.axis)
    guards = terms[0][2] if terms else []
    if any(g != guards for _, _, g in terms):
        return None
    writer = Writer([vector], at=[[], []], prefix=prefix)
    looped = tuple(r for r in reduces[0].ranges if r not in spelled)
    writer.fold_together(reduces, looped, [(u, term) for u, term, _ in terms], guards)
    return Loop(block, ZERO, end, "serial", finished(writer, goals))


def _terms(reduces: list[Reduce], vector: Axis, spelled: tuple[Axis, ...]) -> Iterator[Term]:
    """What each reduction adds at each tap that is spelled out, and the guards left over; idle taps are left out."""
    for taps in itertools.product(*(range(r.extent.constant or 0) for r in spelled)):
        values = {r: Index.of(t) for r, t in zip(spelled, taps, strict=True)}
        for u, x in enumerate(reduces):
            term = simplify(substitute_axes(x.body[0], values))
            if not _idle(term, x.combine):
                bare, guards = lifted(Reduce(x.combine, x.ranges[:1], (term,), x.dtype), {vector})
                yield u, bare[0], guards


Term = tuple[int, Scalar, list[Guard]]  # the number of the reduction, what it adds, and where


def _by_vectors(terms: list[Term], vector: Axis) -> list[Term]:
    """Terms ordered by the one vector that each reads, if that is so: a vector is done with before the next is read."""
    read = [[n for n in loads(term) if vector in axes_of(n.index[0])] for _, term, _ in terms]
    if any(len(found) != 1 for found in read):
        return terms
    first = {found[0]: at for at, found in reversed(list(enumerate(read)))}
    order = sorted(range(len(terms)), key=lambda at: (_constant(read[at][0].index[0]), first[read[at][0]]))
    return [terms[at] for at in order]


def _constant(e: Index) -> int:
    return next((c for mono, c in e.terms if not mono), 0)


def _idle(term: Scalar, combine: str) -> bool:
    """Whether a term adds nothing, as that of a tap in the padding."""
    parts = factors(term) if combine == "sum" else [term]
    nothing = {"sum": 0.0, "max": float("-inf"), "min": float("inf")}.get(combine)
    return any(isinstance(part, Const) and part.value == nothing for part in parts)
