"""Options of the test run."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.pipeline import gain_step

ALLOCATED = 50_000  # containers that are made between two looks for cycles, as in a build


@pytest.fixture(autouse=True)
def _quick_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds measure what they gain only where a test asks for it (`gain=True`, `--gain`), or tests that default."""
    monkeypatch.setattr(gain_step, "wanted", lambda context: context.options.gain is True)
    monkeypatch.setenv("ONNXFUSE_GAIN", "0")  # for those that are run as programs


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of `make golden` and `make fuzz`."""
    parser.addoption("--update-golden", action="store_true", help="write the sections of tests/golden/*.case anew")
    parser.addoption("--fuzz-examples", type=int, default=200, help="how many random models the slow test tries")


TORCH = ("test_full.py", "test_browser_full.py")  # files of slow tests alone, which import torch: 4 s of each worker


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests would all be left out are not read where that takes long."""
    return True if collection_path.name in TORCH and config.option.markexpr == "not slow" else None


def pytest_configure() -> None:
    """Look for cycles rarely: collecting tests makes millions of containers that live as long as the run."""
    gc.set_threshold(ALLOCATED, *gc.get_threshold()[1:])


def pytest_collection_finish() -> None:
    """No look for cycles goes through what was collected."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Hypothesis, which may be imported for the summary, asks who refers to an object; frozen ones are not seen."""
    gc.unfreeze()


def pytest_unconfigure() -> None:
    """Pytest looks for cycles five times at the end: once goes through what was collected."""
    gc.collect()
    gc.freeze()


LONG = (
    "test_check.py", "test_sanitized.py", "test_sanitized_networks.py", "test_guided.py", "test_backend.py",
    "test_fuzz.py", "test_adding.py", "test_dynamic_sizes.py", "test_best.py",
)  # fmt: skip
LEFT = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose single tests take longest go first: at the end of a run no worker waits for one of them."""
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """How many slow tests this run leaves out; a worker tells it to the process that started it."""
    config = items[0].config
    config.stash[LEFT] = sum(item.get_closest_marker("slow") is not None for item in items)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left"] = config.stash[LEFT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All workers leave out the same."""
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How much is left to another run, which pytest does not say where workers run the tests."""
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"{left} tests marked slow are left to `make slow`")
