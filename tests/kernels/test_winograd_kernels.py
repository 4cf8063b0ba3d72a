"""Kernels of Winograd's algorithm compute what the direct sums mean, on vectors of every width and any thread count."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel
from onnxfuse.schedule.cpu.winograd import HALF
from tests.kernels.compiled import HERE, Case, scheduled, verified
from tests.kernels.pool_host import compiler
from tests.kernels.winograd_cases import CASES

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


FLAT = ("winograd_dot_four", "winograd_line_blocks")  # images of one line: nothing slides over lines


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_case_goes_by_winograd(case: Case) -> None:
    kernel = scheduled(case, "x86-64-v4")
    assert isinstance(kernel, Kernel)
    found = HALF in {b.name for phase in kernel.phases for b in phase.locals}
    assert found != (case.name in FLAT)


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)
