"""Window reductions (depthwise convolution, pooling) by unroll-and-jam: several outputs of an image row per loop body.

Neighbouring outputs share weights and inputs, so that a few of them are computed in one body with all taps unrolled:
each weight and each input is loaded once. Outputs at the edges have bodies of their own, without the taps in padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from onnxfuse.ir.affine import simplify
from onnxfuse.ir.compose import indices_of, loads, substitute_axes, walk
from onnxfuse.ir.contraction import factors
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div, greatest, least
from onnxfuse.ir.indexing import coefficient, product, substitute
from onnxfuse.ir.kernel import Bind, Loop, Prefetch, Stmt, Store, When
from onnxfuse.ir.scalar import Const, Guard, Load, Reduce, Scalar
from onnxfuse.schedule.nests.edges import (
    FAR,
    Interior,
    guards_along,
    inside,
    interior,
    near_begin,
    near_end,
    range_inside,
)
from onnxfuse.schedule.nests.nest import WIDE, Goal, Level
from onnxfuse.schedule.nests.writer import Writer, finished, lifted, written

FEW_TAPS = 9  # of outputs that share no inputs
MOST_TAPS = 32  # of one line: a longer one is not unrolled
MOST_OUTPUTS = 8  # of one body
WITH_WEIGHT = 2  # vectors that a term reads: of the image, and of the weights
FEW_REGISTERS = 16  # of vectors: for more of them it was not measured
MOST_EDGES = 16  # unrolled bodies of a row at the edges of an image


@dataclass(frozen=True, slots=True)
class _Row:
    """What the blocks of a row have in common."""

    x: Axis  # along the row
    vector: Level
    unrolled: tuple[Axis, ...]  # of the reduction
    outputs: int  # of a block, at most
    registers: int  # of vectors
    ahead: int  # lanes of a prefetch; 0: none


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
    row = _Row(x, vector, unrolled, min(MOST_OUTPUTS, most), 2 * most, ahead)
    if width is None:
        open_ = _open_row(goal, row)
        return (x, open_) if open_ is not None else None
    span = range_inside(x, reduce, width) if width > 1 else None
    if span is None:
        return None
    outputs = _outputs(width, most)
    if span[0] + width - span[1] > MOST_EDGES * outputs:
        return None
    blocks = list(_blocks(goal, row, span, width, outputs))
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
    open_ = x.extent.constant is None and bool(guards_along(reduce, x))
    return reduce.ranges[:-1] if open_ and (taps or FEW_TAPS + 1) <= FEW_TAPS else ()


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


def _blocks(goal: Goal, row: _Row, span: tuple[int, int], width: int, outputs: int) -> Iterator[Stmt | None]:
    """Blocks of a row in order: the interior as one loop, blocks at the edges with their guards decided per tap."""
    begin = 0
    while begin < width:
        size = min(outputs, width - begin)
        whole = max(0, (span[1] - begin) // outputs) if begin >= span[0] else 0
        block = Axis(f"{row.x.name}b", Index.of(max(whole, 1)))
        first = (Index.of(block) * size if whole > 1 else ZERO) + begin
        body = _block(goal, row, first, size, f"b{begin}", block if whole > 1 else None)
        yield Loop(block, ZERO, block.extent, "serial", body) if body is not None else None
        begin += size * max(whole, 1)


def _open_row(goal: Goal, row: _Row, *, ends: bool = True) -> tuple[Stmt, ...] | None:
    """A row of symbolic length; its `ends` have blocks where possible."""
    found = interior(row.x, goal.value)
    if found is None or found.begin > MOST_EDGES * row.outputs:
        return None
    divided = _DividedRow(goal, row, found, ends)
    made = divided.statements()
    return made if made is not None or not (divided.before or divided.after) else _open_row(goal, row, ends=False)


class _DividedRow:
    """A row of symbolic length: its interior in blocks without guards, its `ends` in blocks whose guards are decided.

    The last block of the interior begins where it still fits, and stores what is new. An end has one block of half the
    outputs, if all of them but those of the end are in the interior. One by one, under guards, are computed what short
    rows have between their ends, and an end that is too long for a block, whose length varies with that of the row, or
    whose guards depend on a loop.
    """

    def __init__(self, goal: Goal, row: _Row, found: Interior, ends: bool) -> None:
        begin, behind, self.small = found.begin, found.behind, row.outputs // 2
        self.goal, self.row, self.found, self.width = goal, row, found, row.x.extent
        self.before = ends and 0 < begin <= self.small  # whether a block has this end
        self.after = ends and behind is not None and 0 < behind <= self.small
        inner, fits = self._axis("n"), self._axis("f")
        self.inner, self.fits = Index.of(inner), Index.of(fits)  # outputs of the interior; 1 if ends have their blocks
        needed = max(1, self.before and self.small - begin, self.after and self.small - (behind or 0))
        self.binds = [Bind(inner, found.count), Bind(fits, _at_least(self.inner, needed))]
        self.end = self.inner + begin  # of the interior
        self.first = Index.of(self.small if self.before else begin)  # that it stores, as the next is the end of it
        self.last = self.width - self.small if self.after else self.width if behind == 0 else self.end

    def _axis(self, name: str) -> Axis:
        """A variable of this row: rows of several parts of a vector loop stand side by side."""
        part = self.row.vector.axis.name.partition(".")[2]
        return Axis(f"{self.row.x.name}{name}{part}", self.width + 1)

    def statements(self) -> tuple[Stmt, ...] | None:
        """The statements; None if the guards of a block differ among its outputs."""
        stored, pieces = self._interior()
        stop = self._axis("s")  # of what the interior and the begin have stored
        self.binds.append(Bind(stop, stored, least(greatest(self.end, self.first), self.width)))
        pieces += self._ends(Index.of(stop))
        made = [p for p in pieces if p is not None]
        return (*self.binds, *made, *self._rest(Index.of(stop))) if len(made) == len(pieces) else None

    def _interior(self) -> tuple[Index, list[Stmt | None]]:
        """Where the interior's blocks end, and they: large ones, then, where no end has one, small ones."""
        size = self.small if self.found.behind is None else self.row.outputs  # with strides few inputs are shared
        sizes = (size,) if self.before or self.after or size == self.small else (size, self.small)
        stored, done, pieces = self.first, ZERO, list[Stmt | None]()
        for each in sizes:
            blocks, turn, at = self._axis(f"b{each}"), self._axis(f"m{each}"), self._axis(f"t{each}")
            turns = floor_div(greatest(self.last - self.first, ZERO) + (each - 1), Index.of(each))
            enough = _at_least(self.inner, each)
            self.binds.append(Bind(blocks, (enough - done) * turns))
            begun = Index.of(turn) * each + self.first
            bound = Bind(at, begun, self.end - each)
            pieces.append(self._blocks(inside, turn, Index.of(blocks), Index.of(at), begun, each, bound))
            stored, done = stored + Index.of(blocks) * each, enough
        return stored, pieces

    def _ends(self, stop: Index) -> Iterator[Stmt | None]:
        """The blocks at either end; what the interior has stored up to `stop` is not stored again."""
        begin, end = self.width - self.small, greatest(stop, self.last)
        if self.before:
            yield self._blocks(near_begin, replace(self._axis("l"), extent=ONE), self.fits, ZERO, ZERO, self.small)
        if self.after:
            yield self._blocks(near_end, replace(self._axis("r"), extent=ONE), self.fits, begin, end, self.small)

    def _blocks(
        self, decided: Callable[[Scalar, Axis], Scalar], turn: Axis, turns: Index, at: Index, fresh: Index,
        outputs: int, *binds: Stmt,
    ) -> Stmt | None:  # fmt: skip
        """A block of outputs in each turn, from `at` on, stored from `fresh` on; None if their guards differ."""
        goal = replace(self.goal, value=decided(self.goal.value, self.row.x))
        body = _block(goal, self.row, at, outputs, turn.name)
        if body is None:
            return None
        if at != fresh:
            body = tuple(_from(body, at - fresh, itertools.count()))
        return Loop(turn, ZERO, turns, "serial", (*binds, *body))

    def _rest(self, stop: Index) -> Iterator[Stmt]:
        """What no block has, one by one."""
        until = self.width - (self.fits * self.small if self.after else ZERO)
        spans = [(least(stop * (self.fits if self.before else ONE), until), until)]
        if self.found.begin and not self.before:
            spans.insert(0, (ZERO, least(Index.of(self.found.begin), self.width)))
        for number, (begin, end) in enumerate(spans):
            at = Axis(f"{self.row.x.name}a{number}", self.width)
            body = written([self.goal.substituted({self.row.x: Index.of(at)})], [self.row.vector], at.name)
            yield Loop(at, begin, end, "serial", body)


def _from(body: Sequence[Stmt], at: Index, outputs: Iterator[int]) -> Iterator[Stmt]:
    """Statements that store the outputs of a block one by one, of which only those that are not before 0 are stored."""
    for s in body:
        if isinstance(s, Store):
            yield When((Guard(at + next(outputs), FAR),), (s,))
        else:
            yield replace(s, body=tuple(_from(s.body, at, outputs))) if isinstance(s, Loop) else s


def _at_least(e: Index, number: int) -> Index:
    """1 if e is at least a number, else 0."""
    return least(greatest(e - (number - 1), ZERO), ONE)


def _block(
    goal: Goal, row: _Row, at: Index, outputs: int, prefix: str, block: Axis | None = None
) -> tuple[Stmt, ...] | None:
    """A block of outputs from `at` on, with unrolled taps; None if guards differ among the outputs.

    Lines that the next iteration over `block` is the first to read are prefetched.
    """
    vector = row.vector
    goals = [goal.substituted({row.x: at + u}) for u in range(outputs)]
    goals = [Goal(g.buffer, g.offset, simplify(g.value)) for g in goals]
    reduces = [next(n for n in walk(g.value) if isinstance(n, Reduce)) for g in goals]
    terms = _by_vectors(list(_terms(reduces, vector.axis, row.unrolled)), vector.axis, row.registers)
    guards = terms[0][2] if terms else []
    if any(g != guards for _, _, g in terms):
        return None
    writer = Writer([vector], at=[[], []], prefix=prefix)
    looped = tuple(r for r in reduces[0].ranges if r not in row.unrolled)
    if row.ahead and block is not None:
        read = [term for _, term, _ in terms]
        writer.at[-1] += _next_lines(read, block, outputs, vector.axis, looped, row.ahead)
    writer.reduce_together(reduces, looped, [(u, term) for u, term, _ in terms], guards)
    return finished(writer, goals)


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
