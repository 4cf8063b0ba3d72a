"""What kernels of threads have besides: launch extents, barriers, asynchronous copies, products by matrix units.

A phase with a `Launch` runs its body once in each thread of `grid` blocks of `block` threads; `lanes` threads side by
side are a warp. Loops of the kinds block, warp, thread and lane divide their iterations among those: number i of a
thread loop is run by thread i % block of every block. Outside of such loops all threads do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onnxfuse.ir.fragments import WARP, Core
from onnxfuse.ir.index import ZERO, Index

Scope = Literal["warp", "block", "grid"]
MOST_THREADS = 1024  # of a block
MOST_SHARED = 227 << 10  # bytes of a block, where the machine is asked for all that it has
MOST_BLOCKS = 2**31 - 1
ALIGNED = 16  # bytes: of the shared memory of a block, of a buffer in it, and of the widest access


@dataclass(frozen=True, slots=True)
class Launch:
    """How many threads run a phase: `grid` blocks of `block` threads, with so many bytes of shared memory each.

    A `cooperative` launch has all of its blocks running at a time, so that they may wait for each other. Registers are
    given out so that `resident` blocks run on a multiprocessor at a time; 0: as the compiler sees fit.
    """

    grid: Index
    block: Index
    shared: Index = ZERO
    cooperative: bool = False
    lanes: int = WARP
    resident: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """All threads of a warp, a block or the grid wait for each other, and see what the others stored before."""

    scope: Scope


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """`count` elements go from `source` to `target`, which is shared memory, while the thread goes on.

    They are there, for the thread that copied them, once a `Wait` for their group is over.
    """

    target: str
    to: Index
    source: str
    at: Index
    count: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The copies since the last one are a group."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Until no more than so many groups of copies, the last ones, are on their way."""

    pending: int


@dataclass(frozen=True, slots=True)
class Mma:
    """sums += left @ right, by all lanes of a warp: fragments, each in a buffer of registers from an offset on."""

    core: Core
    sums: str
    sums_at: Index
    left: str
    left_at: Index
    right: str
    right_at: Index
