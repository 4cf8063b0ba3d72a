"""Verdicts are cached, and a cached verdict is used only for the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.pipeline import optimize
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.verdict_cache import VerdictCache
from onnxfuse.report.result import Verified
from onnxfuse.verify import verify_models
from onnxfuse.verify.verdicts import Verdict


@pytest.fixture
def verified(model: Path, tmp_path: Path, kernels: Path) -> Callable[..., tuple[Verified, int]]:
    """Builds the model of this folder; the verdict, and how often two models were compared for it.

    Compiled kernels come from the shared cache, verdicts from one of this test.
    """

    def go(**changes: Any) -> tuple[Verified, int]:
        compared: list[int] = []

        def counted(*arguments: Any, **settings: Any) -> Verdict:
            compared.append(1)
            return verify_models(*arguments, **settings)

        folder = tmp_path / "verdicts"

        def memory(cache: Any, *arguments: Any) -> VerdictCache:
            found: VerdictCache = Calls().memory_of(cache, *arguments)
            return found if found.cache is None else replace(found, cache=replace(found.cache, root=folder))

        calls = Calls(verify_models=counted, memory_of=memory)
        result = optimize(model, "o.onnx", calls=calls, **{"cache_dir": str(kernels), "overwrite": True} | changes)
        assert result.verify is not None
        return result.verify, len(compared)

    return go


def test_the_same_bytes_are_compared_once(verified: Callable[..., tuple[Verified, int]]):
    first, compared = verified()
    assert first.ok and not first.cached and compared == 1
    second, compared = verified()
    assert second == replace(first, cached=True) and compared == 0


def test_an_explicit_verify_compares_again(verified: Callable[..., tuple[Verified, int]]):
    verified()
    assert verified(verify=True)[1] == 1
    assert verified(no_cache=True)[1] == 1
    assert verified()[1] == 0


@pytest.mark.parametrize("changes", [{"seed": 1}, {"rtol": 0.5}, {"inputs": "x.npz"}])
def test_other_settings_have_their_own_verdict(verified: Callable[..., tuple[Verified, int]], changes: dict[str, Any]):
    verified()
    np.savez("x.npz", x=np.ones((4, 32), np.float32))
    assert verified(**changes)[1] == 1


def test_other_weights_have_their_own_verdict(verified: Callable[..., tuple[Verified, int]], model: Path):
    verified()
    proto = onnx.load(model)
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(proto, model)
    found, compared = verified()
    assert found.ok and not found.cached and compared == 1


def test_only_passing_verdicts_are_cached(verified: Callable[..., tuple[Verified, int]], tmp_path: Path):
    """A limit of zero is exceeded: the kernels are given up, and the next build finds that out again."""
    first, second = verified(rtol=0.0, atol=0.0), verified(rtol=0.0, atol=0.0)
    assert first == second and first[1] == 1
    assert not list((tmp_path / "verdicts").glob("*/*"))


def test_a_damaged_verdict_counts_as_none(verified: Callable[..., tuple[Verified, int]], tmp_path: Path):
    verified()
    entries = [each for each in (tmp_path / "verdicts").glob("*/*") if "runs" in each.read_text()]
    assert len(entries) == 1
    entries[0].write_text("{}")
    assert verified()[1] == 1
