"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes what is, instead of comparing with what was."""
    parser.addoption("--update-golden", action="store_true", help="write the sections of tests/golden/*.case anew")
