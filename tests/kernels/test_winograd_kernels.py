"""Kernels of Winograd's algorithm compute what the direct sums mean, on vectors of every width and any thread count."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import HERE, Case, verified
from tests.kernels.pool_host import compiler
from tests.kernels.winograd_cases import CASES

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)
