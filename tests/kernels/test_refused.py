"""No case of a table is refused on any machine class: a case that has no kernel is compared with nothing."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import pytest

from onnxfuse.ir.kernel import Kernel
from tests.kernels import (
    border_cases,
    chain_cases,
    code_cases,
    contraction_cases,
    elementwise_cases,
    form_cases,
    function_cases,
    half_cases,
    movement_cases,
    operator_cases,
    row_cases,
    window_cases,
    winograd_cases,
)
from tests.kernels.compiled import BUILDS, kernel_of

TABLES = (
    border_cases, chain_cases, code_cases, contraction_cases, elementwise_cases, form_cases, function_cases, half_cases,
    movement_cases, operator_cases, row_cases, window_cases, winograd_cases,
)  # fmt: skip
SOME = 48  # of how many cases one is tried: those that run are asserted to have a kernel where they run


def refused(module: ModuleType, target: str, step: int) -> Counter[str]:
    """By code, the cases of a table for which there is no kernel; a bug is raised."""
    made = [kernel_of(case, BUILDS[target]) for case in module.CASES[::step]]
    return Counter(each.code for each in made if not isinstance(each, Kernel))


@pytest.mark.parametrize("target", BUILDS)
def test_no_case_is_refused(target: str) -> None:
    assert {m.__name__: found for m in TABLES if (found := refused(m, target, SOME))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("target", BUILDS)
def test_no_case_at_all_is_refused(target: str) -> None:
    assert {m.__name__: found for m in TABLES if (found := refused(m, target, 1))} == {}
