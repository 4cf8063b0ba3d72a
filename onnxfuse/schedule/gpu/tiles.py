"""How a block holds a part of an attention: rows of queries, keys at a time, and which thread has which elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.fragments import TENSOR_CORES, WARP, Core
from onnxfuse.ir.index import Index, divides
from onnxfuse.ir.indexing import product
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.schedule.analysis.attention import Attention
from onnxfuse.target import CORES_SINCE, MOST_DEPTH, Gpu, block_shared

THREADS = 128  # of a block
TEAM = 8  # lanes at a row of scores
KEYS = (64, 32, 16)  # at a time


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """`rows` queries against `keys` at a time. Rows of matrices in shared memory are padded, so that neighbours lie in
    other banks. `team` lanes are at a row of scores.
    """

    team: ClassVar[int] = TEAM
    powers: ClassVar[str] = "scores"  # where powers go

    rows: int
    keys: int
    depth: int
    columns: int

    @property
    def dtype(self) -> DType:
        """The type of queries, keys and values in shared memory."""
        return F32

    @property
    def query_pitch(self) -> int:
        """From one row of queries, or of keys, to the next."""
        return pitch_of(self.depth)

    @property
    def value_pitch(self) -> int:
        """From one row of values to the next."""
        return -(-self.columns // 4) * 4

    @property
    def score_pitch(self) -> int:
        """From one row of scores to the next."""
        return self.keys + 4

    @property
    def power_pitch(self) -> int:
        """From one row of powers to the next."""
        return self.score_pitch

    def shared(self, *, once: bool) -> list[tuple[str, DType, int]]:
        """Buffers in shared memory and their elements; keys, and then values, lie in the same place.

        Where all keys are one tile, sums are never scaled.
        """
        found = [
            ("queries", self.dtype, self.rows * self.query_pitch),
            ("tile_of_keys", self.dtype, self.keys * max(self.query_pitch, self.value_pitch)),
            ("scores", F32, self.rows * self.score_pitch),
            ("total", F32, self.rows),
        ]
        return found if once else [*found, ("highest", F32, self.rows), ("scale", F32, self.rows)]

    def bytes(self, *, once: bool) -> int:
        """Of shared memory."""
        return sum(padded(n * dtype.bytes) for _, dtype, n in self.shared(once=once))


@dataclass(frozen=True, slots=True)
class ThreadTile(AttentionTile):
    """Thread (y, x) of `high` x `wide` has every high-th row from y on, every wide-th key from x on, and every wide-th
    piece of columns.
    """

    high: int
    wide: int

    @property
    def rows_each(self) -> int:
        """Rows of a thread."""
        return self.rows // self.high

    @property
    def keys_each(self) -> int:
        """Keys of a thread."""
        return self.keys // self.wide

    @property
    def depth_step(self) -> int:
        """Elements of the depth that a thread reads at once."""
        return step_of(self.depth)

    @property
    def piece(self) -> int:
        """Columns that a thread reads at once."""
        return step_of(self.columns)

    @property
    def pieces_each(self) -> int:
        """Pieces of columns of a thread."""
        return -(-self.columns // (self.piece * self.wide))


@dataclass(frozen=True, slots=True)
class CoreTile(AttentionTile):
    """Warps of 16 rows each, `wide` of them at the same rows, each at every wide-th eight keys or columns."""

    team: ClassVar[int] = WARP
    powers: ClassVar[str] = "powers"

    wide: int
    core: Core

    @property
    def dtype(self) -> DType:
        """The type of what is multiplied."""
        return self.core.left.dtype

    @property
    def query_pitch(self) -> int:
        """From one row of queries, or of keys, to the next: groups of four lanes read other banks."""
        return self.depth + 8

    @property
    def value_pitch(self) -> int:
        """From one row of values to the next."""
        return self.columns + 8

    @property
    def power_pitch(self) -> int:
        """From one row of powers to the next."""
        return self.keys + 8

    @property
    def keys_each(self) -> int:
        """Eights of keys of a warp."""
        return self.keys // (self.core.n * self.wide)

    @property
    def columns_each(self) -> int:
        """Eights of columns of a warp."""
        return self.columns // (self.core.n * self.wide)

    def shared(self, *, once: bool) -> list[tuple[str, DType, int]]:
        """The same, and powers apart from scores, as their type is another."""
        return [*AttentionTile.shared(self, once=once), ("powers", self.dtype, self.rows * self.power_pitch)]


def padded(size: int) -> int:
    """Bytes up to where the next buffer may begin."""
    return -(-size // ALIGNED) * ALIGNED


def step_of(extent: int) -> int:
    """How many elements side by side a row of an extent consists of."""
    return next(w for w in (4, 2, 1) if extent % w == 0)


def pitch_of(extent: int) -> int:
    """From one row to the next, so that eight rows side by side lie in different banks."""
    step = step_of(extent)
    return extent if extent // step % 2 else extent + step


def sizes_of(a: Attention) -> tuple[Index, Index, Index, int | None, int | None]:
    """Batches, rows and keys of an attention; its depth and columns, where they are known."""
    batch, rows, keys, depth, columns = (
        product([x.extent for x in axes]) for axes in (a.batch, a.rows, a.keys, a.depth, a.columns)
    )
    return batch, rows, keys, depth.constant, columns.constant


def tile_of(a: Attention, target: Gpu) -> AttentionTile | None:
    """The tile of least predicted time; None where an attention is too deep, or of unknown depth."""
    batch, rows, keys, depth, columns = sizes_of(a)
    if not depth or not columns or max(depth, columns) > MOST_DEPTH:
        return None
    core = next((c for c in TENSOR_CORES if c.left.dtype == a.dtype), None)
    most = block_shared(target)
    found: list[AttentionTile] = []
    if core is not None and target.capability >= CORES_SINCE:
        found = [t for t in _core_tiles(depth, columns, core) if t.bytes(once=False) <= most]
    found = found or [t for t in _thread_tiles(depth, columns) if t.bytes(once=False) <= most]
    sizes = batch.constant, rows.constant, keys.constant
    return min(found, key=lambda t: (_tile_cost(t, *sizes, target), -t.rows * t.keys), default=None)


def _thread_tiles(depth: int, columns: int) -> Iterator[ThreadTile]:
    wide = 8 if columns <= 8 * step_of(columns) else 16
    high = THREADS // wide
    for each in (4, 2, 1):
        for n in KEYS:
            if n % wide == 0 and (each * high) % (THREADS // TEAM) == 0:
                yield ThreadTile(each * high, n, depth, columns, high, wide)


def _core_tiles(depth: int, columns: int, core: Core) -> Iterator[CoreTile]:
    warps = THREADS // WARP
    for wide in (1, 2, 4):
        for keys in KEYS:
            fits = depth % core.k == 0 and keys % core.k == 0
            if fits and not any(n % (core.n * wide) for n in (keys, columns)):
                yield CoreTile(core.m * warps // wide, keys, depth, columns, wide, core)


def _tile_cost(t: AttentionTile, batch: int | None, rows: int | None, keys: int | None, target: Gpu) -> float:
    """Roughly what a tile costs: products in vain, reads of shared memory for each, and blocks that wait in line."""
    many = rows is None or keys is None or batch is None
    rows, keys = rows or 4 * t.rows, keys or 4 * t.keys
    row_blocks, key_blocks = -(-rows // t.rows), -(-keys // t.keys)
    blocks = (batch or target.sms) * row_blocks
    blocks = min(target.threads // THREADS, target.shared_bytes // t.bytes(once=key_blocks == 1))
    resident = max(1, blocks) * target.sms
    waves = -(-blocks // resident) if not many else 1
    each = (t.rows_each, t.keys_each) if isinstance(t, ThreadTile) else (2, 2 * t.keys // 8)
    reads = 1 + 1 / each[0] + 1 / each[1]
    work = t.rows * t.keys * (t.depth + t.columns) * reads + t.keys * t.depth * 8
    return waves * key_blocks * work * max(1, min(blocks, resident) / target.sms)


def ragged(extent: Index, tile: int) -> bool:
    """Whether the last tile may not be full."""
    return divides(Index.of(tile), extent) is None
