"""Products of few rows, bound by the bandwidth with which the matrix is read: each block takes some columns.

Threads beside each other have four columns each, threads behind each other every so-manieth step of the depth; what
they have summed up goes to shared memory, where the parts of each sum are added, and what is made of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxfuse.ir.compose import free_axes, loads, outermost, rebuild, replaced
from onnxfuse.ir.contraction import scaled_contraction
from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.index import ONE, Axis, Index, floor_div, greatest, least, modulo
from onnxfuse.ir.indexing import coefficient, product, substitute, unflatten
from onnxfuse.ir.kernel import Accumulate, Buffer, Let, Phase, ReduceLoop, Stmt, Store, When
from onnxfuse.ir.launch import Launch, Sync
from onnxfuse.ir.scalar import Guard, Scalar, apply, const, variable
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.attention import SUM
from onnxfuse.schedule.analysis.memory import Nest, Place, flat, nest_of
from onnxfuse.schedule.gpu.builders import at, axis, loop, plus, times, wide
from onnxfuse.schedule.gpu.choices import aligned
from onnxfuse.target import MOST_ROWS, Gpu

THREADS = 256  # of a block
SIDE = 4  # columns of a thread
ACROSS = (32, 16, 8, 4)  # threads beside each other


@dataclass(frozen=True, slots=True)
class Skinny:
    """For each row and column: `finish` of the sum over `depth` of left * right; axes are those of `nest`."""

    nest: Nest
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    left: Scalar
    right: Scalar
    finish: Scalar
    across: int  # threads beside each other

    @property
    def reads(self) -> frozenset[str]:
        """Values that it reads."""
        return frozenset(x.source for part in (self.left, self.right, self.finish) for x in loads(part) if x.index)


def skinny_of(d: Definition, outputs: Sequence[str], places: Mapping[str, Place], target: Gpu) -> Skinny | None:
    """A definition as a product of few rows; None where it is none whose matrix is read side by side."""
    reduce = outermost(d.value)
    if reduce is None or reduce.dtype != F32 or scaled_contraction(d.axes, reduce) is None:
        return None
    nest = replace(nest_of(d, places), output=d.name in outputs)
    whole = outermost(nest.value)
    scaled = scaled_contraction(nest.axes, whole) if whole is not None else None
    if whole is None or scaled is None:
        return None
    for c in (scaled[0], scaled[0].swapped):
        rows, columns, depth = (size(axes) for axes in (c.rows, c.columns, c.ranges))
        if (
            c.batch
            or not rows
            or not columns
            or not depth
            or rows > MOST_ROWS
            or not _beside(c.right, c.columns, places)
        ):
            continue
        across = [n for n in ACROSS if columns % (n * SIDE) == 0]
        if not across:
            continue
        chosen = next((n for n in across if columns // (n * SIDE) >= target.sms), across[-1])
        total: Scalar = variable(SUM, F32)
        for fn, by in scaled[1]:
            total = apply(fn, total, by)
        finish = replaced(nest.value, whole, total)
        return Skinny(nest, c.rows, c.columns, c.ranges, c.left, c.right, finish, chosen)
    return None


def size(axes: Sequence[Axis]) -> int | None:
    """Elements that axes run over, where that is known."""
    return product([a.extent for a in axes]).constant


def _beside(right: Scalar, columns: Sequence[Axis], places: Mapping[str, Place]) -> bool:
    """Whether a matrix is read along its columns."""
    found = [n for n in loads(right) if n.source in places and free_axes(n) & {*columns}]
    return bool(found) and all(coefficient(places[n.source].offset(n.index), columns[-1]) == ONE for n in found)


def skinny_phase(s: Skinny, places: Mapping[str, Place], types: Mapping[str, DType], target: Gpu) -> Phase | None:
    """The phase of such a product; None where its matrix is not aligned."""
    rows, columns, depth = (size(axes) or 0 for axes in (s.rows, s.columns, s.depth))
    width, deep = s.across * SIDE, THREADS // s.across
    block = axis("block", columns // width)
    first, elements = Index.of(block) * width, Index.of(deep * rows * width)
    body = (*_sums(s, places, first, depth), Sync("block"), *_finished(s, places, first), Sync("block"))
    buffers = (
        Buffer("parts", F32, elements, "shared", 0),
        Buffer("sums", F32, Index.of(rows * SIDE), "register"),
        Buffer("of_matrix", F32, Index.of(SIDE), "register"),
    )
    grid = greatest(ONE, least(block.extent, Index.of(target.blocks)))
    launch = Launch(grid, Index.of(THREADS), elements * F32.bytes)
    made = Phase((), ONE, buffers, (loop(block, "block", *body),), launch=launch)
    return made if aligned(made, types) else None


def _digits(axes: tuple[Axis, ...], e: Index) -> dict[Axis, Index]:
    return dict(zip(axes, unflatten(e, tuple(a.extent for a in axes)), strict=True))


def _sums(s: Skinny, places: Mapping[str, Place], first: Index, depth: int) -> tuple[Stmt, ...]:
    """What each thread sums up, and where it leaves that."""
    rows, deep = size(s.rows) or 0, THREADS // s.across
    t, m, v = axis("t", THREADS), axis("m", rows), axis("v", SIDE)
    x, y = modulo(Index.of(t), Index.of(s.across)), floor_div(Index.of(t), Index.of(s.across))
    turn = axis("turn", -(-depth // deep))
    k = Index.of(turn) * deep + y
    where = _digits(s.depth, k)
    columns = _digits(s.columns, first + x * SIDE + v)

    def of(part: Scalar, values: Mapping[Axis, Index]) -> Scalar:
        return flat(rebuild(part, lambda n: None, lambda e: substitute(e, values)), places)

    place = Index.of(m) * SIDE + v
    more = Store("sums", place, plus(at("sums", place), times(variable("%left", F32), at("of_matrix", Index.of(v)))))
    step: tuple[Stmt, ...] = (
        wide(v, Store("of_matrix", Index.of(v), of(s.right, where | columns))),
        loop(m, "unroll", Let("%left", of(s.left, where | _digits(s.rows, Index.of(m)))), loop(v, "unroll", more)),
    )
    if depth % deep:
        step = (When((Guard(k, Index.of(depth)),), step),)
    zero = axis("z", rows * SIDE)
    width = s.across * SIDE
    left = Store("parts", (y * rows + m) * width + x * SIDE + v, at("sums", place))
    return (
        loop(zero, "unroll", Store("sums", Index.of(zero), const(0.0))),
        loop(t, "thread", loop(turn, "serial", *step), loop(m, "unroll", wide(v, left))),
    )


def _finished(s: Skinny, places: Mapping[str, Place], first: Index) -> tuple[Stmt, ...]:
    """The parts of each sum added, what is made of it, and where that goes."""
    rows, deep, width = size(s.rows) or 0, THREADS // s.across, s.across * SIDE
    e, part = axis("e", rows * width), axis("part", deep)
    row, column = floor_div(Index.of(e), Index.of(width)), modulo(Index.of(e), Index.of(width))
    digits = _digits(s.rows, row) | _digits(s.columns, first + column)
    total = Accumulate(("%total",), "sum", (at("parts", Index.of(part) * (rows * width) + e),))
    summed = variable("%total", F32)
    made = rebuild(s.finish, lambda n: summed if n == variable(SUM, F32) else None, lambda i: substitute(i, digits))
    place = places[s.nest.name]
    offset = place.offset(tuple(substitute(i, digits) for i in s.nest.dims))
    return (
        loop(
            e, "thread",
            ReduceLoop(("%total",), "sum", F32, (loop(part, "serial", total),)),
            Store(place.buffer, offset, flat(made, places)),
        ),
    )  # fmt: skip
