"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make golden` and `make fuzz`."""
    parser.addoption("--update-golden", action="store_true", help="write the sections of tests/golden/*.case anew")
    parser.addoption("--fuzz-examples", type=int, default=200, help="how many random models the slow test tries")
