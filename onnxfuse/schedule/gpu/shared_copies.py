"""Parts of matrices copied to shared memory by all threads of a block, in accesses as wide as alignment allows.

What is only copied may come in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnxfuse.ir.compose import guarded, in_guards, loads, substitute_axes
from onnxfuse.ir.dtype import BF16, F16, F32, I32, DType
from onnxfuse.ir.fragments import LINE
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import coefficient, product, unflatten
from onnxfuse.ir.kernel import Let, Loop, Stmt, Store
from onnxfuse.ir.launch import ALIGNED, CopyAsync
from onnxfuse.ir.scalar import Apply, FromIndex, Guard, Load, Scalar, apply, cast, number, variable
from onnxfuse.schedule.analysis.memory import Place, flat

WIDTHS = (8, 4, 2, 1)  # elements of an access
UNDER_WAY = 32  # bytes of an element times accesses of a thread at a time: 16 of 16-bit types, 8 of float32
COPIED = (16, 8, 4)  # bytes of a copy in the background
ROW = Axis("row of the block", Index.of(1 << 10))  # in what is staged, the number of a row in the buffer


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` rows of a matrix in a buffer, of `dtype`, each `pitch` behind the one before, from row `first` on.

    Where it is in `lines` of 64 columns, the first ones of all rows come first, and are `pitch` before the next ones.

    Its rows are those of `row_axes` together, its columns those of `column_axes`: all, or `some` from `left` on. It
    begins at element `at` of the buffer. Behind the last row, and the last column, are zeros; or, where nobody looks at
    what comes of them (`any_rows`, `any_columns`), the last ones again in reverse order; of rows that are not
    `reversed` the very last one, which is less to compute where nothing is copied in the background.
    """

    buffer: str
    rows: int
    pitch: int
    row_axes: tuple[Axis, ...]
    column_axes: tuple[Axis, ...]
    first: Index
    dtype: DType = F32
    some: int = 0
    left: Index = ZERO
    at: Index = ZERO
    any_rows: bool = False
    any_columns: bool = False
    reversed: bool = True
    beyond: bool = False  # whether it may begin behind the last row
    lines: bool = False

    def place(self, row: Index, piece: Index, width: int) -> Index:
        """Where in the buffer the first element of a piece of so many lies."""
        if not self.lines:
            return self.at + row * self.pitch + piece * width
        whole = Index.of(LINE // width)
        return self.at + floor_div(piece, whole) * self.pitch + row * LINE + modulo(piece, whole) * width

    @property
    def all_columns(self) -> int:
        """How many columns the whole matrix has."""
        found = product([a.extent for a in self.column_axes]).constant
        assert found is not None
        return found

    @property
    def columns(self) -> int:
        """How many columns there are in the buffer."""
        return self.some or self.all_columns

    @property
    def all_rows(self) -> Index:
        """How many rows the whole matrix has."""
        return product([a.extent for a in self.row_axes])

    @property
    def few_rows(self) -> bool:
        """Whether there may be fewer rows than in the buffer."""
        return self.beyond or any(c % self.rows for _, c in self.all_rows.terms)

    @property
    def few_columns(self) -> bool:
        """Whether there may be fewer columns than in the buffer."""
        return self.all_columns % self.columns > 0

    def element(self, row: Index, piece: Index, width: int) -> tuple[Index, Index]:
        """The row, and the first column of a piece of so many, of what is put at a row and a piece of the buffer."""
        here = self.first + row
        there = floor_div(self.left, Index.of(width)) + piece
        if self.few_rows and self.any_rows:
            here = _mirrored(here, self.all_rows, self.rows) if self.reversed else least(here, self.all_rows - 1)
        if self.few_columns and self.any_columns:
            there = _mirrored(there, Index.of(self.all_columns // width), self.columns // width)
        return here, there * width

    def digits(self, row: Index, column: Index) -> dict[Axis, Index]:
        """The values of all axes at an element of the buffer."""
        found = dict(zip(self.row_axes, unflatten(row, tuple(a.extent for a in self.row_axes)), strict=True))
        extents = tuple(a.extent for a in self.column_axes)
        return found | dict(zip(self.column_axes, unflatten(column, extents), strict=True))


def _mirrored(e: Index, extent: Index, most: int) -> Index:
    """A number itself up to the end, and those before the end in reverse order behind it, of which there are `most`.

    The last one again and again would be one address, whose asynchronous copies are served one after the other: on an
    H100 products of 196 rows in tiles of 64 took three times as long.
    """
    inside = least(least(e, extent * 2 - 1 - e), extent - 1)
    return inside if (extent.constant or 0) >= most else greatest(ZERO, inside)


def staged(name: str, m: Matrix, x: Scalar, places: Mapping[str, Place], threads: int = 0) -> Stmt:
    """The loop that stores a part of a matrix whose elements are x.

    Where it is told how many `threads` there are, each has several accesses under way.
    """
    across = transposed(m.row_axes, m.column_axes, x, places)
    for width in WIDTHS:
        if m.columns % width or m.all_columns % width or m.pitch % width:
            continue
        loops, inner = _loop(name, m, x, places, width, threads, transposed=across)
        if width == 1 or _aligned(inner, m, width, transposed=across):
            return loops(inner)
    raise AssertionError("schedule: a part of a matrix is stored element by element")


def transposed(rows: tuple[Axis, ...], columns: tuple[Axis, ...], x: Scalar, places: Mapping[str, Place]) -> bool:
    """Whether it is the rows that lie side by side where a matrix is read from."""
    last_row, last_column = (next(iter(reversed(axes)), None) for axes in (rows, columns))
    offsets = [places[n.source].offset(n.index) for n in loads(x) if n.source in places]
    offsets = [e for e in offsets if axes_of(e) & {*rows}]  # others are the same for all rows, and read once
    along = sum(last_row is not None and coefficient(e, last_row) == ONE for e in offsets)
    return along > sum(last_column is not None and coefficient(e, last_column) == ONE for e in offsets)


def _turns(e: Axis, threads: int, most: int) -> tuple[Index, Callable[[Stmt], Stmt]]:
    """The number of an element, and the loops over all of them, some turns of which are spelled out.

    A thread then waits for what it reads in these once.
    """
    count = e.extent.constant or 0
    if not threads or count % threads:
        return Index.of(e), lambda s: Loop(e, ZERO, e.extent, "thread", (s,))
    turns = count // threads
    each = next(n for n in range(most, 0, -1) if turns % n == 0)
    turn, again = Axis(f"{e.name}_turn", Index.of(turns // each)), Axis(f"{e.name}_again", Index.of(each))
    thread = Axis(e.name, Index.of(threads))

    def around(s: Stmt) -> Stmt:
        s = Loop(again, ZERO, again.extent, "unroll", (Loop(thread, ZERO, thread.extent, "thread", (s,)),))
        return Loop(turn, ZERO, turn.extent, "serial", (s,))

    return (Index.of(turn) * each + again) * threads + thread, around


def _loop(
    name: str, m: Matrix, x: Scalar, places: Mapping[str, Place], width: int, threads: int, *, transposed: bool
) -> tuple[Callable[[Stmt], Stmt], Stmt]:
    """Loops around what stores the elements of an access, and that."""
    pieces = m.columns // width
    v = Axis(f"{name}_v", Index.of(width))
    e, around = _turns(Axis(name, Index.of(m.rows * pieces)), threads, UNDER_WAY // m.dtype.bytes)
    across = Index.of(m.rows if transposed else pieces)
    high, low = floor_div(e, across), modulo(e, across)
    row, piece = (low, high) if transposed else (high, low)
    here, there = m.element(row, piece, width)
    zeros = m.few_rows and not m.any_rows
    again = zeros and not _plain(x)  # then the last row is read again: no element of an access has a guard of its own
    read = least(here, m.all_rows - 1) if again else here
    digits = m.digits(read, there + v if width > 1 else there) | {ROW: row}
    value = flat(substitute_axes(_as_stored(x, m.dtype), digits), places)
    guards: tuple[Guard, ...] = ()
    if zeros and not again:
        guards = (Guard(here, m.all_rows),)
    if m.few_columns and not m.any_columns:  # all elements of an access are inside, or none
        guards = (*guards, Guard(there, Index.of(m.all_columns)))
    value = _where(guards, value) if guards else value
    place = m.place(row, piece, width) + (v if width > 1 else ZERO)
    before: tuple[Stmt, ...] = ()
    if again:
        before = (Let(f"%{name}", value),)
        inside = apply("less", FromIndex(here, I32), FromIndex(m.all_rows, I32))
        value = apply("select", inside, variable(f"%{name}", value.dtype), number(0, value.dtype))
    body = (*before, Store(m.buffer, place, cast(value, m.dtype)))
    inner = Loop(v, ZERO, v.extent, "vector" if width > 1 else "unroll", body)
    return around, inner


def _as_stored(x: Scalar, dtype: DType) -> Scalar:
    """A value without the widening of an element that is stored in its own type: its bits are copied."""
    if not isinstance(x, Apply) or x.fn != "cast" or x.dtype != F32:
        return x
    (stored,) = x.args
    return stored if stored.dtype == dtype and dtype in (F16, BF16) else x


def _plain(x: Scalar) -> bool:
    """Whether a value is only read."""
    return isinstance(x, Load) or (isinstance(x, Apply) and x.fn == "cast" and _plain(x.args[0]))


def _where(guards: tuple[Guard, ...], x: Scalar) -> Scalar:
    """x where guards hold, else 0."""
    if isinstance(x, Load) and (x.otherwise is None or x.otherwise == number(0, x.dtype)):
        return Load(x.source, x.index, x.dtype, (*guards, *x.guards), x.otherwise or number(0, x.dtype))
    if isinstance(x, Apply) and x.fn == "cast":
        return cast(_where(guards, x.args[0]), x.dtype)
    return Apply("select", (in_guards(guards), guarded(x, guards), number(0, x.dtype)), x.dtype)


def _aligned(inner: Stmt, m: Matrix, width: int, *, transposed: bool) -> bool:
    """Whether all that is read or stored side by side is aligned, and there is something that is read so.

    Transposed elements are stored so: one by one, those of neighbours would lie in the same banks.
    """
    assert isinstance(inner, Loop)
    found: int | None = 0
    for s in inner.body:
        assert isinstance(s, (Let, Store))
        one = side_by_side(s.value, inner.axis, width)
        found = None if one is None or found is None else found + one
    return width * m.dtype.bytes <= ALIGNED and found is not None and (transposed or found > 0)


def side_by_side(x: Scalar, v: Axis, width: int) -> int | None:
    """How many elements a value reads that lie side by side along v; None where some of these are not aligned."""
    found = 0
    for load in (n for n in loads(x) if n.index):
        e = load.index[0]
        apart = any(v in axes_of(x) for g in load.guards for x in (g.index, g.extent))
        if coefficient(e, v) != ONE or apart:
            continue
        if width * load.dtype.bytes > ALIGNED or any(c % width for _, c in (e - v).terms):
            return None
        found += 1
    return found


def copied(name: str, m: Matrix, x: Scalar, places: Mapping[str, Place], threads: int = 0) -> Stmt | None:
    """The loop that copies a part of a matrix in the background; None where it is more than copied, or not aligned.

    Where it is told how many `threads` there are, their turns are spelled out.
    """
    zeros = (m.few_rows and not m.any_rows) or (m.few_columns and not m.any_columns)
    if zeros or transposed(m.row_axes, m.column_axes, x, places):
        return None
    for width in WIDTHS:
        if m.columns % width or m.pitch % width or m.all_columns % width or width * m.dtype.bytes not in COPIED:
            continue
        pieces = Index.of(m.columns // width)
        e, around = _turns(Axis(name, m.rows * pieces), threads, UNDER_WAY // m.dtype.bytes)
        row, piece = floor_div(e, pieces), modulo(e, pieces)
        here, there = m.element(row, piece, width)
        v = Axis(f"{name}_v", Index.of(width))
        spread, first = (
            flat(substitute_axes(_as_stored(x, m.dtype), m.digits(here, c)), places) for c in (there + v, there)
        )
        if not isinstance(first, Load) or not isinstance(spread, Load) or first.guards or first.dtype != m.dtype:
            return None
        if spread.index[0] == first.index[0] + v and all(c % width == 0 for _, c in first.index[0].terms):
            copy = CopyAsync(m.buffer, m.place(row, piece, width), first.source, first.index[0], width)
            return around(copy)
    return None
