"""Libraries and model files that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.runtime import twice


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a right kernel."""
    return twice.built(tmp_path_factory.mktemp("good"), twice.glue())


@pytest.fixture(scope="session")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a kernel whose output is one percent too large."""
    return twice.built(tmp_path_factory.mktemp("wrong"), twice.glue(), defines="#define GAIN 1.01f")


@pytest.fixture(scope="session")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of a kernel that writes where it must not."""
    return twice.built(tmp_path_factory.mktemp("crashing"), twice.glue(), defines="#define CRASH")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `plain.onnx` and `fused.onnx`, which compute the same; the fused one has three fused nodes."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(twice.model(nodes=3, fused=False), folder / "plain.onnx")
    onnx.save(twice.model(nodes=3), folder / "fused.onnx")
    return folder
