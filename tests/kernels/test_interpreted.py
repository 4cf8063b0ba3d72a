"""All kernels of the kernel tests run in the interpreter, without a compiler, with the results of their definitions.

`verify` finds nothing in any of them, and the compiled ones compute the same.

A run takes all cases for one machine class and every eleventh of the other classes' kernels, but for the cases whose
float64 reference takes seconds; those and all the others run under the `slow` marker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify
from tests.kernels.compiled import BRIEF, BUILDS, LIKE, Array, Case, check, expected, fed, library_of, packed, scheduled
from tests.kernels.pool_host import Pool, compiler
from tests.kernels.tables import Unit, kernels, units

MAIN, SOME, FEW = "x86-64-v4", 11, 41
# 6144 terms, or thousands of columns: their reference takes seconds
LONG = ("gemm_turned_deep", "gemm_deep", "bfloat16_gemm_deep", "mlp_430", "left_joined_M", "gemm_any_wide")


def chosen(number: int, case: Case, target: str) -> bool:
    """Whether a kernel is run every time."""
    return not case.name.startswith(LONG) and (target in (MAIN, "little-cache") or number % SOME == 0)


EVERY = [
    pytest.param(case, target, id=f"{case.name}-{target}", marks=[] if chosen(i, case, target) else [pytest.mark.slow])
    for i, (case, target) in enumerate(kernels())
]
COMPARED = [case for case, target in kernels() if target == MAIN and not case.name.startswith(LONG)][::FEW]
COMPILED = [(unit, case) for unit in units() if unit.usual and unit.target == MAIN for case in unit.cases][::FEW]


def kernel_for(case: Case, target: str) -> Kernel:
    kernel = scheduled(case, target)
    if isinstance(kernel, Exception):
        raise kernel
    assert isinstance(kernel, Kernel), kernel
    return kernel


def assert_right(kernel: Kernel, case: Case, number: int, outputs: Sequence[Array]) -> None:
    wanted = expected(case, number)
    for p, got in zip(kernel.outputs, outputs, strict=True):
        check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))


@pytest.mark.parametrize(("case", "target"), EVERY)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    kernel = kernel_for(case, target)
    if target in LIKE and kernel == kernel_for(case, LIKE[target]):
        pytest.skip(f"the same kernel as for {LIKE[target]}")
    assert verify(kernel) == ()
    for number in range(len(case.sizes)):
        assert_right(kernel, case, number, interpret(kernel, fed(kernel, case, number), BUILDS[target].lanes))


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("case", COMPARED, ids=lambda c: c.name)
def test_any_number_of_tasks_computes_the_same(case: Case, tasks: int) -> None:
    kernel = kernel_for(case, MAIN)
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), BUILDS[MAIN].lanes, tasks))


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("unit", "case"), COMPILED, ids=[case.name for _, case in COMPILED])
def test_the_compiled_kernel_computes_the_same(unit: Unit, case: Case) -> None:
    """Within twice the bound of either, to the bit where nothing is rounded."""
    kernel = kernel_for(case, MAIN)
    inputs = fed(kernel, case, 0)
    with Pool(2, BRIEF) as pool:
        compiled = pool.load(library_of(unit.cases, MAIN), f"onnxfuse_{case.name}").run(*inputs)
    for p, one, other in zip(kernel.outputs, interpret(kernel, inputs, BUILDS[MAIN].lanes), compiled, strict=True):
        want, error = (packed(p.layout, a) for a in expected(case, 0)[p.value])
        check(other, p.dtype, want, error)
        if p.dtype.floating:
            check(other, p.dtype, one.astype(np.float64), 2 * error)
        else:
            assert (one == other).mean() >= (1 if not error.any() else 0.99)
