"""Kernels of contractions compute what their rows mean, on vectors of every width and with any number of threads."""

from __future__ import annotations

import pytest

from onnxfuse.ir.kernel import Kernel
from tests.kernels.compiled import HERE, SHARING, Case, scheduled, verified
from tests.kernels.contraction_cases import BLOCKWISE, CASES
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("target", [*HERE, SHARING])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)


@pytest.mark.parametrize("case", BLOCKWISE, ids=lambda c: c.name)
def test_rows_are_packed_by_the_task_that_uses_them(case: Case) -> None:
    kernel = scheduled(case, "little-cache")
    assert isinstance(kernel, Kernel)
    assert not kernel.scratch and [b.name for b in kernel.phases[0].locals] == ["packed", "acc"]
    verified(BLOCKWISE, case, "little-cache")
