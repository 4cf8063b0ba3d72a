"""Kernels of movement compute what their rows mean, on vectors of every width and with any number of threads."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import HERE, Case, verified
from tests.kernels.movement_cases import CASES
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_rows_mean(case: Case, target: str) -> None:
    verified(CASES, case, target)
