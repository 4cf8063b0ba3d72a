"""Products of blocks on a GPU: the tiles that a kernel can be made of, those that fit, and predicted seconds of each.

As DeepCuts does it (2021): all parameters of a kernel are enumerated for a GPU, those that exceed what a block may have
are left out, and the others are ranked by a bound on what they reach. Without a device the first one is taken.
The bound of a step of the depth is the slowest of three: what multiplies, shared memory, and what comes from the second
cache; what is not hidden behind these is the time that a read takes. Blocks come in waves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from onnxfuse.cost.gpu import PER_BYTE, REACHED, TOGETHER, moving
from onnxfuse.ir.dtype import F32, I64, DType
from onnxfuse.ir.fragments import LINE, TENSOR_CORES, WARP, Core, WarpgroupCore, warpgroup_core
from onnxfuse.ir.launch import ALIGNED
from onnxfuse.target import COPIES_SINCE, CORES_SINCE, Gpu, block_shared

REGISTERS = 1 << 16  # of a multiprocessor
MOST_SUMS = 64  # registers of a thread that hold sums
OTHERS = 48  # registers of a thread besides those of matrices
PIECE = 4  # columns, and steps of the depth, that a thread of its own arithmetic reads at once
STEPS = (16, 32, 64)  # of the depth, that are in shared memory at a time
STAGES = (1, 2, 3)
SPLITS = (1, 2, 4, 8)
FEWEST_STEPS = 4  # of a split
WARPGROUP_STAGES = (1, 2, 3, 4)
WARPGROUP_COLUMNS = (64, 128, 192, 256)  # of an instruction
FEWEST_PENDING = 4  # stages, from which on products of two steps are under way
WARPGROUP_SUMS, WARPGROUP_OTHERS = 128, 76  # registers of a thread
USUAL = 128  # rows or batches that are counted where their number is not known


@dataclass(frozen=True, slots=True)
class Rates:
    """What a kernel reaches that multiplies in one way: shares of the rates of what multiplies, of shared memory and of
    the second cache; and `latency_us` of a read, of a step whatever it does, and of begin and end. `made_us` are
    microseconds of a thread for each of its results.

    Fitted to 360 tiles of 46 products on an H100 (benchmarks/gpu), in which they are right within 15 % (of 68); those
    of boxes to 200 tiles of 20 products with GELU on an H200 (benchmarks/gpu/wgmma), within 16 %, and of warpgroups to
    which threads copy to 121 of a probe's, within 10 %.
    """

    multiplied: float
    shared: float
    l2: float
    read: float
    turn: float
    ends: float
    made_us: float


BY_CORES = Rates(multiplied=0.5, shared=1.0, l2=0.7, read=0.35, turn=0.4, ends=3.0, made_us=0.015)
BY_BOXES = Rates(multiplied=1.0, shared=2.0, l2=2.31, read=0.05, turn=0.02, ends=3.29, made_us=0.029)
BY_WARPGROUPS = Rates(multiplied=0.68, shared=1.0, l2=1.0, read=0.46, turn=1.03, ends=0.2, made_us=0.0135)
BY_THREADS = Rates(multiplied=0.42, shared=0.5, l2=0.6, read=1.4, turn=0.2, ends=4.0, made_us=0.009)
WARPS_AT_ONCE = 4  # of a multiprocessor, that make results of sums at its full rate


@dataclass(frozen=True, slots=True)
class Sizes:
    """A product: `batch` times rows x depth by depth x columns; 0 rows or batches: a number that is not known.

    Elements have `dtype` in shared memory, the right side along the depth where that is `deep`. `normalized`: the left
    side's rows are read twice, as numbers of whole rows are needed first. `boxes`: both sides are matrices that the
    copy engine may bring.
    """

    batch: int
    rows: int
    columns: int
    depth: int
    dtype: DType
    deep: bool = False
    normalized: int = 0  # how many numbers of each row
    boxes: bool = False


@dataclass(frozen=True, slots=True)
class BlockTile:
    """A block has `rows` x `columns` of a product, `depth` steps at a time, in `stages` buffers of shared memory.

    What multiplies, as `core` says warps or groups of four, or else threads, stands `high` above each other and `wide`
    beside each other. The depth is divided among `splits` blocks. `boxed`: the copy engine brings both sides.
    """

    rows: int
    columns: int
    depth: int
    high: int
    wide: int
    stages: int
    splits: int
    dtype: DType
    core: Core | WarpgroupCore | None = None
    boxed: bool = False

    def __str__(self) -> str:
        """What tells it from other tiles of a product."""
        by = "warpgroups" if self.grouped else "warps" if self.core is not None else "threads"
        more = f"{self.stages} stages" + (f", {self.splits} parts of the depth" if self.splits > 1 else "")
        more += ", boxed" if self.boxed else ""
        return f"{self.rows} x {self.columns} x {self.depth} by {self.high} x {self.wide} {by}, {more}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.high * self.wide * (self.core.lanes if self.core is not None else 1)

    @property
    def grouped(self) -> bool:
        """Whether warpgroups multiply, to which pieces of eight elements go."""
        return isinstance(self.core, WarpgroupCore)

    @property
    def pending(self) -> int:
        """Steps whose products are under way while those of another one are begun."""
        return int(self.grouped and self.stages >= FEWEST_PENDING)

    @property
    def sums(self) -> int:
        """Of each thread."""
        return self.rows * self.columns // self.threads

    @property
    def padding(self) -> int:
        """Elements behind each row in shared memory, so that neighbours lie in other banks."""
        return ALIGNED // self.dtype.bytes

    @property
    def left_pitch(self) -> int:
        """Elements from one row of the left side, or from one piece of all rows, to the next."""
        return self.rows * LINE if self.grouped else self.depth + self.padding

    def right_pitch(self, *, deep: bool) -> int:
        """Elements from one row of the right side, or column where it is `deep`, or piece of all, to the next."""
        if self.grouped:
            return (self.columns if deep else self.depth) * LINE
        return (self.depth if deep else self.columns) + self.padding

    @property
    def left(self) -> int:
        """Elements of a stage of the left side."""
        return (self.depth // LINE if self.grouped else self.rows) * self.left_pitch

    def made_pitch(self, *, transposed: bool = False) -> int:
        """From one row of sums to the next, in shared memory; `transposed`: they are read down the columns.

        Half a warp stores pairs of four rows of a fragment at once: rows eight banks apart lie in different ones.
        """
        return self.columns + (PIECE if self.core is None or transposed else 2 * PIECE)

    def right(self, *, deep: bool) -> int:
        """Elements of a stage of the right side."""
        deep = deep and self.core is not None
        along, across = (self.depth, self.columns) if deep else (self.columns, self.depth)
        return (along // LINE if self.grouped else across) * self.right_pitch(deep=deep)

    def bytes(self, s: Sizes) -> int:
        """Of shared memory: both sides, what is made of them, and numbers of rows."""
        sides = self.stages * (self.left + self.right(deep=s.deep)) * self.dtype.bytes
        if self.boxed:  # sums lie where sides were, and arrivals behind
            return max(sides, self.rows * self.made_pitch() * F32.bytes) + self.stages * I64.bytes
        return sides + (self.rows * (self.made_pitch() + s.normalized)) * F32.bytes

    @property
    def registers(self) -> int:
        """Of a thread, about."""
        if self.grouped:
            return self.sums + WARPGROUP_OTHERS
        if self.core is not None:
            return self.sums + self.rows // self.high // 16 * 4 + 2 + OTHERS
        return self.sums + self.rows // self.high * PIECE + self.columns // self.wide + OTHERS


def core_of(operand_type: DType, target: Gpu) -> Core | None:
    """The tensor core that multiplies a type on a GPU, if any."""
    return next((c for c in TENSOR_CORES if c.left.dtype == operand_type and target.capability >= CORES_SINCE), None)


@lru_cache(1024)
def tiles_of(s: Sizes, target: Gpu) -> tuple[BlockTile, ...]:
    """All tiles of a product that fit a GPU, best first."""
    room = block_shared(target)
    stages = STAGES if target.capability >= COPIES_SINCE else STAGES[:1]
    every = (*_tiles(s, core_of(s.dtype, target), stages), *(_warpgroup_tiles(s) if target.warpgroups else ()))
    fits = (t for t in every if _fits(t, s, room))
    return tuple(sorted(fits, key=lambda t: (seconds_of(s, t, target), -t.stages, -t.threads, -t.rows * t.columns)))


def _tiles(s: Sizes, core: Core | None, all_stages: Sequence[int]) -> Iterator[BlockTile]:
    """Every combination of parameters."""
    splits = _splits(s)
    warps = ((1, 4), (2, 2), (4, 1), (2, 4), (4, 2)) if core is not None else ((8, 16), (16, 8), (16, 16))
    heights = [core.m, 2 * core.m] if core is not None else [2, 4, 8]
    widths = [core.n * n for n in (1, 2, 4, 8)] if core is not None else [PIECE, 2 * PIECE]
    for high, wide in warps:
        for rows in (high * h for h in heights):
            for columns in (wide * w for w in widths):
                for step in STEPS:
                    for stages in all_stages:
                        for split in splits:
                            yield BlockTile(rows, columns, step, high, wide, stages, split, s.dtype, core)


def _splits(s: Sizes) -> list[int]:
    """Into how many parts the depth may be divided."""
    return [n for n in SPLITS if n == 1 or (s.depth // n >= FEWEST_STEPS * STEPS[0] and not s.depth % (n * STEPS[0]))]


def _warpgroup_tiles(s: Sizes) -> Iterator[BlockTile]:
    """Those that warpgroups multiply, a line of the depth at a time, if rows are copied in pieces of 16 bytes.

    What is beyond the depth is zero in a box, and could not be copied otherwise.
    """
    if s.dtype not in {c.left.dtype for c in TENSOR_CORES} or s.columns % 8 or s.depth % (8 if s.boxes else LINE):
        return
    for high, wide in ((1, 1), (2, 1), (1, 2), (2, 2)):
        for columns in WARPGROUP_COLUMNS:
            core = warpgroup_core(s.dtype, columns)
            tile = partial(BlockTile, high * core.m, wide * columns, LINE, high, wide)
            for stages in WARPGROUP_STAGES[s.boxes :]:
                for split in _splits(s):
                    yield tile(stages, split, s.dtype, core, s.boxes)


def _fits(t: BlockTile, s: Sizes, shared: int) -> bool:
    """Whether a block may have what a tile takes, and the tile is no larger than needed."""
    steps = -(-s.depth // t.splits // t.depth)
    small = t.stages - 1 <= steps and (t.splits == 1 or s.depth % (t.splits * t.depth) == 0)
    most = WARPGROUP_SUMS if t.grouped else MOST_SUMS
    room = t.bytes(s) <= shared and t.sums <= most and t.registers * t.threads <= REGISTERS
    return room and small and t.sums >= PIECE


def seconds_of(s: Sizes, t: BlockTile, target: Gpu) -> float:
    """Predicted seconds of a product, boundaries included."""
    batch, rows = s.batch or 1, s.rows or USUAL
    blocks = batch * -(-rows // t.rows) * -(-s.columns // t.columns) * t.splits
    resident = min(
        target.threads // t.threads, target.shared_bytes // t.bytes(s), REGISTERS // (t.registers * t.threads)
    )
    here = max(1, min(resident, -(-blocks // target.sms)))
    waves = -(-blocks // (target.sms * here))
    latency = target.latency_us * 1e-6
    rates = _rates(t)
    work, read = _step(s, t, rates, target), rates.read * latency
    waits = work + read if t.stages == 1 else read / (t.stages - 1 - t.pending) + rates.turn * latency
    steps = -(-s.depth // t.splits // t.depth)
    before = 0.0
    if s.normalized:  # rows come once more, and lie near for the second number, which waits at barriers for the first
        row_bytes = t.rows * s.depth * s.dtype.bytes
        before = (1 + s.normalized * TOGETHER) * latency
        before += (row_bytes / _l2(target) + (s.normalized - 1) * row_bytes / _near(target)) * here
    turns = max(1.0, here * t.threads / (WARP * WARPS_AT_ONCE))
    behind = rates.made_us * 1e-6 * t.rows * t.columns / t.threads * turns
    computing = waves * (steps * max(here * work, waits) + rates.ends * latency + before + behind)
    sides = batch * (rows * s.depth + s.depth * s.columns) * s.dtype.bytes
    made = batch * rows * s.columns
    taken = max(computing, moving(sides + made * s.dtype.bytes, target)) + target.boundary_us * 1e-6
    if t.splits > 1:
        taken += moving(2 * t.splits * made * F32.bytes, target) + (target.boundary_us + target.latency_us) * 1e-6
    return taken


def _rates(t: BlockTile) -> Rates:
    """What a kernel of such tiles reaches."""
    if t.grouped:
        return BY_BOXES if t.boxed else BY_WARPGROUPS
    return BY_CORES if t.core is not None else BY_THREADS


def _step(s: Sizes, t: BlockTile, rates: Rates, target: Gpu) -> float:
    """Seconds of a step of one block, of what is slowest of it, if nothing else is on its multiprocessor."""
    peak = target.tensor_gflops if t.core is not None else target.gflops
    rate = peak * rates.multiplied * 1e9 / target.sms
    products = 2 * t.rows * t.columns * t.depth
    loaded = (t.rows + t.columns) * t.depth * t.dtype.bytes
    if t.core is not None:  # each warp, or group, reads its part of both sides; `ldmatrix` halves of what lies across
        read = t.wide * t.rows + t.high * t.columns * (1 if s.deep or t.grouped else 2)
    else:
        read = t.wide * t.rows * PIECE // 8 + t.high * t.columns // 2
    shared = loaded + read * t.depth * t.dtype.bytes
    return max(products / rate, shared / (_near(target) * rates.shared), loaded / (_l2(target) * rates.l2))


def _near(target: Gpu) -> float:
    """Bytes a second of the shared memory, and of the first cache, of one multiprocessor."""
    return target.gflops * 1e9 / PER_BYTE / target.sms


def _l2(target: Gpu) -> float:
    """Bytes a second that come to one multiprocessor."""
    return target.l2_gbps * REACHED * 1e9 / target.sms
