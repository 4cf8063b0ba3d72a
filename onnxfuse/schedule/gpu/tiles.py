"""How a block holds a part of an attention: rows of queries, keys at a time, and which thread has which elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import ClassVar

from onnxfuse.ir.dtype import F32, DType
from onnxfuse.ir.fragments import TENSOR_CORES, WARP, Core
from onnxfuse.ir.index import Index, divides
from onnxfuse.ir.indexing import product
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.ir.scalar import Load, Scalar, uncast
from onnxfuse.schedule.analysis.attention import Attention
from onnxfuse.target import COPIES_SINCE, CORES_SINCE, MOST_DEPTH, Gpu, block_shared

THREADS = 128  # of a block
TEAM = 8  # lanes at a row of scores
SHARERS = 4  # lanes of a warp that have elements of a row in a fragment of sums
OPERATIONS = 256  # of float32 of a multiprocessor in a cycle
ROWS_EACH = 4  # of a team, whose reductions are under way at a time
KEYS = (64, 32, 16)  # at a time
DEEP = 64  # of a head
MOST_ROWS_EACH = 4  # of a thread
MOST_WHOLE = 512  # keys that are one tile
MOST_SUMS = 80  # registers of a thread for scores and sums
STAGES = 2  # of keys and values that are only copied, where no other warp is waited for within a tile

# Roughly, in cycles of a multiprocessor, whose four schedulers each issue one instruction of a warp at a time.
READ, BARRIER, STEP, SHUFFLE = 700.0, 60.0, 35.0, 30.0  # waits: for memory, others, a product, another lane
ALONE = 2.0  # cycles of an instruction of a warp that has a scheduler for itself
COPIED, COMPUTED, SCORED, POWERED, REDUCED = 8, 33, 14, 14, 40  # instructions
# Of tensor cores, fitted to 64 kernels on an H200, right within 13 % with 2 us for begin and end: cycles
# of a multiprocessor for each element of a lane, each lane that shares a row, each access on the way to shared memory
# besides, and a tile; what a tile waits; and the share of the second cache's rate that comes.
ELEMENT, SHARED_ROW, STORED, TILE, TILE_WAITS, L2_SHARE = 27, 17, 6, 116, 290, 0.72


@dataclass(frozen=True, slots=True)
class AttentionTile(ABC):
    """`rows` queries against `keys` at a time. Rows of matrices in shared memory are padded, so that neighbours lie in
    other banks.
    """

    team: ClassVar[int] = TEAM  # lanes of what is a warp
    values: ClassVar[str] = "tile_of_keys"  # where values go

    rows: int
    keys: int
    depth: int
    columns: int

    @property
    def dtype(self) -> DType:
        """The type of queries, keys and values in shared memory."""
        return F32

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor that registers suffice for."""
        return 4

    @property
    def query_pitch(self) -> int:
        """From one row of queries, or of keys, to the next."""
        return pitch_of(self.depth)

    @property
    def value_pitch(self) -> int:
        """From one row of values to the next."""
        return -(-self.columns // 4) * 4

    @abstractmethod
    def shared(self, *, once: bool) -> list[tuple[str, DType, int]]:
        """Buffers in shared memory and their elements. Where all keys are one tile, sums are never scaled."""

    def bytes(self, *, once: bool) -> int:
        """Of shared memory."""
        return sum(padded(n * dtype.bytes) for _, dtype, n in self.shared(once=once))

    def staged(self, rows: int, each: float) -> float:
        """Instructions of a thread for so many rows that go to shared memory, `each` for an access."""
        return rows * (self.depth + self.columns) / 2 * self.dtype.bytes / ALIGNED / THREADS * each

    @property
    @abstractmethod
    def products(self) -> tuple[float, float]:
        """Instructions of a warp for products with a tile of keys, and cycles that these wait."""

    def instructions(self, tiles: int, each: float) -> float:
        """Instructions of a warp for so many tiles of keys."""
        issued, _ = self.products
        return self.staged(self.rows, each) + tiles * (self.staged(2 * self.keys, each) + issued)

    def cycles(self, blocks: int, rounds: int, tiles: int, each: float) -> float:
        """Cycles of a multiprocessor that goes through so many blocks in rounds, with tiles of keys each."""
        issued, waited = self.instructions(tiles, each), self.waits(tiles)
        return max(rounds * (issued * ALONE + waited), blocks * issued)

    def waits(self, tiles: int) -> float:
        """Cycles that a warp waits for memory, other threads, and products; queries come with the first keys."""
        _, waited = self.products
        return tiles * (READ + waited)


@dataclass(frozen=True, slots=True)
class ThreadTile(AttentionTile):
    """Thread (y, x) of `high` x `wide` has every high-th row from y on, every wide-th key from x on, and every wide-th
    piece of columns.
    """

    high: int
    wide: int

    @property
    def score_pitch(self) -> int:
        """From one row of scores to the next."""
        return self.keys + 4

    def shared(self, *, once: bool) -> list[tuple[str, DType, int]]:
        """Keys, and then values, lie in the same place, and so do scores and their powers."""
        found = [
            ("queries", self.dtype, self.rows * self.query_pitch),
            ("tile_of_keys", self.dtype, self.keys * max(self.query_pitch, self.value_pitch)),
            ("scores", F32, self.rows * self.score_pitch),
            ("total", F32, self.rows),
        ]
        return found if once else [*found, ("highest", F32, self.rows), ("scale", F32, self.rows)]

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor that registers suffice for."""
        return 4 if self.rows_each < MOST_ROWS_EACH else 3

    @property
    def rows_each(self) -> int:
        """Rows of a thread."""
        return self.rows // self.high

    @property
    def keys_each(self) -> int:
        """Keys of a thread."""
        return self.keys // self.wide

    @property
    def products(self) -> tuple[float, float]:
        """Instructions of a warp for products with a tile of keys, and cycles that these wait."""
        own = self.rows_each, self.keys_each
        reads = 1 + 1 / own[0] + 1 / own[1]
        made, rows = self.rows * self.keys / THREADS, self.rows * self.team / THREADS
        issued = made * ((self.depth + self.columns) * reads + SCORED + POWERED) + rows * REDUCED
        return issued, READ * 1.5 + 5 * BARRIER + rows / ROWS_EACH * 2 * log2(self.team) * SHUFFLE

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
    """Warps of 16 rows each, `wide` of them at the same rows, each at its part of the keys or columns."""

    team: ClassVar[int] = WARP
    values: ClassVar[str] = "tile_of_values"

    wide: int
    core: Core
    stages: int = 1  # of keys and values: 2 where the next ones come in the background

    @property
    def dtype(self) -> DType:
        """The type of what is multiplied."""
        return self.core.left.dtype

    @property
    def resident(self) -> int:
        """Blocks of a multiprocessor that registers suffice for: compilers load many fragments of deep heads ahead."""
        summed = (self.keys_each + self.columns_each) * self.core.sums.registers
        return 4 if max(self.depth, self.columns) <= DEEP and summed <= MOST_SUMS else 3

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
    def products(self) -> tuple[float, float]:
        """Instructions of a warp for products with a tile of keys, and cycles that these wait."""
        depth, keys = self.depth // self.core.k, self.keys // self.core.k
        multiplied = depth * self.keys_each + keys * self.columns_each
        return multiplied + ELEMENT * 4 * self.keys_each + SHARED_ROW * SHARERS * self.wide + TILE, TILE_WAITS

    def cycles(self, blocks: int, rounds: int, tiles: int, each: float) -> float:
        """Cycles of a multiprocessor: warps beside each other hide what one of them waits for."""
        issued, waited = self.products
        return tiles * max(blocks * (self.staged(2 * self.keys, each + STORED) + issued), rounds * waited)

    @property
    def in_background(self) -> bool:
        """Whether all keys and values but the first come while others are multiplied."""
        return self.stages > 1

    @property
    def keys_each(self) -> int:
        """Eights of keys of a warp."""
        return self.keys // (self.core.n * self.wide)

    @property
    def columns_each(self) -> int:
        """Eights of columns of a warp."""
        return self.columns // (self.core.n * self.wide)

    @property
    def sharer_pitch(self) -> int:
        """From what lanes and warps tell each other about a row to that about the next."""
        return SHARERS * (self.wide + 1) if self.wide > 1 else SHARERS

    def shared(self, *, once: bool) -> list[tuple[str, DType, int]]:
        """Keys and values, so that both are under way at a time; powers are there where warps share rows."""
        powers = [("powers", self.dtype, self.rows * self.power_pitch)] if self.wide > 1 else []
        return [
            ("queries", self.dtype, self.rows * self.query_pitch),
            ("tile_of_keys", self.dtype, self.stages * self.keys * self.query_pitch),
            (self.values, self.dtype, self.stages * self.keys * self.value_pitch),
            *powers,
            ("all_highs", F32, self.rows * self.sharer_pitch),
            ("all_totals", F32, self.rows * self.sharer_pitch),
        ]


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
        read = {*map(_read, (a.key, a.value))} == {True} and target.capability >= COPIES_SINCE
        tiles = _core_tiles(depth, columns, keys.constant, core, STAGES if read else 1)
        found = [t for t in tiles if t.bytes(once=False) <= most]
    found = found or [t for t in _thread_tiles(depth, columns) if t.bytes(once=False) <= most]
    sizes = batch.constant, rows.constant, keys.constant
    computed = sum(not isinstance(x, Load) for x in (a.key, a.value)) / 2
    each = COPIED + computed * (COMPUTED - COPIED)
    return min(found, key=lambda t: (tile_cost(t, *sizes, each, target), -t.rows * t.keys), default=None)


def _thread_tiles(depth: int, columns: int) -> Iterator[ThreadTile]:
    wide = 8 if columns <= 8 * step_of(columns) else 16
    high = THREADS // wide
    for each in (MOST_ROWS_EACH, 2, 1):
        for n in KEYS:
            if n % wide == 0 and (each * high) % (THREADS // TEAM) == 0:
                yield ThreadTile(each * high, n, depth, columns, high, wide)


def _read(x: Scalar) -> bool:
    """Whether a value is an element, in its own type or widened."""
    return isinstance(uncast(x), Load)


def _core_tiles(depth: int, columns: int, keys: int | None, core: Core, stages: int) -> Iterator[CoreTile]:
    """Tiles of some keys, or of all where these are not many, so that nothing is scaled."""
    warps = THREADS // WARP
    if depth % core.k or columns % core.n:
        return
    for wide in (1, 2, 4):
        whole = padded_to(keys or 0, core.n * max(wide, 2))
        for n in (*KEYS, *([whole] if KEYS[0] < whole <= MOST_WHOLE else [])):
            each = n // (core.n * wide) + columns // (core.n * wide)
            if n % core.k or n % (core.n * wide) or columns % (core.n * wide):
                continue
            if n in KEYS or each * core.sums.registers <= MOST_SUMS:
                count = stages if wide == 1 and n < (keys or n + 1) else 1
                yield CoreTile(core.m * warps // wide, n, depth, columns, wide, core, count)


def padded_to(count: int, multiple: int) -> int:
    """A count up to the next multiple."""
    return -(-count // multiple) * multiple


def tile_cost(
    t: AttentionTile, batch: int | None, rows: int | None, keys: int | None, each: float, target: Gpu
) -> float:
    """Roughly how many cycles a tile takes: blocks of a multiprocessor run side by side as far as they fit.

    Each waits for memory and barriers, has instructions to issue, which those beside wait for, and reads all keys and
    values.
    """
    rows, keys = rows or 4 * t.rows, keys or 4 * t.keys
    row_blocks, key_blocks = -(-rows // t.rows), -(-keys // t.keys)
    blocks = -(-(batch or target.sms) * row_blocks // target.sms)  # of a multiprocessor
    fit = max(1, min(t.resident, target.shared_bytes // t.bytes(once=key_blocks == 1)))
    read = (batch or target.sms) * row_blocks * keys * (t.depth + t.columns) * t.dtype.bytes
    reading = read / (target.l2_gbps * L2_SHARE) * target.gflops / (target.sms * OPERATIONS)
    return max(t.cycles(blocks, -(-blocks // fit), key_blocks, each), reading)


def ragged(extent: Index, tile: int) -> bool:
    """Whether the last tile may not be full."""
    return divides(Index.of(tile), extent) is None
