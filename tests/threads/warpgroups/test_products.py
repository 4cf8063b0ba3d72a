"""Products by warpgroups (wgmma): what the PTX manual says of registers and shared memory, tiles, faults, and code."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace
from functools import cache
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
from onnxfuse.ir.kernel import Buffer, Kernel, Loop, all_statements
from onnxfuse.ir.launch import (
    BeginArrivals,
    CopyAsync,
    CopyBox,
    Launch,
    Sync,
    Wait,
    WaitArrival,
    WaitProducts,
    WarpgroupMma,
)
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.schedule.gpu.product_block import LEFT
from onnxfuse.target import GPUS, PORTABLE
from tests.captured.machine_code import before_the_wait
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
  for (int i = threadIdx.x; i < 16384; i += 128) held[i] = in[i];
  TELL
  __syncthreads();
  float sums[COLUMNS / 2];
  for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 1;
  begin_products<COLUMNS, 32, 4096, RIGHT_PITCH, DEEP>(sums, held, held + 4096);
  if (threadIdx.x == 0) form[0] = described(held + 4096, 4096, 1024);
  wait_products<0>(sums);
  for (int i = 0; i < COLUMNS / 2; i++) out[threadIdx.x * (COLUMNS / 2) + i] = sums[i];
}
"""


def unit_of(columns: int, *, deep: bool, kind: str = "f16", tell: str = "tell_units();") -> Path:
    """A library of one product of 64 x 32 by 32 x columns, as the emulator runs it."""
    pitch = str(64 * (columns if deep else 32))
    text = UNIT.replace("COLUMNS", str(columns)).replace("RIGHT_PITCH", pitch).replace("TELL", tell)
    return emulator.library_of(text.replace("DEEP", str(deep).lower()).replace("T*", f"{kind}*"), "unit")


def swizzled(element: int) -> int:
    """By the manual, in the mode of 128 bytes: bits 4 to 6 of a byte's address are changed by bits 7 to 9."""
    byte = 2 * element
    return (byte ^ (byte >> 7 & 7) << 4) // 2


@needs_compiler
@pytest.mark.parametrize("deep", [False, True], ids=["across", "deep"])
@pytest.mark.parametrize("columns", [64, 128])
def test_units_read_shared_memory_as_the_manual_says(columns: int, deep: bool) -> None:
    """Lines of 128 bytes: of the depth, or of 64 columns, whose next 64 are behind those of all steps."""
    rng = np.random.default_rng(3)
    left, right = rng.integers(-4, 5, (64, 32)), rng.integers(-4, 5, (32, columns))
    held = np.full(16384, np.nan, np.float16)
    for row, k in np.ndindex(64, 32):
        held[swizzled(row * 64 + k)] = left[row, k]
    for k, n in np.ndindex(32, columns):
        held[swizzled(4096 + (n * 64 + k if deep else n // 64 * 32 * 64 + k * 64 + n % 64))] = right[k, n]
    library = ctypes.CDLL(str(unit_of(columns, deep=deep)))
    out, form = np.zeros((128, columns // 2), np.float32), np.zeros(1, np.uint64)
    cells = [ctypes.c_void_p(a.ctypes.data) for a in (held, out, form)]
    given = (ctypes.c_void_p * 3)(*(ctypes.addressof(c) for c in cells))
    library.run_unit(given, ctypes.c_uint(1), ctypes.c_uint(128), ctypes.c_size_t(32768), ctypes.c_uint(1))
    wanted = left @ right + 1
    for lane, places in HELD.items():
        for warp in range(4):
            assert list(out[32 * warp + lane, :10]) == [wanted[16 * warp + r, c] for r, c in places]
    # The matrix descriptor's fields: bits 0 to 13 the address, 16 to 29 the leading and 32 to 45 the stride offset,
    # each without its last four bits; 49 to 51 the base offset, 0; 62 to 63 the swizzle, 1 for that of 128 bytes.
    assert int(form[0]) == (8192 >> 4) | (4096 >> 4) << 16 | (1024 >> 4) << 32 | 1 << 62


@needs_compiler
def test_a_unit_that_was_not_told_what_is_stored_ends_the_emulator() -> None:
    call = f"""
import ctypes
library = ctypes.CDLL({str(unit_of(64, deep=False, tell=""))!r})
room = ctypes.create_string_buffer(1 << 16)
cell = ctypes.c_void_p(ctypes.addressof(room))
given = (ctypes.c_void_p * 3)(*[ctypes.addressof(cell)] * 3)
library.run_unit(given, ctypes.c_uint(1), ctypes.c_uint(128), ctypes.c_size_t(32768), ctypes.c_uint(1))
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
    pytest.param(Case(f"groups_{name}_{depth}", make(rows, depth, columns, held)), t, id=f"{name}-{held}-{boxes}-{n}")
    for name, make, rows, depth, columns, deep, held in (
        ("across", product, 70, 320, 200, False, F16), ("across", product, 70, 328, 200, False, F16),
        ("deep", transposed, 130, 192, 72, True, BF16), ("deep", transposed, 130, 200, 72, True, BF16),
    )
    for boxes in (depth % 64 > 0,)
    for n, t in enumerate(some(Sizes(1, rows, columns, depth, held, deep, boxes=boxes)))
]  # fmt: skip


@pytest.mark.parametrize(("case", "tile"), TILES)
def test_every_tile_is_right(case: Case, tile: BlockTile) -> None:
    kernel = with_tile(case, tile, HOPPER)
    assert multiplied(kernel) == 1
    assert any(isinstance(s, WarpgroupMma) for s in all_statements(kernel))
    made = [*all_statements(kernel)]
    assert any(isinstance(s, CopyAsync) for s in made) == (tile.stages > 1 and not tile.boxed)
    assert any(isinstance(s, CopyBox) for s in made) == tile.boxed
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), 1))


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize(("case", "tile"), TILES)
def test_nothing_is_spilled_and_nothing_is_read_before_the_kernel_before_has_ended(case: Case, tile: BlockTile) -> None:
    kernel = with_tile(case, tile, HOPPER)
    made = compiled(device_text(kernel, "k"), HOPPER.flags)
    for phase, used in zip(kernel.phases, made.functions, strict=True):
        assert phase.launch is not None
        assert before_the_wait(made.code, used.function) == set()
        assert (used.spills, used.stack) == (0, 0)
        assert used.registers * (phase.launch.block.constant or 0) <= 1 << 16


SMALL = [  # with few elements, that the emulator is done soon
    (Case("few_across", product(70, 128, 72, F16)), Sizes(1, 70, 72, 128, F16)),
    (Case("some_across", product(70, 136, 72, F16)), Sizes(1, 70, 72, 136, F16, boxes=True)),
    (Case("few_deep", transposed(70, 128, 72, BF16)), Sizes(1, 70, 72, 128, BF16, deep=True)),
    (Case("some_deep", transposed(70, 136, 72, BF16)), Sizes(1, 70, 72, 136, BF16, deep=True, boxes=True)),
]
SMALL_TILES = {case: some(s) for case, s in SMALL}
RUN = [pytest.param(case, n, id=f"{case.name}-{s.boxes}-{n}") for case, s in SMALL for n in range(len(some(s)))]


@cache
def small(case: Case) -> tuple[list[Kernel], ctypes.CDLL]:
    """The kernels of a small case with all of its tiles, and their library."""
    made = [with_tile(case, tile, HOPPER) for tile in SMALL_TILES[case]]
    named = {f"{case.name}_{n}": kernel for n, kernel in enumerate(made)}
    return made, ctypes.CDLL(str(emulator.compiled(named)))


@needs_compiler
@pytest.mark.parametrize(("case", "number"), RUN)
def test_its_text_computes_the_same_in_any_order_of_threads(case: Case, number: int) -> None:
    kernels, library = small(case)
    kernel = kernels[number]
    for seed in (1, 2):
        outputs = emulator.run(kernel, f"{case.name}_{number}", fed(kernel, case, 0), library, seed)
        assert_right(kernel, case, 0, outputs)


def first(case: Case) -> Kernel:
    """The kernel of a case with the best tile that warpgroups multiply."""

    def best(s: Sizes, target: object) -> tuple[BlockTile, ...]:
        return tuple(grouped(s)[:1]) or tiles_of(s, HOPPER)

    return with_tile(case, best, HOPPER)


WHOLE = [
    "tiles_float16", "tiles_bfloat16", "layer_norm_first_float16", "norm_first_and_turned_float16",
    "norm_first_of_pixels_float16", "tanh_first", "transposed_float16", "norm_behind_float16",
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
    "s",
    [Sizes(1, 64, 64, 77, F16, boxes=True), Sizes(1, 64, 64, 72, F16), Sizes(1, 64, 41, 64, F16),
     Sizes(1, 64, 64, 64, F32)],
    ids=str,
)  # fmt: skip
def test_other_tiles_multiply_what_is_not_copied_in_pieces(s: Sizes) -> None:
    assert not grouped(s)
    assert tiles_of(s, HOPPER) == tiles_of(s, GPUS["sm_90"])


@pytest.mark.parametrize("target", [GPUS["sm_90"], GPUS["sm_100"], PORTABLE["compute_90"]], ids=lambda t: t.name)
def test_no_other_code_has_instructions_of_warpgroups(target: Any) -> None:
    assert not any(t.grouped for t in tiles_of(Sizes(1, 1024, 768, 3072, F16), target))


# Faults ---------------------------------------------------------------------------------------------------------------

COPIED, BOXED = (BlockTile(128, 64, 64, 2, 1, 4, 1, F16, warpgroup_core(F16, 64), boxed) for boxed in (False, True))
PLANTED = Case("planted", product(130, 512, 72, F16))


def planted(tile: BlockTile) -> Kernel:
    """A product in which two steps are multiplied while another one comes."""
    return with_tile(PLANTED, tile, HOPPER)


def by_warp(m: WarpgroupMma) -> WarpgroupMma:
    """Each warp begins elsewhere."""
    return replace(m, right_at=Index.of(Axis("wm", Index.of(8))) * 64)


def pending(count: int, kind: type[Wait] | type[WaitProducts]) -> Change:
    """More is left pending in the loop over steps."""
    return only_first(kind, lambda w: replace(w, pending=count), lambda w: w.pending == 1)


FAULTS: dict[str, tuple[BlockTile, Change, str]] = {
    "units that are not told what is stored": (
        COPIED, only_first(Sync, lambda s: replace(s, units=False), lambda s: s.units), "no barrier has told it"),
    "no barrier before a product": (COPIED, dropped(Sync, 0), "no barrier has told it"),
    "sums that are not waited for": (COPIED, dropped(WaitProducts, 1), "is on its way"),
    "copies over what is still read": (COPIED, pending(3, WaitProducts), "overwritten"),
    "copies that are not waited for": (COPIED, pending(3, Wait), "is on its way"),
    "warps of a group that multiply different parts": (COPIED, only_first(WarpgroupMma, by_warp), "different parts"),
    "half a group": (COPIED, only_first(Launch, lambda x: replace(x, block=Index.of(192))), "is of 128 threads"),
    "a part of a step": (COPIED, only_first(WarpgroupMma, lambda m: replace(m, depth=24)), "a multiple of 16"),
    "lines that are not whole": (COPIED, only_first(WarpgroupMma, lambda m: replace(m, left_pitch=516)), "not aligned"),
    "more than there is": (
        COPIED, only_first(WarpgroupMma, lambda m: replace(m, left_at=m.left_at + 32768)), "which has"),
    "sides of another type": (
        COPIED, only_first(Buffer, lambda b: replace(b, dtype=BF16), lambda b: b.name == LEFT), "expected float16"),
    "sides that are not swizzled": (
        COPIED, only_first(Buffer, lambda b: replace(b, swizzled=False), lambda b: b.name == LEFT), "a swizzled"),
    "swizzled lines at any place": (
        COPIED, only_first(Buffer, lambda b: replace(b, at=16), lambda b: b.name == LEFT), "a multiple of 1024 bytes"),
    "boxes over what is still read": (BOXED, pending(3, WaitProducts), "overwritten"),
    "boxes that are not waited for": (BOXED, dropped(WaitArrival, 0), "is on its way"),
    "a box that is missing": (BOXED, dropped(CopyBox, 3), "not all boxes"),
    "a box too many": (BOXED, only_first(BeginArrivals, lambda b: replace(b, boxes=1)), "more boxes come"),
    "a turn that is not the next": (
        BOXED, only_first(WaitArrival, lambda w: replace(w, turn=w.turn + 1)), "not all boxes"),
    "a box that all threads copy": (BOXED, only_first(Loop, lambda s: s.body[0], lambda s: s.axis.name == "asks"), ""),
    "a box between lines": (BOXED, only_first(CopyBox, lambda b: replace(b, to=b.to + 8)), "not aligned"),
    "a box of too many rows": (BOXED, only_first(CopyBox, lambda b: replace(b, rows=512)), "which has"),
    "a matrix that is larger than its buffer": (
        BOXED, only_first(CopyBox, lambda b: replace(b, all_rows=b.all_rows + 1)), "which has"),
    "sums where sides may still be read": (BOXED, dropped(Sync, 1), "made and tile_of_left overlap"),
    "boxes where sums may still be read": (BOXED, dropped(Sync, 3), "made and tile_of_left overlap"),
    "no barrier before the next boxes": (BOXED, dropped(Sync, 0), "no barrier is behind their begin"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    tile, change, said = FAULTS[name]
    found = verify(in_phases(planted(tile), change))
    assert any(said in text for text in found), found


@pytest.mark.parametrize("tile", [COPIED, BOXED], ids=["copied", "boxed"])
def test_products_over_what_comes_next_are_a_fault_of_a_run(tile: BlockTile) -> None:
    broken = in_phases(planted(tile), pending(9, WaitProducts))
    with pytest.raises(KernelFault, match="overwritten"):
        interpret(broken, fed(broken, PLANTED, 0), 1)
