"""Options of the test run."""

from __future__ import annotations

import pytest

from onnxfuse.pipeline import gained


@pytest.fixture(autouse=True)
def _quick_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds measure what they gain only where a test asks for it (`gain=True`, `--gain`), or tests that default."""
    monkeypatch.setattr(gained, "wanted", lambda context: context.options.gain is True)
    monkeypatch.setenv("ONNXFUSE_GAIN", "0")  # for those that are run as programs


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make golden` and `make fuzz`."""
    parser.addoption("--update-golden", action="store_true", help="write the sections of tests/golden/*.case anew")
    parser.addoption("--fuzz-examples", type=int, default=200, help="how many random models the slow test tries")
