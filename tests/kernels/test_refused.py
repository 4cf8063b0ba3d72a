"""No case of a table is refused for any machine class, so that every case is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from onnxfuse.ir.kernel import Kernel
from tests.kernels.compiled import BUILDS, Case, kernel_of
from tests.kernels.tables import TABLES

SOME = 48  # of how many cases one is tried: those that run are asserted to have a kernel where they run


def refused(cases: Sequence[Case], target: str, step: int) -> Counter[str]:
    """By code, the cases of a table for which there is no kernel; a bug is raised."""
    made = [kernel_of(case, BUILDS[target]) for case in cases[::step]]
    return Counter(each.code for each in made if not isinstance(each, Kernel))


@pytest.mark.parametrize("target", BUILDS)
def test_no_case_is_refused(target: str) -> None:
    assert {name: found for name, table in TABLES.items() if (found := refused(table.cases, target, SOME))} == {}


@pytest.mark.slow
@pytest.mark.parametrize("target", BUILDS)
def test_no_case_is_refused_on_any_target(target: str) -> None:
    assert {name: found for name, table in TABLES.items() if (found := refused(table.cases, target, 1))} == {}
