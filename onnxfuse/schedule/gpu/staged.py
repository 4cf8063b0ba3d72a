"""Parts of matrices brought to shared memory by all threads of a block, in accesses as wide as they lie there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.ir.compose import guarded, in_guards, loads, substitute_axes
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, axes_of, floor_div, modulo
from onnxfuse.ir.indexing import coefficient, product, unflatten
from onnxfuse.ir.kernel import Loop, Stmt, Store
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.ir.scalar import Apply, Guard, Load, Scalar, cast, number
from onnxfuse.schedule.analysis.memory import Place, flat

WIDTHS = (8, 4, 2, 1)  # elements of an access


@dataclass(frozen=True, slots=True)
class Matrix:
    """`rows` rows of a matrix in a buffer, of `dtype`, each `pitch` behind the one before, from row `first` on.

    Its rows are those of `row_axes` together, its columns those of `column_axes`. Behind the last row are zeros.
    """

    buffer: str
    rows: int
    pitch: int
    row_axes: tuple[Axis, ...]
    column_axes: tuple[Axis, ...]
    first: Index
    dtype: DType = F32

    @property
    def columns(self) -> int:
        """How many columns it has."""
        found = product([a.extent for a in self.column_axes]).constant
        assert found is not None
        return found


def staged(name: str, m: Matrix, x: Scalar, places: Mapping[str, Place], threads: int) -> Stmt:
    """The loop that stores a part of a matrix whose elements are x."""
    turned = _turned(m, x, places)
    for width in WIDTHS:
        if m.columns % width or m.pitch % width or (turned and width > 1):
            continue
        made = _loop(name, m, x, places, width, turned=turned)
        if width == 1 or _aligned(made, m, width):
            return made
    raise AssertionError("schedule: a part of a matrix is stored element by element")


def _turned(m: Matrix, x: Scalar, places: Mapping[str, Place]) -> bool:
    """Whether it is the rows that lie side by side where a matrix is read from."""
    last_row, last_column = (next(iter(reversed(axes)), None) for axes in (m.row_axes, m.column_axes))
    offsets = [places[n.source].offset(n.index) for n in loads(x) if n.source in places]
    rows = sum(last_row is not None and coefficient(e, last_row) == ONE for e in offsets)
    return rows > sum(last_column is not None and coefficient(e, last_column) == ONE for e in offsets)


def _loop(name: str, m: Matrix, x: Scalar, places: Mapping[str, Place], width: int, *, turned: bool) -> Loop:
    pieces = m.columns // width
    e, v = Axis(name, Index.of(m.rows * pieces)), Axis(f"{name}_v", Index.of(width))
    across = Index.of(m.rows if turned else pieces)
    high, low = floor_div(Index.of(e), across), modulo(Index.of(e), across)
    row, piece = (low, high) if turned else (high, low)
    column = piece * width + v if width > 1 else piece
    here = m.first + row
    digits = dict(zip(m.row_axes, unflatten(here, tuple(a.extent for a in m.row_axes)), strict=True))
    digits |= dict(zip(m.column_axes, unflatten(column, tuple(a.extent for a in m.column_axes)), strict=True))
    value = flat(substitute_axes(x, digits), places)
    extent = product([a.extent for a in m.row_axes])
    if any(c % m.rows for _, c in extent.terms):
        value = _where((Guard(here, extent),), value)
    store = Store(m.buffer, row * m.pitch + column, cast(value, m.dtype))
    inner: Stmt = Loop(v, ZERO, v.extent, "vector", (store,)) if width > 1 else store
    return Loop(e, ZERO, e.extent, "thread", (inner,))


def _where(guards: tuple[Guard, ...], x: Scalar) -> Scalar:
    """x where guards hold, else 0."""
    if isinstance(x, Load) and (x.otherwise is None or x.otherwise == number(0, x.dtype)):
        return Load(x.source, x.index, x.dtype, (*guards, *x.guards), x.otherwise or number(0, x.dtype))
    if isinstance(x, Apply) and x.fn == "cast":
        return cast(_where(guards, x.args[0]), x.dtype)
    return Apply("select", (in_guards(guards), guarded(x, guards), number(0, x.dtype)), x.dtype)


def _aligned(made: Loop, m: Matrix, width: int) -> bool:
    """Whether all that is read or stored side by side is aligned, and there is something that is read so."""
    (inner,) = made.body
    assert isinstance(inner, Loop)
    (store,) = inner.body
    assert isinstance(store, Store)
    v, found = inner.axis, 0
    if width * m.dtype.bytes > ALIGNED:
        return False
    for load in (n for n in loads(store.value) if n.index):
        e = load.index[0]
        apart = any(v in axes_of(x) for g in load.guards for x in (g.index, g.extent))
        if coefficient(e, v) != ONE or apart:
            continue
        if width * load.dtype.bytes > ALIGNED or any(c % width for _, c in (e - v).terms):
            return False
        found += 1
    return found > 0
