"""Semantics of statements that call the CPU's headers: row pointers, packs, tiles, horizontal reductions.

They occur outside of vectorized loops only, so that each place is a task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxfuse.ir.dtype import BF16, DType
from onnxfuse.ir.index import ZERO
from onnxfuse.ir.interpret.elements import Array, KernelFault, Where, computed, converted, pointed, pointer
from onnxfuse.ir.interpret.values import Iterations, both
from onnxfuse.ir.kernel import HorizontalReduce, Pack, RowPointer
from onnxfuse.ir.monoid import MONOIDS
from onnxfuse.ir.products import PAIR, QUAD
from onnxfuse.ir.tile import EVEN_ENTRIES, Channels, Packed, Pointers, Quantized, Tile

ZEROS = 0  # number of the zero buffer, which pointers to padding refer to


def row_pointer(s: RowPointer, p: Iterations, names: list[str]) -> None:
    """Row pointers; buffers are numbered by their positions in `names`, after the zero buffer."""
    begin, end = np.asarray(p.index(s.begin)), np.asarray(p.index(s.end))
    if s.even:
        entries = np.arange(EVEN_ENTRIES)[:, None]
        rows = np.where(entries == EVEN_ENTRIES - 1, end - 1, begin + entries)
        alive = p.alive
    else:
        entries = np.arange(max(int(_most(end - begin, p.alive)), 0))[:, None]
        rows = begin + entries
        alive = both(p.alive, rows < end)
    counts = [int(np.asarray(p.index(a.extent)).max()) for a in s.segments]
    for segment in np.ndindex(*counts):
        here = p.inner((len(rows), *p.shape), alive)
        here.axes[s.row.name] = rows
        here.axes |= {a.name: at for a, at in zip(s.segments, segment, strict=True)}
        where = here.holds(s.load.guards)
        offset = here.index(s.load.index[0], where)
        there = pointer(_number(names, s.load.source), offset)
        if s.load.guards and where is not None:
            padding = pointer(_number(names, s.padding) if s.padding else ZEROS, np.asarray(0))
            there = np.where(where, there, padding)
        number = int(np.ravel_multi_index(segment, counts)) if counts else 0
        at = here.index(s.at) + number * (EVEN_ENTRIES if s.even else s.pitch) + entries
        p.memory[s.table].write(at, there, alive, p.tasks)


def _most(e: Array, alive: Where) -> int:
    """The maximum over active places."""
    e = np.broadcast_to(e, np.broadcast_shapes(e.shape, alive.shape)) if alive is not None else e
    chosen = e if alive is None else e[np.broadcast_to(alive, e.shape)]
    return int(chosen.max()) if chosen.size else 0


def _number(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


def horizontal_reduce(s: HorizontalReduce, p: Iterations, lanes: int) -> None:
    """Horizontal reductions; lanes of the result after the last row are undefined."""
    if s.lanes != lanes:
        raise KernelFault(f"vectors of {lanes} lanes are reduced, expected {s.lanes}")
    rows = np.asarray(p.index(s.rows))
    if _most(rows, p.alive) > lanes:
        raise KernelFault(f"{s.target} has {lanes} lanes, for {_most(rows, p.alive)} rows")
    row, lane = np.arange(lanes)[:, None], np.arange(lanes)[:, None, None]
    at = lane + row * lanes
    there = both(p.alive, at < p.index(s.read))
    got, _ = p.memory[s.source].read(at, there, p.tasks)
    merge = MONOIDS[s.combine].numpy
    assert merge is not None, "only plain monoids go across lanes"
    p.memory[s.target].write(row, merge(got, axis=0), p.alive, p.tasks, row < rows)


def pack(s: Pack, p: Iterations) -> None:
    """Rows packed k-major, with zeros after the last row, and after the last k in a matrix unit's piece."""
    out = p.memory[s.out]
    begin, end, depth = np.asarray(p.index(s.begin)), np.asarray(p.index(s.end)), np.asarray(p.index(s.k.extent))
    count, skip, at = end - begin, p.index(s.skip), p.index(s.at)
    pitch = count if s.pitch == ZERO else p.index(s.pitch)
    wide = count if s.apart else pitch
    row = np.arange(max(_most(np.asarray(wide), p.alive), _most(count, p.alive)))[:, None]
    k = np.arange(_most(depth, p.alive))[:, None, None]
    inside = both(both(p.alive, row < count), k < depth)
    here = p.inner(np.broadcast_shapes(k.shape, row.shape, p.shape), inside)
    here.axes |= {s.row.name: begin + row, s.k.name: k}
    where = here.holds(s.load.guards)
    got, _ = p.memory[s.load.source].read(np.asarray(here.index(s.load.index[0], where)), where, p.tasks)
    value = np.where(True if where is None else where, got, 0)
    wanted = both(both(p.alive, row < np.maximum(wide, count)), k < depth)
    out.write(_packed_at(s, out.dtype, at, row, k, pitch, skip), converted(value, out.dtype), wanted, p.tasks)
    if s.unit is not None:
        piece = s.unit.piece // out.dtype.bytes
        k = np.arange(piece)[:, None, None]
        tail = both(both(p.alive, row < pitch), k >= (depth + skip - 1) % piece + 1)
        last = depth - 1 - (depth + skip - 1) % piece + k
        place = _packed_at(s, out.dtype, at, row, last, pitch, skip)
        out.write(place, np.zeros(1, computed(out.dtype)), tail, p.tasks)


def _packed_at(s: Pack, t: DType, at: Array, row: Array, k: Array, pitch: Array | int, skip: Array) -> Array:
    """The offset of element k of a row in the packed block."""
    piece = s.unit.piece // t.bytes if s.unit is not None else PAIR if t == BF16 else 1
    k = k + skip
    return np.asarray(at + (k // piece * pitch + row) * piece + k % piece)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The k iterations of a tile for each task: segment, number within it, and which are active."""

    segment: Array  # steps x 1 x 1
    k: Array
    length: Array  # of a segment, for each task
    alive: Where

    def flat(self, padded: Array) -> Array:
        """The flat k where segments are padded to a length."""
        return np.asarray(self.segment * padded + self.k)


def _steps(s: Tile, p: Iterations) -> _Steps:
    length = np.asarray(p.index(s.left.length))
    most = _most(length, p.alive)
    number = np.arange(s.left.segments * most)[:, None, None]
    k = number % max(most, 1)
    alive = k < length
    return _Steps(number // max(most, 1), k, length, None if alive.all() else alive)


def tile(s: Tile, p: Iterations, names: list[str]) -> None:
    """The products of rows and a panel's columns."""
    rows = np.asarray(p.index(s.rows))
    height = _most(rows, p.alive)
    if height > s.core.most:
        raise KernelFault(f"a tile of {height} rows, where {s.core.most} are the most")
    steps, row = _steps(s, p), np.arange(height)[:, None]
    there = both(p.alive, row < rows)
    if isinstance(s.left, Channels):
        _channels(s, s.left, p, steps, row, there, names)
        return
    if isinstance(s.left, Packed):
        left = _packed_left(s, p, steps, row, there, rows)
    else:
        left = _pointed_left(s, p, steps, row, there, rows, names)
    if s.right.source is not None:
        _made(s, s.right.source, p, steps, names)
    right, known = _right(s, p, steps)
    column = np.arange(s.core.width)[:, None, None]
    if isinstance(s.left, Quantized):
        left = left - p.scalar(s.left.coding.left_zero).astype(np.int64)
        zeros, there_too = _right_zeros(s, p)
        right, known = right - zeros, both(known, there_too)
        left, right = left.astype(np.float64), right.astype(np.float64)  # sums of fewer than 65536 steps are exact
    if steps.alive is not None:
        left = np.where(steps.alive, left, 0).astype(left.dtype)
    sums = np.moveaxis(np.matmul(np.moveaxis(left, -1, 0).swapaxes(1, 2), np.moveaxis(right, -1, 0)), 0, -1)
    sums = np.moveaxis(sums, 1, 0)  # columns, rows, tasks
    if isinstance(s.left, Quantized):
        sums = sums.astype(np.int64).astype(np.int32)
    elif s.right.columns != ZERO:
        there = both(there, column < p.index(s.right.columns))
    out, at = p.memory[s.out], p.index(s.out_at) + row * s.core.width + column
    more = np.asarray(p.index(s.more)) != 0
    if more.any():
        before, _ = out.read(at, both(there, more), p.tasks)
        sums = np.where(more, sums + before, sums)
    out.write(at, sums, there, p.tasks, known)


def _channels(
    s: Tile, left: Channels, p: Iterations, steps: _Steps, row: Array, there: Where, names: list[str]
) -> None:
    """Sums of windows of one channel for each column."""
    table, entry, column = p.memory[left.buffer], np.arange(left.pointers)[:, None, None], np.arange(s.core.width)
    address, _ = table.read(p.index(left.at) + entry * s.core.most + row, there, p.tasks)
    address = np.broadcast_to(address, (left.pointers, len(row), *p.shape))[:, :, None]
    where = column[:, None] < p.index(s.right.columns)
    alive = np.broadcast_to(True if there is None else there, (len(row), *p.shape))[:, None]
    at = p.index(left.across) + column[:, None]
    values = _behind(
        s, p, address, at, np.broadcast_to(alive & where, (left.pointers, len(row), s.core.width, *p.shape)), names
    )
    values = values.astype(np.int64) - p.scalar(left.coding.left_zero).astype(np.int64)
    right, known = _right(s, p, steps)
    sums = (values * right[:, None]).sum(0).astype(np.int32)  # rows, columns, tasks
    out, to = p.memory[s.out], p.index(s.out_at) + row[:, None] * s.core.width + column[:, None]
    known = both(known, np.broadcast_to(where, (s.core.width, *p.shape))[:, None])
    columns_first = np.moveaxis(sums, 1, 0)
    out.write(np.moveaxis(to, 1, 0), columns_first, there, p.tasks, known)


def _packed_left(s: Tile, p: Iterations, steps: _Steps, row: Array, there: Where, rows: Array) -> Array:
    """k x rows x tasks: elements of a packed block."""
    unit, t = s.core.product.unit, s.core.product.left
    piece = unit.piece // t.bytes if unit is not None else PAIR if t == BF16 else 1
    k, where = steps.flat(steps.length), both(there, steps.alive)
    pitch = s.core.most if unit is not None else rows
    got, _ = p.memory[s.left.buffer].read(
        p.index(s.left.at) + (k // piece * pitch + row) * piece + k % piece, where, p.tasks
    )
    return np.where(True if where is None else where, got, 0)


def _addresses(s: Tile, p: Iterations, row: Array, there: Where, rows: Array) -> Array:
    """segments x rows x tasks: row pointers; inner ones of equidistant rows are extrapolated."""
    table, segment, start = p.memory[s.left.buffer], np.arange(s.left.segments)[:, None, None], p.index(s.left.at)
    if not (isinstance(s.left, Pointers) and s.left.even):
        address, _ = table.read(start + segment * s.core.most + row, there, p.tasks)
        return np.broadcast_to(address, (s.left.segments, len(row), *p.shape))
    between = (row > 1) & (row < rows - 1)
    entry = np.where(row == 0, 0, np.where(row == rows - 1, EVEN_ENTRIES - 1, 1))
    address, _ = table.read(start + segment * EVEN_ENTRIES + entry, there, p.tasks)
    second, _ = table.read(start + segment * EVEN_ENTRIES + 2, both(there, between), p.tasks)
    address = np.where(between, address + (row - 1) * (second - address), address)
    return np.broadcast_to(address, (s.left.segments, len(row), *p.shape))


def _pointed_left(
    s: Tile, p: Iterations, steps: _Steps, row: Array, there: Where, rows: Array, names: list[str]
) -> Array:
    """k x rows x tasks: elements of rows behind pointers."""
    address = _addresses(s, p, row, there, rows)[steps.segment[:, 0, 0]]
    alive = both(there, steps.alive)
    alive = np.broadcast_to(True if alive is None else alive, address.shape)
    got = _behind(s, p, address, steps.k, alive, names)
    return got if not isinstance(s.left, Quantized) else got.astype(np.int64)


def _behind(s: Tile, p: Iterations, address: Array, at: Array, alive: Array, names: list[str]) -> Array:
    """The elements `at` behind pointers."""
    number, offset = pointed(address)
    number, offset = (np.broadcast_to(x, alive.shape) for x in (number, offset + at))
    got = np.zeros(alive.shape, computed(s.core.product.left))
    for each in np.unique(number[alive]):
        if each == ZEROS:
            continue
        if not 0 < each < len(names):
            raise KernelFault(f"a pointer of {s.left.buffer} leads nowhere")
        mine = alive & (number == each)
        values, _ = p.memory[names[each]].read(offset, mine, p.tasks)
        got = np.where(mine, values, got).astype(got.dtype)
    return got


def _made(s: Tile, source: Pointers, p: Iterations, steps: _Steps, names: list[str]) -> None:
    """The panel that a tile makes of the rows behind pointers."""
    k, column = steps.flat(steps.length), np.arange(s.core.width)[:, None]
    where = both(p.alive, steps.alive)
    address, _ = p.memory[source.buffer].read(p.index(source.at) + k, where, p.tasks)
    shape = (len(k), s.core.width, *p.shape)
    alive = np.broadcast_to(True if where is None else where, shape)
    values = _behind(s, p, np.broadcast_to(address, shape), column, alive, names)
    p.memory[s.right.buffer].write(p.index(s.right.at) + k * s.core.width + column, values, alive, p.tasks)


def _right(s: Tile, p: Iterations, steps: _Steps) -> tuple[Array, Where]:
    """k x columns x tasks: elements of a panel, and which columns are defined."""
    step, column = s.core.product.step, np.arange(s.core.width)[:, None]
    k = steps.flat(steps.length if not isinstance(s.left, Quantized) else -(-steps.length // QUAD) * QUAD)
    at = p.index(s.right.at) + (k // step * s.core.width + column) * step + k % step
    where = both(p.alive, steps.alive)
    if not isinstance(s.left, Quantized) and s.right.columns != ZERO:
        where = both(where, column < p.index(s.right.columns))
    got, known = p.memory[s.right.buffer].read(at, where, p.tasks, lenient=True)
    if where is not None:
        got = np.where(where, got, 0).astype(got.dtype)
    got = np.broadcast_to(got, (len(k), s.core.width, *p.shape))
    columns = None if known is None else np.broadcast_to(known.all(0), (s.core.width, *p.shape))[:, None]
    return (got if not isinstance(s.left, Quantized) else got.astype(np.int64)), columns


def _right_zeros(s: Tile, p: Iterations) -> tuple[Array, Where]:
    """Zero points of columns, and which columns are valid."""
    assert isinstance(s.left, Quantized)
    column, zero = np.arange(s.core.width)[:, None], s.left.coding.right_zero
    there = np.broadcast_to(column < p.index(s.right.columns), (s.core.width, *p.shape))
    if isinstance(zero, tuple):
        got, _ = p.memory[zero[0]].read(p.index(zero[1]) + column, both(p.alive, there), p.tasks)
        return np.where(there, got, 0).astype(np.int64), there[:, None]
    return np.broadcast_to(p.scalar(zero).astype(np.int64), (s.core.width, *p.shape)), there[:, None]
