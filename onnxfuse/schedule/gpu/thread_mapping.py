"""Distribution of rows over blocks, warps and threads, and of the elements of a row over the threads that share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from onnxfuse.ir.fragments import WARP
from onnxfuse.ir.index import ONE, ZERO, Axis, Index, floor_div, greatest, least
from onnxfuse.ir.indexing import unflatten
from onnxfuse.ir.kernel import Bind, Loop, Stmt, When
from onnxfuse.ir.launch import Launch
from onnxfuse.ir.scalar import Guard
from onnxfuse.schedule.nests.nest import Level

Team = Literal["thread", "warp", "block"]  # who is at a row

BLOCK = 256  # threads of a block in which each thread has rows of its own
SEVERAL = 128  # threads of a block in which each warp, or part of one, has rows of its own
SERIAL = 8  # elements of a row that one thread goes through, and keeps in registers


@dataclass(frozen=True, slots=True)
class ThreadMapping:
    """Who is at a row (`threads` of them), how many rows a block is at, and how many elements lie side by side.

    A part of a warp, a power of two of its lanes, is a warp in its own right. Elements are `kept` in registers, where
    rows are not too long for that: all of them, or those of the first `near` turns of each thread, and those of others
    in shared memory.
    """

    team: Team
    threads: int
    rows: int
    width: int
    kept: bool = True
    near: int = 0

    @property
    def lanes(self) -> int:
        """Threads of a warp."""
        return self.threads if self.team == "warp" else WARP

    @property
    def block(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows


@dataclass(frozen=True, slots=True)
class Columns:
    """The elements of a row as one thread comes by them: loops, the guards of their body, and which element it is.

    In registers, element `register` of `registers` holds it: then all turns are spelled out. From the turn `near` on,
    element `other` of `others` in shared memory does: such turns have loops of their own, the second of `parts`.
    """

    total: Index
    position: Index
    loops: tuple[Level, ...]
    guards: tuple[Guard, ...]
    register: Index | None = None
    registers: int = 0
    near: int = 0
    other: Index | None = None
    others: int = 0

    @property
    def parts(self) -> Iterator[tuple[Level, ...]]:
        """The loops over what is in registers, and those over what is in shared memory, where such is."""
        if not self.others:
            yield self.loops
            return
        team, turns, *last = self.loops
        for begin, end in ((ZERO, Index.of(self.near)), (Index.of(self.near), turns.axis.extent)):
            yield (team, replace(turns, begin=begin, end=end), *last)

    @property
    def turns(self) -> int:
        """How often a thread comes to elements of the row, as far as that is known."""
        return next((level.axis.extent.constant or 1 for level in self.loops if level.kind == "unroll"), 1)

    def digits(self, axes: Sequence[Axis]) -> Mapping[Axis, Index]:
        """The values of axes that run over the elements."""
        found = unflatten(self.position, tuple(a.extent for a in axes))
        return dict(zip(axes, found, strict=True))


def columns(d: ThreadMapping, total: Index) -> Columns:
    """How the threads at a row share so many elements; in registers only where their number is known.

    A single element has no others beside it, however wide the accesses to all else of the row are.
    """
    count = total.constant
    d = replace(d, width=1) if count == 1 else d
    if d.team == "thread":
        c = Axis("c", total)
        kept = d.kept and count is not None and 0 < count <= SERIAL
        return Columns(total, Index.of(c), (Level(c, "unroll" if kept else "serial"),), (), *_registers(c, count, kept))
    kind: Literal["lane", "thread"] = "lane" if d.team == "warp" else "thread"
    if not d.kept or count is None:
        c = Axis("c", floor_div(total, Index.of(d.width)))
        position, last = _wide(Index.of(c), d.width)
        return Columns(total, position, (Level(c, kind), *last), ())
    each = d.threads * d.width
    turns, pieces = -(-count // each), count // d.width
    t, k = Axis("t", Index.of(d.threads)), Axis("k", Index.of(turns))
    piece = Index.of(t) if turns == 1 else Index.of(k) * d.threads + t
    guards = (Guard(piece, Index.of(pieces)),) if turns * d.threads != pieces else ()
    position, last = _wide(piece, d.width)
    loops = (Level(t, kind), Level(k, "unroll"), *last)
    register, _ = _wide(Index.of(k), d.width)
    if not d.near or turns <= d.near:
        return Columns(total, position, loops, guards, register, turns * d.width)
    other, others = position - d.near * each, (turns - d.near) * each
    return Columns(total, position, loops, guards, register, d.near * d.width, d.near, other, others)


def _registers(c: Axis, count: int | None, kept: bool) -> tuple[Index | None, int]:
    return (Index.of(c), count or 0) if kept else (None, 0)


def _wide(piece: Index, width: int) -> tuple[Index, tuple[Level, ...]]:
    """Elements side by side, of which each piece has so many."""
    if width == 1:
        return piece, ()
    v = Axis("v", Index.of(width))
    return piece * width + v, (Level(v, "vector"),)


def over_rows(d: ThreadMapping, rows: Index, most: int) -> tuple[Axis, Launch]:
    """The axis of all rows, which `around` opens, and the launch of `most` blocks or fewer that goes through them.

    Where each row waits for what it loads and reduces, blocks begin as others end, and are as many as rows.
    """
    blocks = floor_div(rows + (d.rows - 1), Index.of(d.rows))
    grid = greatest(ONE, least(blocks, Index.of(most)))
    return Axis("row", rows), Launch(grid, Index.of(d.block), lanes=d.lanes)


def around(d: ThreadMapping, row: Axis, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements about a row, run for all rows by the teams of all blocks."""
    if d.rows == 1:
        return (Loop(row, ZERO, row.extent, "block", body),)
    block = Axis("b", floor_div(row.extent + (d.rows - 1), Index.of(d.rows)))
    team = Axis("r", Index.of(d.rows))
    at = Index.of(block) * d.rows + team
    inside: tuple[Stmt, ...] = (Bind(row, at), *body)
    if _ragged(row.extent, d.rows):
        inside = (When((Guard(at, row.extent),), inside),)
    kind: Literal["warp", "thread"] = "warp" if d.team == "warp" else "thread"
    return (Loop(block, ZERO, block.extent, "block", (Loop(team, ZERO, team.extent, kind, inside),)),)


def _ragged(rows: Index, each: int) -> bool:
    """Whether the last block may have fewer rows than the others."""
    return any(c % each for _, c in rows.terms)


def once(d: ThreadMapping, s: Stmt) -> Stmt:
    """A statement that one thread of those at a row runs."""
    if d.team == "thread":
        return s
    first = Axis("first", ONE)
    return Loop(first, ZERO, ONE, "lane" if d.team == "warp" else "thread", (s,))
