"""Large models: the original runs in another process during the build, with the same verdict."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.pipeline import optimize, verdict
from onnxfuse.pipeline.calls import Calls
from onnxfuse.report.result import Result
from onnxfuse.verify import verify_groups, verify_models, verify_reference
from tests.caches import own_cache
from tests.calls import on_cpu
from tests.models.planted import Planted
from tests.models.test_networks import needs_compiler

pytestmark = needs_compiler


@pytest.fixture
def beside(model: Path, kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Builds the model of this folder as if it were large."""
    monkeypatch.setattr(verdict, "SMALL", 0)

    def go(calls: Calls | None = None, **changes: Any) -> Result:
        settings = {"cache_dir": str(kernels), "gain": False, "overwrite": True, "verify": True} | changes
        return optimize(model, "o.onnx", calls=calls or Calls(), **settings)

    return go


def test_the_verdict_is_that_of_a_build_alone(beside: Callable[..., Result], monkeypatch: pytest.MonkeyPatch):
    used: list[int] = []

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        def go(*arguments: Any, **settings: Any) -> Any:
            used.append(settings["reference"].stat().st_size)
            return function(*arguments, **settings)

        return go

    found = beside(Calls(verify_models=seen(verify_models), verify_groups=seen(verify_groups)))
    monkeypatch.setattr(verdict, "SMALL", 1 << 40)
    alone = beside()
    assert len(used) == 2 and all(used)
    assert found.verify is not None and found.verify.ok and found.verify == alone.verify
    assert [each.seconds is not None for each in found.loading.values()] == [True, True, True]


def test_a_wrong_kernel_is_dropped_all_the_same(beside: Callable[..., Result]):
    right = beside()
    planted = Planted(0)
    found = beside(on_cpu(render=planted))
    assert found.kernels < right.kernels and found.verify is not None and found.verify.ok
    assert {each.code for each in found.refusals} >= {"E-NUMERICS"}


def test_an_original_without_a_result_is_run_later(beside: Callable[..., Result], model: Path, tmp_path: Path):
    def refuses(a: Any, out: Path, **settings: Any) -> Path | None:
        return verify_reference(tmp_path / "no such model", out, **settings)

    assert beside(replace(Calls(), verify_reference=refuses)).verify == beside().verify


def test_nothing_is_started_where_the_verdict_is_known(beside: Callable[..., Result], tmp_path: Path):
    """In a cache of this test: others verify the same model."""
    beside = partial(beside, cache_dir=own_cache(tmp_path / "cache"))
    started: list[int] = []

    def counted(*arguments: Any, **settings: Any) -> Path | None:
        started.append(1)
        return verify_reference(*arguments, **settings)

    calls = Calls(verify_reference=counted)
    beside(calls, no_cache=True, verify=None)
    beside(calls, verify=None)
    assert len(started) == 2
    assert beside(calls, verify=None).verify is not None and len(started) == 2
    beside(calls, verify=None, memory_budget="8GB", no_cache=True)
    assert len(started) == 2, "two processes at once take more memory than one"


@pytest.mark.parametrize(("more", "first"), [({}, "verify_reference"), ({"input_shape": ("x:4,32",)}, "load")])
def test_it_is_begun_before_the_model_is_loaded(
    beside: Callable[..., Result], more: dict[str, Any], first: str, tmp_path: Path
):
    """Where the sizes of inputs follow from the model alone."""
    called: list[str] = []

    def noted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **settings: Any) -> Any:
            called.append(name)
            return getattr(Calls(), name)(*arguments, **settings)

        return call

    def late(*arguments: Any, **settings: Any) -> Any:
        time.sleep(0.2)
        return noted("load")(*arguments, **settings)

    calls = Calls(verify_reference=noted("verify_reference"), load=late)
    found = beside(calls, verify=None, cache_dir=own_cache(tmp_path / "cache"), **more)
    assert found.verify is not None and found.verify.ok
    assert called[0] == first and called.count("verify_reference") == 1


def test_a_file_that_was_moved_is_known_once_it_is_loaded(beside: Callable[..., Result], model: Path, tmp_path: Path):
    """What was begun for it is ended, and its verdict is the one that is kept."""
    beside = partial(beside, verify=None, cache_dir=own_cache(tmp_path / "cache"))
    beside()
    os.utime(model, ns=(1, 1))
    ended: list[bool] = []

    def waits(a: Path, out: Path, *, stop: threading.Event, **settings: Any) -> Path | None:
        ended.append(stop.wait(60))
        return None

    found = beside(Calls(verify_reference=waits))
    assert ended == [True] and found.verify is not None and found.verify.ok and found.verify.cached


def test_the_original_that_a_process_dies_of_costs_no_build(beside: Callable[..., Result], model: Path):
    proto = onnx.load(model)
    node = onnx.helper.make_node("NoSuchOperator", ["x"], ["nowhere"], domain="nowhere")
    proto.graph.node.append(node)
    proto.opset_import.append(onnx.helper.make_opsetid("nowhere", 1))
    onnx.save(proto, model)
    found = beside(verify=None)
    assert found.verify is not None and found.verify.ok is None
