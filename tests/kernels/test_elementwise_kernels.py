"""Kernels of elementwise operators compute what their rows mean, on vectors of every width and any thread count."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import HERE, Case, verified
from tests.kernels.elementwise_cases import CASES
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)
