"""ONNX's own backend suite in kernels of the library: `operators.txt` names a test of each operator that runs there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backend.driver import outcomes
from tests.backend.suite import cases_of, with_row
from tests.kernels.pool_host import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

LEAST = 100  # distinct operators
TABLE = Path(__file__).with_name("operators.txt")


def chosen() -> dict[str, str]:
    """The test that is run of each operator."""
    return dict(line.split() for line in TABLE.read_text().splitlines())


def test_operators_pass_a_test_of_the_suite_in_a_kernel(tmp_path: Path) -> None:
    table = chosen()
    assert len(table) >= LEAST
    found = outcomes([cases_of(op)[name] for op, name in table.items()], tmp_path)
    assert {name: o.wrong for name, o in found.items() if o.wrong} == {}
    assert {name: o.refusals for name, o in found.items() if not o.ran} == {}


@pytest.mark.slow
def test_every_test_of_the_suite_that_becomes_a_kernel_passes(tmp_path: Path) -> None:
    found = {op: outcomes(list(cases_of(op).values()), tmp_path) for op in with_row()}
    assert {name: o.wrong for all_of in found.values() for name, o in all_of.items() if o.wrong} == {}
    silent = [name for all_of in found.values() for name, o in all_of.items() if not o.ran and not o.refusals]
    assert silent == []
    assert {op for op, all_of in found.items() if any(o.ran for o in all_of.values())} == chosen().keys()
