"""All kernels of the kernel tests run in the interpreter, without a compiler, with the results of their definitions.

`verify` finds nothing in any of them. `test_compiled.py` compares compiled ones with them.

A run takes all cases for one machine class and every eleventh of the other classes' kernels; the others run under the
`slow` marker.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onnxfuse.ir.interpret import interpret
from onnxfuse.ir.kernel import Kernel
from onnxfuse.ir.verify import verify
from tests.kernels.compiled import BUILDS, LIKE, Array, Case, check, expected, fed, packed, scheduled
from tests.kernels.tables import kernels

MAIN, SOME, FEW = "x86-64-v4", 11, 41


def chosen(number: int, case: Case, target: str) -> bool:
    """Whether a kernel is run every time."""
    return target in (MAIN, "little-cache") or number % SOME == 0


EVERY = [
    pytest.param(case, target, id=f"{case.name}-{target}", marks=[] if chosen(i, case, target) else [pytest.mark.slow])
    for i, (case, target) in enumerate(kernels())
]
COMPARED = [case for case, target in kernels() if target == MAIN][::FEW]


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
        return  # every run interprets all of that class
    assert verify(kernel) == ()
    for number in range(len(case.sizes)):
        assert_right(kernel, case, number, interpret(kernel, fed(kernel, case, number), BUILDS[target].lanes))


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("case", COMPARED, ids=lambda c: c.name)
def test_any_number_of_tasks_computes_the_same(case: Case, tasks: int) -> None:
    kernel = kernel_for(case, MAIN)
    assert_right(kernel, case, 0, interpret(kernel, fed(kernel, case, 0), BUILDS[MAIN].lanes, tasks))
