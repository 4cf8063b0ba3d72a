"""Attention as kernels for GPUs: one phase, right in any order of threads, and compiled without spills.

What a kernel computes is compared with float64 references, interpreted and as host code; those of `TYPED` are
interpreted in `test_gpu_kernels`.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from onnxfuse.build.nvrtc import compiled, libraries
from onnxfuse.cost.gpu import cost_of
from onnxfuse.ir.dtype import F16
from onnxfuse.ir.fragments import TENSOR_CORES
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Bind, Kernel, Loop, Stmt, all_statements
from onnxfuse.ir.launch import CopyAsync, Mma, Sync, Wait
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.schedule.gpu import scheduler
from onnxfuse.schedule.gpu.attention import parts, phase
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.schedule.gpu.tiles import CoreTile
from onnxfuse.target import block_shared, gpus_of
from tests.kernels.cases import function
from tests.kernels.compiled import Case, check, expected, fed, lowered_of, packed
from tests.kernels.isa import CACHE
from tests.kernels.pool_host import alone, compiler
from tests.threads import emulator
from tests.threads.attention_cases import CASES, PARTED, TYPED, separate
from tests.threads.scheduled import TABLES, TARGET, kernel_of

DEVICES = gpus_of(("sm_80", "sm_90", "sm_100", "sm_120"))
HALVES = ("float16", "bfloat16")
HERE = [pytest.param(c, id=c.name, marks=[] if c in TYPED else [pytest.mark.slow]) for c in CASES]
COMPILED = [
    pytest.param(c, t, id=f"{c.name}-{t.name}", marks=[] if t.name == "sm_90" else [pytest.mark.slow])
    for c in TYPED
    for t in DEVICES
]


assert set(TYPED) <= set(TABLES["attention"]), "interpreted there"


def name_of(case: Case) -> str:
    return f"one_{case.name}"


@cache
def library(cases: tuple[Case, ...]) -> ctypes.CDLL:
    """Kernels for the host, in one unit."""
    with alone(CACHE / f"threads-{cases[0].name}.lock"):
        return ctypes.CDLL(str(emulator.compiled({name_of(c): kernel_of(c) for c in cases})))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_attention_is_one_phase(case: Case) -> None:
    assert len(kernel_of(case).phases) == (2 if case in PARTED else 1)


@pytest.mark.parametrize("case", [c for c in CASES if c not in TYPED], ids=lambda case: case.name)
def test_attention_is_right(case: Case) -> None:
    kernel = kernel_of(case)
    assert verify(kernel) == ()
    for number in range(len(case.sizes)):
        wanted = expected(case, number)
        for p, got in zip(kernel.outputs, interpret(kernel, fed(kernel, case, number), 1), strict=True):
            check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("case", HERE)
def test_its_text_computes_the_same_in_any_order_of_threads(case: Case) -> None:
    kernel, unit = kernel_of(case), library(TYPED if case in TYPED else tuple(c for c in CASES if c not in TYPED))
    for number in range(len(case.sizes)):
        wanted = expected(case, number)
        for seed in (1, 2):
            made = emulator.run(kernel, name_of(case), fed(kernel, case, number), unit, seed)
            for p, got in zip(kernel.outputs, made, strict=True):
                check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize(("case", "target"), COMPILED)
def test_nothing_is_spilled(case: Case, target: object) -> None:
    row = next(t for t in DEVICES if t == target)
    made = compiled(device_text(kernel_of(case), "attention"), row.flags)
    resident = max(p.launch.resident for p in kernel_of(case).phases if p.launch is not None)
    assert resident >= 1
    for used in made.functions:
        assert (used.spills, used.stack) == (0, 0)
        assert used.registers * 128 * resident <= 1 << 16


@pytest.mark.parametrize("case", TYPED, ids=lambda case: case.name)
def test_tensor_cores_multiply_where_they_have_the_type_and_the_sizes(case: Case) -> None:
    multiplied = any(isinstance(s, Mma) for s in all_statements(kernel_of(case)))
    assert multiplied == (case.name.endswith(HALVES) and not case.name.startswith("uneven"))


def key_tiles(kernel: Kernel) -> list[str]:
    """Where loops over tiles of keys end."""
    return [repr(s.end) for s in all_statements(kernel) if isinstance(s, Loop) and s.axis.name == "keys"]


@pytest.mark.parametrize("name", ["long", "more_keys", "shared_keys", "shared_keys_any_length"])
def test_tiles_of_keys_that_a_causal_mask_hides_are_left_out(name: str) -> None:
    case = next(c for c in function.CASES if c.name == f"attention_causal_{name}")
    (end,) = key_tiles(kernel_of(case))
    assert "tile" in end, "the loop over keys ends where rows of the block see none"


def test_blocks_that_see_most_keys_are_last() -> None:
    """A GPU begins blocks in order: those that it begins second on a multiprocessor join some that see few keys."""
    order = {}
    for causal in (0, 1):
        kernel = kernel_of(Case(f"order_{causal}", function.attention(12, 12, 1024, 1024, is_causal=causal)))
        (where,) = [repr(s.value) for s in all_statements(kernel) if isinstance(s, Bind) and s.axis.name == "tile"]
        order[causal] = where
    assert "%" in order[0] and "%" not in order[1]


def test_what_no_mask_hides_is_not_left_out() -> None:
    (end,) = key_tiles(kernel_of(Case("many_keys", separate(F16, 12, 300, 700, 64))))
    assert "tile" not in end


def test_what_a_causal_mask_leaves_costs_about_half() -> None:
    """The loop over keys ends at another place in each block."""
    whole, half = (
        cost_of(kernel_of(Case(f"cost_{causal}", function.attention(12, 12, 1024, 1024, is_causal=causal))), TARGET)
        for causal in (0, 1)
    )
    assert whole is not None and half is not None
    assert 0.4 < half.phases[0].compute / whole.phases[0].compute < 0.75


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", ["biased_float16", "deep_float16", "two_tiles_float16"])
def test_an_infinite_last_value_makes_infinite_sums(name: str) -> None:
    """The last value is read again for those behind it, which count as 0."""
    case = next(c for c in TYPED if c.name == name)
    kernel = kernel_of(case)
    inputs = [a.copy() for a in fed(kernel, case, 0)]
    inputs[0] *= inputs[0].dtype.type(0.1)  # no share is rounded to 0
    values = inputs[0] if name.startswith("biased") else inputs[2]
    values[(0, -1, -1) if name.startswith("biased") else (0, 1, -1, -1)] = np.inf
    (wanted,) = interpret(kernel, inputs, 1)
    (got,) = emulator.run(kernel, name_of(case), inputs, library(TYPED), 1)
    assert np.isinf(wanted.astype(np.float32)).any()
    assert not np.isnan(wanted.astype(np.float32)).any()
    check(got, kernel.outputs[0].dtype, wanted, wanted)


@pytest.mark.parametrize("case", PARTED, ids=lambda case: case.name)
def test_keys_of_few_rows_are_divided_over_blocks_and_put_together(case: Case) -> None:
    kernel = kernel_of(case)
    assert len(kernel.phases) == 2
    assert len(kernel.scratch) == 3
    blocks = [p.launch.grid.constant or 0 for p in kernel.phases if p.launch is not None]
    assert blocks[0] >= 8 * kernel.inputs[0].shape[1].constant  # type: ignore[operator]  # heads


def test_fully_masked_rows_are_nan_also_where_keys_are_divided() -> None:
    """Hidden entirely: what the operators themselves make of it, however the keys are divided."""
    case = next(c for c in PARTED if c.name == "decoding_float32")
    kernel = kernel_of(case)
    inputs = [a.copy() for a in fed(kernel, case, 0)]
    inputs[1][0, 1] = -np.inf
    inputs[0][0, 1] = np.abs(inputs[0][0, 1])
    made = interpret(kernel, inputs, 1)[0]
    assert np.isnan(made[0, 1]).all()
    assert np.isfinite(made[0, [0, 2]]).all()


@pytest.mark.parametrize("keys", [64, 512])
def test_few_keys_are_not_divided(keys: int) -> None:
    kernel = kernel_of(Case(f"keys_{keys}", separate(F16, 2, 1, keys, 32)))
    assert len(kernel.phases) == 1


def test_each_barrier_left_out_is_found() -> None:
    """What one thread leaves in shared memory others read: each barrier of a block's rows is needed."""
    kernel = kernel_of(next(c for c in TYPED if c.name == "deep_float32"))
    barriers = [s for s in all_statements(kernel) if s == Sync("block")]
    assert len(barriers) == 5
    for number in range(len(barriers) - 1):  # the last is for blocks that go on to other rows
        assert verify(without(kernel, number)) != (), number


def test_keys_and_values_come_in_the_background_and_are_waited_for() -> None:
    """Those of the first tile, and of the next one while one is multiplied; what is left out is found."""
    kernel = kernel_of(Case("copied", separate(F16, 12, 1024, 1024, 64)))
    assert sum(isinstance(s, CopyAsync) for s in all_statements(kernel)) == 4
    assert verify(without(kernel, 0)) != ()
    assert verify(without(kernel, 0, Wait(0))) != ()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("keys", [192, 150])
def test_tiles_that_come_in_the_background_are_right(keys: int) -> None:
    """Of 150 keys the values are stored by threads, zeros behind the last."""
    case = Case(f"in_background_{keys}", separate(F16, 2, 40, keys, 32))
    core = next(c for c in TENSOR_CORES if c.left.dtype == F16)
    tile = CoreTile(64, 64, 32, 32, 1, core, stages=2)
    scheduler._scheduled.cache_clear()  # it knows nothing of the patches below
    with patch.object(phase, "tile_of", lambda *_: tile), patch.object(parts, "tile_of", lambda *_: tile):
        kernel = schedule(lowered_of(case), case.layouts, TARGET)
    scheduler._scheduled.cache_clear()
    assert isinstance(kernel, Kernel) and verify(kernel) == ()
    assert sum(isinstance(s, CopyAsync) for s in all_statements(kernel)) == (4 if keys == 192 else 2)
    (out,) = kernel.outputs
    for seed in (1, 2):
        (made,) = emulator.run(kernel, case.name, fed(kernel, case, 0), seed=seed)
        check(made, F16, *expected(case, 0)[out.value])


def without(kernel: Kernel, number: int, what: Stmt = Sync("block")) -> Kernel:  # noqa: B008  # frozen
    """A kernel that lacks one of its barriers of blocks, or one of another statement."""
    left = [number]

    def body(statements: tuple) -> tuple:  # type: ignore[type-arg]  # of statements
        made = []
        for s in statements:
            if s == what:
                left[0] -= 1
                if left[0] == -1:
                    continue
            made.append(replace(s, body=body(s.body)) if hasattr(s, "body") else s)
        return tuple(made)

    return replace(kernel, phases=tuple(replace(p, body=body(p.body)) for p in kernel.phases))


def test_deep_heads_request_more_shared_memory_than_the_default() -> None:
    """It is asked for when a kernel is created, as that of products is."""
    (phase,) = kernel_of(next(c for c in TYPED if c.name == "largest_float32")).phases
    assert phase.launch is not None and 48 << 10 < (phase.launch.shared.constant or 0) <= block_shared(TARGET)
