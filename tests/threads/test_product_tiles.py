"""Tiled products on GPUs: correct with every tile, in any order of threads, without spills."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from onnxfuse.build.cuda import unspilled
from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.build.nvrtc import compiler as nvrtc_compiler
from onnxfuse.cost.gpu_products import BlockTile, Sizes, seconds_of, tiles_of
from onnxfuse.ir.dtype import F16, F32
from onnxfuse.ir.graph import Graph
from onnxfuse.ir.group import Plan
from onnxfuse.ir.index import Index
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel, all_statements
from onnxfuse.ir.launch import Commit, CopyAsync, Mma, Sync, Wait
from onnxfuse.ir.verify import verify
from onnxfuse.lower import lower
from onnxfuse.lower.lowered import Lowered
from onnxfuse.ops.rows import ROWS
from onnxfuse.render.cuda import device_text
from onnxfuse.schedule.gpu import products, scheduler
from onnxfuse.schedule.gpu.product_block import MADE
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.target import CORES_SINCE, GPUS, PORTABLE, Gpu, block_shared, gpus_of
from tests.kernels.compiled import Array, Case, check, expected, fed, group_of_all, packed
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import alone, compiler
from tests.rules.build import Build
from tests.threads import emulator
from tests.threads.product_cases import TILED, normalized, product
from tests.threads.scheduled import TABLES, TARGET, kernel_of
from tests.threads.test_attention import without

DEVICES = gpus_of(("sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_120"))
COMPILED = [
    pytest.param(c, t, id=f"{c.name}-{t.name}", marks=[] if t.name == "sm_120" else [pytest.mark.slow])
    for c in TILED
    for t in DEVICES
]
BY_NAME = {c.name: c for c in TILED}
USUAL = tuple(
    BY_NAME[n] for n in ("tiles_uneven_float16", "tiles_float32", "layer_norm_first_float16", "batched_float16")
)
HERE = [pytest.param(c, id=c.name, marks=[] if c in USUAL else [pytest.mark.slow]) for c in TILED]


@cache
def library(cases: tuple[Case, ...]) -> ctypes.CDLL:
    """Kernels for the host, in one unit."""
    with alone(CACHE / f"threads-{cases[0].name}.lock"):
        return ctypes.CDLL(str(emulator.compiled({c.name: kernel_of(c) for c in cases})))


def assert_right(kernel: Kernel, case: Case, number: int, outputs: Sequence[Array]) -> None:
    wanted = expected(case, number)
    for p, got in zip(kernel.outputs, outputs, strict=True):
        check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))


def multiplied(kernel: Kernel) -> int:
    """Phases that multiply by tiles."""
    return sum(any(b.name == MADE for b in p.locals) for p in kernel.phases)


@pytest.mark.parametrize("case", TABLES["tiles"], ids=lambda case: case.name)
def test_a_product_is_made_of_tiles(case: Case) -> None:
    """That it is right, `test_gpu_kernels` finds."""
    assert multiplied(kernel_of(case)) == 1


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("case", HERE)
def test_its_text_computes_the_same_in_any_order_of_threads(case: Case) -> None:
    kernel, unit = kernel_of(case), library(USUAL if case in USUAL else tuple(c for c in TILED if c not in USUAL))
    for number in range(len(case.sizes)):
        for seed in (1, 2):
            made = emulator.run(kernel, case.name, fed(kernel, case, number), unit, seed)
            assert_right(kernel, case, number, made)


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize(("case", "target"), COMPILED)
def test_nothing_is_spilled(case: Case, target: object) -> None:
    row = next(t for t in DEVICES if t == target)
    kernel = with_tile(case, None, row)
    for phase, used in zip(kernel.phases, compiled(device_text(kernel, "tiles"), row.flags).functions, strict=False):
        assert phase.launch is not None
        assert (used.spills, used.stack) == (0, 0)
        assert used.registers * (phase.launch.block.constant or 0) <= 1 << 16


# What is before a product, and behind it ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in BY_NAME if "first" in n or n.startswith(("tiles", "transposed"))])
def test_prologue_and_epilogue_are_in_the_same_kernel(name: str) -> None:
    kernel = kernel_of(BY_NAME[name])
    assert len(kernel.phases) == 1
    assert not kernel.scratch


def test_parts_of_a_long_sum_are_added_where_the_normalization_is() -> None:
    case = BY_NAME["norm_behind_float16"]
    divided = next(t for t in tiles_of(Sizes(1, 24, 64, 256, F16), TARGET) if t.splits > 1)
    kernel = with_tile(case, divided)
    assert len(kernel.phases) == 2
    (parts,) = kernel.scratch
    assert parts.dtype == F32
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), 1))


def shared_normalization() -> Graph:
    """Rows that are normalized for a product, and are a result themselves."""
    graph = normalized("LayerNormalization", F32)
    norm = next(n for n in graph.nodes if n.op == "LayerNormalization")
    return replace(graph, outputs=(*graph.outputs, norm.outputs[0]))


def test_rows_that_others_read_are_normalized_before() -> None:
    case = Case("shared_normalization", shared_normalization())
    kernel = kernel_of(case)
    assert len(kernel.phases) == 2
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), 1))


def test_nan_in_a_row_does_not_reach_other_rows() -> None:
    case = BY_NAME["tiles_uneven_float16"]
    kernel = kernel_of(case)
    inputs = [a.copy() for a in fed(kernel, case, 0)]
    whole = interpret(kernel, inputs, 1)[0]
    left = next(a for p, a in zip(kernel.inputs, inputs, strict=True) if p.shape[-1:] == (77,) or a.shape[-1] == 77)
    left[..., 32, 5] = np.inf
    left[..., 7, 3] = np.nan
    spoilt = interpret(kernel, inputs, 1)[0]
    rest = [r for r in range(33) if r not in (7, 32)]
    assert np.array_equal(spoilt[:, rest], whole[:, rest])
    assert np.isnan(spoilt[:, 7]).all()
    assert not np.isfinite(spoilt[:, 32]).all()


@pytest.mark.parametrize("name", ["tiles_float16", "layer_norm_first_float16", "norm_behind_float16"])
def test_each_barrier_left_out_is_found(name: str) -> None:
    """What one thread leaves in shared memory others read."""
    kernel = kernel_of(BY_NAME[name])
    first = replace(kernel, phases=kernel.phases[:1])
    barriers = [s for s in all_statements(first) if s == Sync("block")]
    assert len(barriers) >= 2, "nothing would be left out"
    for number in range(len(barriers) - 1):  # the last is for blocks that go on to other tiles
        assert verify(without(kernel, number)) != (), number


@pytest.mark.parametrize("name", ["tiles_float16", "tiles_float32", "tiles_bfloat16"])
def test_tensor_cores_multiply_where_they_have_the_type(name: str) -> None:
    kernel = kernel_of(BY_NAME[name])
    assert any(isinstance(s, Mma) for s in all_statements(kernel)) == (name != "tiles_float32")
    older = with_tile(BY_NAME[name], None, GPUS["sm_75"])
    assert not any(isinstance(s, Mma) for s in all_statements(older))


@pytest.mark.parametrize("case", TILED, ids=lambda case: case.name)
def test_nothing_is_copied_in_the_background_where_a_gpu_cannot(case: Case) -> None:
    older = [*all_statements(with_tile(case, None, GPUS["sm_75"]))]
    assert not any(isinstance(s, (CopyAsync, Commit, Wait)) for s in older)


# Tiles ----------------------------------------------------------------------------------------------------------------


def lowered(case: Case) -> Lowered:
    group = group_of_all(case.graph)
    made = lower(group, Plan(case.graph, (group,), case.layouts), ROWS)
    assert isinstance(made, Lowered)
    return made


Choice = Callable[[Sizes, Gpu], tuple[BlockTile, ...]]


def with_tile(case: Case, tile: BlockTile | Choice | None, target: object = TARGET) -> Kernel:
    """The kernel of a case with a certain tile of its product, or one of those that are chosen from."""
    scheduler._scheduled.cache_clear()  # it knows nothing of the patch below
    row = next(t for t in DEVICES if t == target)
    choice: Choice = tiles_of if tile is None else (lambda s, t: (tile,)) if isinstance(tile, BlockTile) else tile
    with patch.object(products, "tiles_of", choice):
        made = schedule(lowered(case), case.layouts, row)
    assert isinstance(made, Kernel), made
    assert verify(made) == ()
    return made


def some(sizes: Sizes) -> list[BlockTile]:
    """A tile of each number of stages and splits, of each place of warps, and of each step."""
    found: dict[object, BlockTile] = {}
    for t in tiles_of(sizes, TARGET):
        for part in (("stages", t.stages), ("splits", t.splits), (t.high, t.wide), ("step", t.depth)):
            found.setdefault(part, t)
    return list(dict.fromkeys(found.values()))


TILES = [
    pytest.param(Case(f"every_tile_{held}", product(70, depth, 72, held)), t, id=f"{held}-{n}")
    for held, depth in ((F16, 256), (F32, 128))
    for n, t in enumerate(some(Sizes(1, 70, 72, depth, held)))
]


@pytest.mark.parametrize(("case", "tile"), TILES)
def test_every_tile_is_right(case: Case, tile: BlockTile) -> None:
    kernel = with_tile(case, tile)
    assert multiplied(kernel) == 1
    assert len(kernel.phases) == (2 if tile.splits > 1 else 1)
    assert any(isinstance(s, CopyAsync) for s in all_statements(kernel)) == (tile.stages > 1)
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), 1))


def test_tiles_fit_a_block_and_the_first_takes_least() -> None:
    for sizes in (
        Sizes(1, 197, 768, 768, F16),
        Sizes(12, 197, 197, 64, F32),
        Sizes(1, 128, 512, 128, F16, normalized=3),
    ):
        for target in DEVICES:
            found = tiles_of(sizes, target)
            seconds = [seconds_of(sizes, t, target) for t in found]
            assert seconds == sorted(seconds)
            assert all(t.bytes(sizes) <= block_shared(target) and t.registers * t.threads <= 1 << 16 for t in found)
            assert all((t.core is not None) == (sizes.dtype == F16 and target.capability >= CORES_SINCE) for t in found)


@pytest.mark.parametrize(
    ("target", "kilobytes"),
    [(GPUS["sm_75"], 64), (GPUS["sm_80"], 99), (GPUS["sm_90"], 227), (PORTABLE["compute_80"], 99),
     (PORTABLE["compute_75"], 64)],
    ids=lambda x: getattr(x, "name", x),
)  # fmt: skip
def test_a_block_asks_for_what_every_gpu_has_that_runs_its_code(target: Gpu, kilobytes: int) -> None:
    """An A10 runs code for an A100, and gives a block less."""
    assert block_shared(target) == kilobytes << 10
    sizes = [t.bytes(Sizes(1, 2048, 2048, 2048, F16)) for t in tiles_of(Sizes(1, 2048, 2048, 2048, F16), target)]
    assert 48 << 10 < max(sizes) <= kilobytes << 10


def test_a_long_sum_of_few_elements_is_divided_and_a_wide_product_is_not() -> None:
    few, wide = Sizes(1, 16, 64, 4096, F16), Sizes(1, 4096, 4096, 512, F16)
    assert tiles_of(few, TARGET)[0].splits > 1
    assert tiles_of(wide, TARGET)[0].splits == 1


def test_larger_products_have_larger_tiles() -> None:
    small, large = (tiles_of(Sizes(1, n, n, n, F16), TARGET)[0] for n in (64, 2048))
    assert small.rows * small.columns < large.rows * large.columns


@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
def test_a_grid_of_few_blocks_asks_for_no_more_of_them_at_once(name: str) -> None:
    """75 blocks, 64 sums a thread, on 132 multiprocessors: with registers for two on each, threads spilled 24 bytes."""
    kernel = with_tile(Case("few_blocks", gelu(3136, 96, 384)), None, GPUS[name])
    (phase,) = kernel.phases
    assert phase.launch is not None
    blocks = phase.launch.grid.constant or 0
    assert phase.launch.resident <= max(1, -(-blocks // GPUS[name].sms))
    made = unspilled(device_text(kernel, "few_blocks"), GPUS[name].flags, nvrtc_compiler())
    assert [(f.spills, f.stack) for f in made.functions] == [(0, 0)]


def gelu(rows: int, depth: int, columns: int) -> Graph:
    """Gelu(x w + b) in float16."""
    b = Build(20)
    y = b.node("MatMul", b.input("x", 1, rows, depth, dtype=F16), b.input("w", depth, columns, dtype=F16))
    return b.graph(b.node("Gelu", b.node("Add", y, b.input("b", columns, dtype=F16))))


def test_sums_are_stored_without_conflicts_of_banks() -> None:
    """Half a warp stores 8 bytes a lane at a time: its 32 words lie in 32 banks."""
    tile = tiles_of(Sizes(1, 50, 96, 64, F16), TARGET)[0]
    assert tile.core is not None
    for first in (0, 16):
        places = [tile.core.sums.element(Index.of(lane), Index.of(0)) for lane in range(first, first + 16)]
        words = [(row * tile.made_pitch() + column).constant or 0 for row, column in places]
        assert len({(w + v) % 32 for w in words for v in (0, 1)}) == 32
    kernel = with_tile(BY_NAME["tiles_float16"], tile)
    (made,) = [b for p in kernel.phases for b in p.locals if b.name == MADE]
    assert made.size == tile.rows * tile.made_pitch()
