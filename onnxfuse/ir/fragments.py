"""Matrix fragments, distributed over the registers of a group of lanes, and the units that multiply them.

A fragment maps (lane, register) to an element of a matrix. It is an index map, so that an epilogue is an ordinary loop
over lanes and registers. Lanes are those of a GPU's warp or of a vector register, or the rows of an AMX tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.index import Axis, Index, floor_div, modulo
from onnxfuse.ir.indexing import substitute

WARP = 32  # lanes of a GPU's warp
WARPGROUP = 4  # warps that multiply together
LINE = 64  # elements of 16 bits, 128 bytes, side by side in shared memory, as warpgroups read them


@dataclass(frozen=True, slots=True)
class Fragment:
    """A matrix in registers: `row` and `column` of the element in each (lane, register).

    Operands may be replicated over several lanes; accumulators may not.
    """

    dtype: DType
    lanes: int
    registers: int  # elements per lane
    row: Index
    column: Index

    def element(self, lane: Index, register: Index) -> tuple[Index, Index]:
        """Row and column of the element in a register of a lane."""
        values = {lane_of(self.lanes): lane, register_of(self.registers): register}
        return substitute(self.row, values), substitute(self.column, values)


def side_by_side(f: Fragment, count: int, columns: int) -> Fragment:
    """So many fragments of `columns` columns each, one beside the other, as one."""
    lane, register = Index.of(lane_of(f.lanes)), Index.of(register_of(count * f.registers))
    row, column = f.element(lane, modulo(register, Index.of(f.registers)))
    column += floor_div(register, Index.of(f.registers)) * columns
    return Fragment(f.dtype, f.lanes, count * f.registers, row, column)


def lane_of(lanes: int) -> Axis:
    """The axis of lanes in fragment maps."""
    return Axis("lane", Index.of(lanes))


def register_of(registers: int) -> Axis:
    """The axis of registers in fragment maps."""
    return Axis("register", Index.of(registers))


@dataclass(frozen=True, slots=True)
class Core:
    """A matrix multiply-accumulate: sums[m, n] += left[m, k] @ right[k, n], all of them fragments."""

    name: str
    m: int
    n: int
    k: int
    left: Fragment
    right: Fragment
    sums: Fragment

    @property
    def lanes(self) -> int:
        """Lanes that execute it together."""
        return self.sums.lanes

    def __repr__(self) -> str:
        return self.name


def register_tile(rows: int, width: int, step: int, lanes: int, left: DType, right: DType, sums: DType) -> Core:
    """One k step of the CPU's register tile: vectors hold a panel's columns, elements of rows are broadcast.

    `step` consecutive k are interleaved in a lane.
    """
    vectors, lane = width // lanes, Index.of(lane_of(lanes))
    register, panel, made = (Index.of(register_of(n)) for n in (rows * step, vectors * step, rows * vectors))
    step_, across = Index.of(step), Index.of(vectors)
    return Core(
        f"register_tile_{rows}x{width}x{step}",
        rows,
        width,
        step,
        Fragment(left, lanes, rows * step, floor_div(register, step_), modulo(register, step_)),
        Fragment(right, lanes, vectors * step, modulo(panel, step_), floor_div(panel, step_) * lanes + lane),
        Fragment(sums, lanes, rows * vectors, floor_div(made, across), modulo(made, across) * lanes + lane),
    )


def tile_unit(rows: int, columns: int, depth: int, step: int, left: DType, right: DType, sums: DType) -> Core:
    """A matrix unit like AMX: a lane is a row of its tile registers, `step` consecutive k are interleaved."""
    high = depth // step
    register, panel, made = (Index.of(register_of(n)) for n in (depth, columns * step, columns))
    here, deep = Index.of(lane_of(rows)), Index.of(lane_of(high))
    step_ = Index.of(step)
    return Core(
        f"tile_unit_{rows}x{columns}x{depth}",
        rows,
        columns,
        depth,
        Fragment(left, rows, depth, here, register),
        Fragment(right, high, columns * step, deep * step + modulo(panel, step_), floor_div(panel, step_)),
        Fragment(sums, rows, columns, here, made),
    )


def tensor_core(half: DType) -> Core:
    """`mma.sync.aligned.m16n8k16` of 16-bit floats, with the fragment layouts of NVIDIA's PTX ISA manual."""
    lane = Index.of(lane_of(WARP))
    group, within = floor_div(lane, Index.of(4)), modulo(lane, Index.of(4)) * 2
    eight, four = (Index.of(register_of(n)) for n in (8, 4))

    def bit(e: Index, number: int) -> Index:
        return modulo(floor_div(e, Index.of(1 << number)), Index.of(2))

    return Core(
        f"mma_m16n8k16_{half}",
        16,
        8,
        16,
        Fragment(half, WARP, 8, group + bit(eight, 1) * 8, within + bit(eight, 0) + bit(eight, 2) * 8),
        Fragment(half, WARP, 4, within + bit(four, 0) + bit(four, 1) * 8, group),
        Fragment(F32, WARP, 4, group + bit(four, 1) * 8, within + bit(four, 0)),
    )


TENSOR_CORES = (tensor_core(F16), tensor_core(BF16))


@dataclass(frozen=True, slots=True)
class WarpgroupCore:
    """A multiply-accumulate of four warps: 64 x n sums += left @ right, both of which are in shared memory.

    Each warp has 16 rows; `sums` is the fragment of one warp.
    """

    name: str
    n: int
    dtype: DType  # of both sides
    sums: Fragment
    m: int = 64
    k: int = 16

    @property
    def lanes(self) -> int:
        """Lanes that execute it together."""
        return WARPGROUP * WARP

    def __repr__(self) -> str:
        return self.name


def warpgroup_core(half: DType, columns: int) -> WarpgroupCore:
    """`wgmma.mma_async.m64nNk16` of 16-bit floats: a warp's sums are those of `mma.m16n8k16`, side by side."""
    (eight,) = (c for c in TENSOR_CORES if c.left.dtype == half)
    sums = side_by_side(eight.sums, columns // eight.n, eight.n)
    return WarpgroupCore(f"wgmma_m64n{columns}k16_{half}", columns, half, sums)
