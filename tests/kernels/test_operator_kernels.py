"""Kernels of single operators compute what their rows mean, for every element type that a row is tested with."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Case, verified
from tests.kernels.operator_cases import CASES
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_kernel_computes_what_its_row_means(case: Case) -> None:
    verified(CASES, case, "x86-64-v3")
