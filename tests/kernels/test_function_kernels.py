"""Kernels of operators that only their function bodies define compute what these mean."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import HERE, Case, verified
from tests.kernels.function_cases import CASES
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_body_means(case: Case, target: str) -> None:
    verified(CASES, case, target)
