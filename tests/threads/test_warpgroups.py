"""Products by warpgroups (wgmma): what the PTX manual says of registers and shared memory, tiles, faults, and code."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.cost.gpu_products import BlockTile, Sizes, tiles_of
from onnxfuse.ir.dtype import BF16, F16, F32, DType
from onnxfuse.ir.fragments import warpgroup_core
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.interpret import KernelFault, interpret
from onnxfuse.ir.interpret.warps import elements
from onnxfuse.ir.kernel import Buffer, Kernel, all_statements
from onnxfuse.ir.launch import CopyAsync, Launch, Sync, Wait, WaitProducts, WarpgroupMma
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.target import GPUS, PORTABLE
from tests.kernels.compiled import Case, fed
from tests.kernels.pool_host import compiler
from tests.kernels.test_planted_faults import Change, in_phases, only_first
from tests.rules.build import Build
from tests.threads import emulator
from tests.threads.product_cases import TILED, product
from tests.threads.test_product_tiles import assert_right, multiplied, with_tile
from tests.threads.test_thread_faults import dropped

HOPPER = GPUS["sm_90a"]
BY_NAME = {c.name: c for c in TILED}
needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


# What the manual says -------------------------------------------------------------------------------------------------

# By the PTX manual (wgmma, accumulator D of m64nNk16), what lane 5 of a warp holds of the warp's 16 rows, and lane 31.
HELD = {
    5: [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11), (1, 18), (1, 19)],
    31: [(7, 6), (7, 7), (15, 6), (15, 7), (7, 14), (7, 15), (15, 14), (15, 15), (7, 22), (7, 23)],
}


@pytest.mark.parametrize("columns", [64, 96, 256])
def test_sums_lie_in_registers_as_the_manual_says(columns: int) -> None:
    row, column = elements(warpgroup_core(F16, columns).sums)
    assert row.shape == (32, columns // 2)
    for lane, places in HELD.items():
        assert [(int(r), int(c)) for r, c in zip(row[lane, :10], column[lane, :10], strict=True)] == places
    assert np.unique(row * columns + column).size == 16 * columns


UNIT = r"""
#include "cuda.h"
extern "C" __global__ void __launch_bounds__(128) unit(const T* in, float* out, uint64_t* form) {
  SHARED(arena);
  T* const held = reinterpret_cast<T*>(arena);
  for (int i = threadIdx.x; i < 8192; i += 128) held[i] = in[i];
  TELL
  __syncthreads();
  float sums[COLUMNS / 2];
  for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 1;
  begin_products<COLUMNS, 32, 520, RIGHT_PITCH, DEEP>(sums, held, held + 2560);
  if (threadIdx.x == 0) form[0] = described(held + 2560, 272, 4096);
  wait_products<0>(sums);
  for (int i = 0; i < COLUMNS / 2; i++) out[threadIdx.x * (COLUMNS / 2) + i] = sums[i];
}
"""


def unit_of(columns: int, *, deep: bool, kind: str = "f16", tell: str = "tell_units();") -> Path:
    """A library of one product of 64 x 32 by 32 x columns, as the emulator runs it."""
    pitch = str(8 * (columns if deep else 32) + 8)
    text = UNIT.replace("COLUMNS", str(columns)).replace("RIGHT_PITCH", pitch).replace("TELL", tell)
    return emulator.library_of(text.replace("DEEP", str(deep).lower()).replace("T*", f"{kind}*"), "unit")


@needs_compiler
@pytest.mark.parametrize("deep", [False, True], ids=["across", "deep"])
@pytest.mark.parametrize("columns", [64, 96])
def test_units_read_shared_memory_as_the_manual_says(columns: int, deep: bool) -> None:
    """Without a swizzle 8 x 8 elements are 128 bytes side by side: eight rows of 16 bytes along the depth or across."""
    rng = np.random.default_rng(3)
    left, right = rng.integers(-4, 5, (64, 32)), rng.integers(-4, 5, (32, columns))
    held = np.full(8192, np.nan, np.float16)
    for row, k in np.ndindex(64, 32):
        held[k // 8 * 520 + row // 8 * 64 + row % 8 * 8 + k % 8] = left[row, k]
    for k, n in np.ndindex(32, columns):
        along, across = (k, n) if deep else (n, k)
        pitch = 8 * (columns if deep else 32) + 8
        held[2560 + along // 8 * pitch + across // 8 * 64 + across % 8 * 8 + along % 8] = right[k, n]
    library = ctypes.CDLL(str(unit_of(columns, deep=deep)))
    out, form = np.zeros((128, columns // 2), np.float32), np.zeros(1, np.uint64)
    cells = [ctypes.c_void_p(a.ctypes.data) for a in (held, out, form)]
    given = (ctypes.c_void_p * 3)(*(ctypes.addressof(c) for c in cells))
    library.run_unit(given, ctypes.c_uint(1), ctypes.c_uint(128), ctypes.c_size_t(16384), ctypes.c_uint(1))
    wanted = left @ right + 1
    for lane, places in HELD.items():
        for warp in range(4):
            assert list(out[32 * warp + lane, :10]) == [wanted[16 * warp + r, c] for r, c in places]
    # The matrix descriptor's fields: bits 0 to 13 the address, 16 to 29 the leading and 32 to 45 the stride offset,
    # each without its last four bits; 49 to 51 the base offset and 62 to 63 the swizzle, which are 0.
    assert int(form[0]) == (5120 >> 4) | (272 >> 4) << 16 | (4096 >> 4) << 32


@needs_compiler
def test_a_unit_that_was_not_told_what_is_stored_ends_the_emulator() -> None:
    call = f"""
import ctypes
library = ctypes.CDLL({str(unit_of(64, deep=False, tell=""))!r})
room = ctypes.create_string_buffer(1 << 16)
cell = ctypes.c_void_p(ctypes.addressof(room))
given = (ctypes.c_void_p * 3)(*[ctypes.addressof(cell)] * 3)
library.run_unit(given, ctypes.c_uint(1), ctypes.c_uint(128), ctypes.c_size_t(16384), ctypes.c_uint(1))
"""
    done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert "a matrix unit was not told what was stored" in done.stderr


# Tiles ----------------------------------------------------------------------------------------------------------------


def grouped(s: Sizes) -> list[BlockTile]:
    """Tiles that warpgroups multiply."""
    return [t for t in tiles_of(s, HOPPER) if t.grouped]


def some(s: Sizes) -> list[BlockTile]:
    """A tile of each number of stages and splits, place of groups, width of an instruction, and step."""
    found: dict[object, BlockTile] = {}
    for t in grouped(s):
        for part in (("stages", t.stages), ("splits", t.splits), (t.high, t.wide), ("n", t.sums), ("step", t.depth)):
            found.setdefault(part, t)
    return list(dict.fromkeys(found.values()))


def transposed(rows: int, depth: int, columns: int, dtype: DType) -> Graph:
    """x w^T, whose right side lies along the depth."""
    b = Build(22)
    x, w = b.input("x", rows, depth, dtype=dtype), b.input("w", columns, depth, dtype=dtype)
    return b.graph(b.node("Gemm", x, w, b.input("b", columns, dtype=dtype), transB=1))


TILES = [
    pytest.param(Case(f"groups_{name}_{held}", make(rows, depth, columns, held)), t, id=f"{name}-{held}-{n}")
    for name, make, rows, depth, columns, deep, held in (
        ("across", product, 70, 384, 200, False, F16), ("deep", transposed, 130, 96, 72, True, BF16),
    )
    for n, t in enumerate(some(Sizes(1, rows, columns, depth, held, deep)))
]  # fmt: skip


@pytest.mark.parametrize(("case", "tile"), TILES)
def test_every_tile_is_right(case: Case, tile: BlockTile) -> None:
    kernel = with_tile(case, tile, HOPPER)
    assert multiplied(kernel) == 1
    assert any(isinstance(s, WarpgroupMma) for s in all_statements(kernel))
    assert any(isinstance(s, CopyAsync) for s in all_statements(kernel)) == (tile.stages > 1)
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), 1))


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize(("case", "tile"), TILES)
def test_nothing_is_spilled(case: Case, tile: BlockTile) -> None:
    kernel = with_tile(case, tile, HOPPER)
    for phase, used in zip(kernel.phases, compiled(device_text(kernel, "k"), HOPPER.flags).functions, strict=True):
        assert phase.launch is not None
        assert (used.spills, used.stack) == (0, 0)
        assert used.registers * (phase.launch.block.constant or 0) <= 1 << 16


SMALL = [  # with few elements, that the emulator is done soon: all stages, splits, and both ways in which a side lies
    (Case("few_across", product(70, 64, 72, F16)), Sizes(1, 70, 72, 64, F16)),
    (Case("few_deep", transposed(70, 64, 72, BF16)), Sizes(1, 70, 72, 64, BF16, deep=True)),
]
RUN = [pytest.param(case, t, id=f"{case.name}-{n}") for case, s in SMALL for n, t in enumerate(some(s))]


@needs_compiler
@pytest.mark.parametrize(("case", "tile"), RUN)
def test_its_text_computes_the_same_in_any_order_of_threads(case: Case, tile: BlockTile) -> None:
    kernel = with_tile(case, tile, HOPPER)
    for seed in (1, 2):
        assert_right(kernel, case, 0, emulator.run(kernel, case.name, fed(kernel, case, 0), None, seed))


def first(case: Case) -> Kernel:
    """The kernel of a case with the best tile that warpgroups multiply."""

    def best(s: Sizes, target: object) -> tuple[BlockTile, ...]:
        return tuple(grouped(s)[:1]) or tiles_of(s, HOPPER)

    return with_tile(case, best, HOPPER)


WHOLE = [
    "tiles_float16", "tiles_bfloat16", "layer_norm_first_float16", "norm_first_and_turned_float16",
    "norm_first_of_pixels_float16", "tanh_first", "transposed_float16", "batched_float16", "norm_behind_float16",
    "tiles_rows_unknown",
]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", WHOLE)
def test_what_is_before_and_behind_a_product_is_in_its_kernel(name: str) -> None:
    case = BY_NAME[name]
    kernel = first(case)
    assert any(isinstance(s, WarpgroupMma) for s in all_statements(kernel))
    for number in range(len(case.sizes)):
        assert_right(kernel, case, number, interpret(kernel, fed(kernel, case, number), 1))
        assert_right(kernel, case, number, emulator.run(kernel, case.name, fed(kernel, case, number)))


@pytest.mark.parametrize(
    "s", [Sizes(1, 64, 64, 77, F16), Sizes(1, 64, 64, 72, F16), Sizes(1, 64, 41, 64, F16), Sizes(1, 64, 64, 64, F32)],
    ids=str,
)  # fmt: skip
def test_other_tiles_multiply_what_has_no_whole_steps_or_pieces(s: Sizes) -> None:
    assert not grouped(s)
    assert tiles_of(s, HOPPER) == tiles_of(s, GPUS["sm_90"])


@pytest.mark.parametrize("target", [GPUS["sm_90"], GPUS["sm_100"], PORTABLE["compute_90"]], ids=lambda t: t.name)
def test_no_other_code_has_instructions_of_warpgroups(target: Any) -> None:
    assert not any(t.grouped for t in tiles_of(Sizes(1, 1024, 768, 3072, F16), target))


# Faults ---------------------------------------------------------------------------------------------------------------

PIPELINED = BlockTile(128, 64, 32, 2, 1, 4, 1, F16, warpgroup_core(F16, 64))


def pipelined() -> Kernel:
    """A product in which two steps are multiplied while another one comes."""
    return with_tile(Case("planted", product(130, 256, 72, F16)), PIPELINED, HOPPER)


def by_warp(m: WarpgroupMma) -> WarpgroupMma:
    """Each warp begins elsewhere."""
    return replace(m, right_at=Index.of(Axis("wm", Index.of(8))) * 8)


FAULTS: dict[str, tuple[Change, str]] = {
    "units that are not told what is stored": (
        only_first(Sync, lambda s: replace(s, units=False), lambda s: s.units), "no barrier has told it"),
    "no barrier before a product": (dropped(Sync, 0), "no barrier has told it"),
    "sums that are not waited for": (dropped(WaitProducts, 1), "is on its way"),
    "copies over what is still read": (
        only_first(WaitProducts, lambda w: replace(w, pending=3), lambda w: w.pending == 1), "overwritten"),
    "copies that are not waited for": (
        only_first(Wait, lambda w: replace(w, pending=3), lambda w: w.pending == 1), ""),
    "warps of a group that multiply different parts": (only_first(WarpgroupMma, by_warp), "different parts"),
    "half a group": (only_first(Launch, lambda x: replace(x, block=Index.of(192))), "is of 128 threads"),
    "a part of a step": (only_first(WarpgroupMma, lambda m: replace(m, depth=24)), "expected a multiple of 16"),
    "pieces that are not aligned": (only_first(WarpgroupMma, lambda m: replace(m, left_pitch=516)), "not aligned"),
    "more than there is": (only_first(WarpgroupMma, lambda m: replace(m, right_pitch=4096)), "which has"),
    "sides of another type": (
        only_first(Buffer, lambda b: replace(b, dtype=BF16), lambda b: b.name == "tile_of_left"), "expected float16"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    change, said = FAULTS[name]
    found = verify(in_phases(pipelined(), change))
    assert any(said in text for text in found), found


def test_a_wait_that_is_missing_is_a_wrong_result_or_a_fault() -> None:
    case = Case("planted", product(130, 256, 72, F16))
    broken = in_phases(pipelined(), only_first(WaitProducts, lambda w: replace(w, pending=9), lambda w: w.pending == 1))
    with pytest.raises(KernelFault, match="overwritten"):
        interpret(broken, fed(broken, case, 0), 1)
