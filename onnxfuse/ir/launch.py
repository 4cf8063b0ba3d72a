"""Kernel IR for SIMT targets: launch configurations, barriers, asynchronous copies, matrix multiply-accumulate.

A phase with a `Launch` runs its body once in each thread of `grid` blocks of `block` threads; `lanes` consecutive
threads are a warp. Loops of the kinds block, warp, thread and lane distribute their iterations cyclically over those:
iteration i of a thread loop is run by thread i % block of every block. Outside of such loops all threads do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from onnxfuse.ir.dtype import DType
from onnxfuse.ir.fragments import WARP, Core, WarpgroupCore
from onnxfuse.ir.index import ZERO, Index
from onnxfuse.ir.scalar import Guard

Scope = Literal["warp", "block", "grid"]
Activation = Literal["", "relu", "gelu"]  # of epilogues; GELU by tanh
MOST_THREADS = 1024  # per block
MOST_SHARED = 227 << 10  # bytes of shared memory per block, with opt-in
MOST_BLOCKS = 2**31 - 1
SWIZZLED = 1024  # bytes: alignment of swizzled buffers
MOST_BOX = 256  # rows that the copy engine copies at once
REPEATED = 8  # rows after which places in swizzled lines are the same again
ALIGNED = 16  # bytes: alignment of shared memory and of buffers in it, and size of the widest access


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch configuration: `grid` blocks of `block` threads, with `shared` bytes of shared memory per block.

    Without blocks, as for tensors without elements, nothing is launched. In a `cooperative` launch all blocks are
    co-resident, so that grid barriers are possible. The compiler limits registers so that `resident` blocks fit on a
    multiprocessor; 0: its own choice. Blocks of a `dependent` launch may begin before the kernel before it has ended:
    each thread waits for that end first (programmatic dependent launch). Before, it asks for the inputs `ahead`, which
    no kernel stores: they are on their way to the second cache meanwhile.
    """

    grid: Index
    block: Index
    shared: Index = ZERO
    cooperative: bool = False
    lanes: int = WARP
    resident: int = 0
    dependent: bool = False
    ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sync:
    """A barrier with memory fence for all threads of a warp, a block or the grid.

    With `units`, matrix units that read shared memory see what these threads have stored there, too.
    """

    scope: Scope
    units: bool = False


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """An asynchronous copy of `count` elements from `source` to `target`, which is in shared memory (cp.async).

    They are visible to the copying thread after a `Wait` for their group.
    """

    target: str
    to: Index
    source: str
    at: Index
    count: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Makes all copies since the last commit a group."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits until at most the `pending` most recent groups of copies are in flight."""

    pending: int


@dataclass(frozen=True, slots=True)
class MatrixLoad:
    """How a loop over lanes loads a fragment: `count` (2 or 4) matrices of 8 x 8 16-bit elements at once (ldmatrix).

    Lane 8 i + r gives element `row` of the shared buffer `source`, with which row r of matrix i begins. Elements 2 i
    and 2 i + 1 of `target`, from `to` on, are the lane's two of matrix i: side by side in row lane / 4, or above each
    other in column lane / 4 where matrices are `transposed`.
    """

    target: str
    to: Index
    source: str
    row: Index  # of the loop's axis
    count: int
    transposed: bool


@dataclass(frozen=True, slots=True)
class WideAccess:
    """Elements of a buffer that a thread loads or stores at once: a vector loop's, from `offset` on.

    A load takes place if all guards hold, which are the same for all elements.
    """

    buffer: str
    offset: Index  # of the loop's axis
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Mma:
    """sums += left @ right by all lanes of a warp; each fragment is in a register buffer, from an offset on."""

    core: Core
    sums: str
    sums_at: Index
    left: str
    left_at: Index
    right: str
    right_at: Index


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """What units of a multiprocessor do beside its threads, and waits for that."""


@dataclass(frozen=True, slots=True)
class WarpgroupMma(Asynchronous):
    """sums += left @ right by groups of four warps, over `depth` steps: begun here, and done at a `WaitProducts`.

    Warp i of a group has rows 16 i to 16 i + 15 of 64, as a fragment in registers. Both sides are in swizzled buffers,
    in lines of 64 elements: element (row, column) is column // 64 * pitch + row * 64 + column % 64 elements behind the
    first one. Columns of the left side are the depth; those of the right side are columns of the product or, if it is
    `deep`, the depth. All warps of a group begin at the same elements.
    """

    core: WarpgroupCore
    depth: int
    sums: str
    sums_at: Index
    left: str
    left_at: Index
    left_pitch: int
    right: str
    right_at: Index
    right_pitch: int
    deep: bool

    def extent(self, *, right: bool) -> tuple[int, int]:
        """Rows and columns of a side in shared memory."""
        if not right:
            return self.core.m, self.depth
        return (self.core.n, self.depth) if self.deep else (self.depth, self.core.n)


@dataclass(frozen=True, slots=True)
class WaitProducts(Asynchronous):
    """Waits until at most the `pending` most recent products of the warp's group are under way."""

    pending: int
    sums: str


@dataclass(frozen=True, slots=True)
class BeginArrivals(Asynchronous):
    """One thread makes `count` arrivals in a buffer of shared memory ready, each of `boxes` boxes at a time."""

    arrivals: str
    count: int
    boxes: int


@dataclass(frozen=True, slots=True)
class CopyBox(Asynchronous):
    """One thread begins to copy `rows` x 64 elements of a matrix to lines of a swizzled buffer, by the copy engine.

    The matrix is at the begin of `source`, `all_rows` x `all_columns` with `pitch` elements from a row to the next. The
    box begins at (row, column) of it, and has zeros for what lies outside. Its end is one of an arrival's.
    """

    target: str
    to: Index
    source: str
    all_rows: Index
    all_columns: int
    pitch: int
    row: Index
    column: Index
    rows: int
    arrivals: str
    arrival: Index


@dataclass(frozen=True, slots=True)
class WaitArrival(Asynchronous):
    """Waits until all boxes of an arrival are there, for the `turn`-th time (from 0 on)."""

    arrivals: str
    arrival: Index
    turn: Index


Beside = WarpgroupMma | WaitProducts | BeginArrivals | CopyBox | WaitArrival
Threaded = Sync | CopyAsync | Commit | Wait | Mma | Beside  # only in phases with a launch


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """A call of cuBLASLt that computes what a phase does: result = activation(left right + bias + residual).

    `left` is rows x depth, `right` depth x columns or, `transposed`, columns x depth. Matrices are row-major, in
    buffers of one type from their first element on. `pitches`: elements from a row to the next of left, right, residual
    and result. The phase is launched instead where the library is not there, or does not take the operands.
    """

    dtype: DType
    rows: Index
    columns: int
    depth: int
    left: str
    right: str
    result: str
    pitches: tuple[int, int, int, int]
    bias: str = ""
    residual: str = ""
    activation: Activation = ""
    transposed: bool = False

    @property
    def operands(self) -> tuple[tuple[str, Index, int, int], ...]:
        """Buffers of matrices with their rows, columns and pitches; a bias is a row."""
        wide, deep = Index.of(self.columns), Index.of(self.depth)
        right = (wide, self.depth) if self.transposed else (deep, self.columns)
        found = [(self.left, self.rows, self.depth, self.pitches[0]), (self.right, *right, self.pitches[1])]
        found += [(self.residual, self.rows, self.columns, self.pitches[2])] if self.residual else []
        found += [(self.bias, Index.of(1), self.columns, self.columns)] if self.bias else []
        return (*found, (self.result, self.rows, self.columns, self.pitches[3]))


@dataclass(frozen=True, slots=True)
class LibraryConvolution:
    """A call of cuDNN that computes what a phase does: result = activation(convolution(image) + bias + residual).

    Buffers of one type hold `batch` images of `size` (height, width) with `channels`, `filters` filters of `window`
    elements and channels / groups channels, and results of size `made`, all channels last and from their first element
    on. `pads` are those on both sides of an axis. Residual and activation are there only with a bias. The phase is
    launched instead where the library is not there, or does not take the operands.
    """

    dtype: DType
    batch: Index
    channels: int
    size: tuple[int, int]
    filters: int
    window: tuple[int, int]
    made: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int]
    dilations: tuple[int, int]
    groups: int
    image: str
    weights: str
    result: str
    bias: str = ""
    residual: str = ""
    activation: Activation = ""

    @property
    def operands(self) -> tuple[tuple[str, Index], ...]:
        """Buffers with their numbers of elements."""
        result = self.batch * prod(self.made) * self.filters
        found = [(self.image, self.batch * prod(self.size) * self.channels)]
        found += [(self.weights, Index.of(self.filters * prod(self.window) * self.channels // self.groups))]
        found += [(self.bias, Index.of(self.filters))] if self.bias else []
        found += [(self.residual, result)] if self.residual else []
        return (*found, (self.result, result))


LibraryCall = LibraryProduct | LibraryConvolution
