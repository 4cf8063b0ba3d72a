"""Kernels as they are made for GPUs: verified, interpreted, run as host code, and compiled for every architecture.

A run interprets all of them, and compiles those of rows and every sixteenth of the others; the rest is under `slow`.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from onnxfuse.build.cuda import unspilled
from onnxfuse.build.nvrtc import compiler as device_compiler
from onnxfuse.build.nvrtc import libraries
from onnxfuse.ir.graph import Decision
from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel, all_statements
from onnxfuse.ir.launch import CopyAsync, Mma
from onnxfuse.ir.verify import verify
from onnxfuse.render.cuda import device_text
from onnxfuse.schedule.gpu.scheduler import schedule
from onnxfuse.target import CORES_SINCE, gpus_of
from onnxfuse.target.gpu import DEPENDENT_SINCE
from tests.captured.machine_code import before_the_wait
from tests.kernels.compiled import Array, Case, check, expected, fed, lowered_of, packed
from tests.kernels.pool_host import compiler
from tests.rules.build import Build
from tests.threads.emulator import run
from tests.threads.scheduled import OTHERS, TABLES, TARGET, USUAL, library_of, name_of, scheduled
from tests.threads.size_cases import pixels_given_twice

EVERY = (*TABLES["rows"], *OTHERS)
HERE = [pytest.param(c, id=c.name, marks=[] if c in USUAL else [pytest.mark.slow]) for c in EVERY]
DEVICES = gpus_of(("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"))
COMPILER = device_compiler() if libraries() else None
SHORT = 24  # one of so many kernels is compiled for all devices
COMPILED = [
    pytest.param(c, t, id=f"{c.name}-{t.name}", marks=[] if c in USUAL and n % SHORT == 0 else [pytest.mark.slow])
    for n, c in enumerate(EVERY)
    for t in DEVICES
]
CPU_ONLY = {
    "so many updates of a scatter to so few lines would be applied one after the other": {
        "ScatterElements",
        "ScatterND",
    },
    "a recurrence computes its steps one after the other": {"LSTM", "GRU", "RNN"},
}


def kernel_of(case: Case) -> Kernel:
    made = scheduled(case)
    if isinstance(made, Decision):
        assert CPU_ONLY[made.reason] & {n.op for n in case.graph.nodes}, made
        pytest.skip(made.reason)
    return made


def independent(kernel: Kernel) -> Kernel:
    """A kernel as devices have it that know no dependent launches."""
    launches = [p.launch and replace(p.launch, dependent=False) for p in kernel.phases]
    return replace(kernel, phases=tuple(replace(p, launch=x) for p, x in zip(kernel.phases, launches, strict=True)))


def assert_right(kernel: Kernel, case: Case, number: int, outputs: Sequence[Array]) -> None:
    wanted = expected(case, number)
    for p, got in zip(kernel.outputs, outputs, strict=True):
        check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case) -> None:
    kernel = kernel_of(case)
    assert verify(kernel) == ()
    for number in range(len(case.sizes)):
        assert_right(kernel, case, number, interpret(kernel, fed(kernel, case, number), 1))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("case", HERE)
def test_its_text_computes_the_same_in_any_order_of_threads(case: Case) -> None:
    kernel = kernel_of(case)
    for number in range(len(case.sizes)):
        for seed in (1, 2):
            got = run(kernel, name_of(case), fed(kernel, case, number), library_of(case), seed)
            assert_right(kernel, case, number, got)


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize(("case", "target"), COMPILED)
def test_its_text_compiles_and_nothing_is_spilled(case: Case, target: object) -> None:
    kernel, row = kernel_of(case), next(t for t in DEVICES if t == target)
    if row.capability < CORES_SINCE and any(isinstance(s, (Mma, CopyAsync)) for s in all_statements(kernel)):
        pytest.skip("a kernel for this device multiplies by threads, and copies by registers")
    kernel = kernel if row.capability >= DEPENDENT_SINCE and not row.portable else independent(kernel)
    made = unspilled(device_text(kernel, name_of(case)), row.flags, COMPILER)
    for phase, used in zip(kernel.phases, made.functions, strict=not row.portable):
        assert phase.launch is not None
        assert used.spills == 0
        assert used.registers * (phase.launch.block.constant or 0) <= 1 << 16
        if phase.launch.dependent and row.capability >= DEPENDENT_SINCE and not row.portable:
            assert before_the_wait(made.code, used.function) == set()


@pytest.mark.skipif(not libraries(), reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.parametrize("flags", [("--gpu-architecture=sm_90",), ("--gpu-architecture=sm_80",)], ids=str)
def test_registers_that_are_left_are_used_before_anything_is_spilled(flags: tuple[str, ...]) -> None:
    """Rows of an image's pixels, normalized and given twice: ptxas spilled two of 72 registers, for an 8th block."""
    text = device_text(independent(kernel_of(Case("pixels_given_twice", pixels_given_twice()))), "k")
    assert unspilled(text, flags, COMPILER).spills == 0


def test_images_of_any_size_are_checked_in_little_memory() -> None:
    """A text detector with three open sizes took 24 GB: all of them were 129 in a sample, of which a few blocks run."""
    b = Build()
    x = b.input("x", "batch", 96, "height", "width")
    case = Case("images_of_any_size", b.graph(b.node("Relu", b.node("Add", x, b.input("y", "batch", 96, 1, 1)))))
    lowered = lowered_of(case)
    assert not isinstance(lowered, Decision)
    tracemalloc.start()
    try:
        assert isinstance(schedule(lowered, case.layouts, TARGET), Kernel)  # it is verified after the last pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20, f"{peak / 2**20:.0f} MB at the peak"
