"""`tune` of schedule candidates of contractions, with the real compiler, runtime and clock: a slow one is replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.config import Options
from onnxfuse.errors import AnsweredNo
from onnxfuse.ir.kernel import Kernel
from onnxfuse.pipeline import optimize
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.tune import Tuned, tune
from onnxfuse.render.cpp import render
from onnxfuse.render.source import Source
from onnxfuse.report.lock import lock_in
from onnxfuse.report.result import Result
from tests.caches import own_cache
from tests.calls import on_cpu
from tests.cli.test_tune import never
from tests.models.planted import Slow


@pytest.fixture(scope="module", autouse=True)
def _few_candidates() -> Iterator[None]:
    """The usual candidate of a contraction and two others: each is compiled and measured."""
    with patch("onnxfuse.pipeline.candidate_tuning.EACH", 3):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("schedules")
    own_cache(made / "cache")
    return made


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((256, 192)).astype(np.float32) / np.float32(16)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "product"), helper.make_node("Relu", ["a"], ["y"], "relu")]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [120, size]) for n, size in (("x", 256), ("y", 192))]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


def built(model: Path, folder: Path, calls: Calls, **changes: object) -> Result:
    options = {"cache_dir": str(folder / "cache"), "gain": False, "overwrite": True, **changes}
    return optimize(model, folder / "out.onnx", calls=calls, **options)


def schedule_of(result: Result) -> str:
    (group,) = result.groups
    return group.schedules[0][0].schedule


@pytest.fixture(scope="module")
def usual(model: Path, folder: Path) -> str:
    """The schedule that is predicted to be fastest."""
    return schedule_of(built(model, folder, on_cpu()))


@pytest.fixture(scope="module")
def calls(usual: str) -> Calls:
    """Kernels with the schedule that is predicted best are a millisecond slower than they should be."""

    def slow_usual(kernel: Kernel, symbol: str, name: str, flags: tuple[str, ...]) -> Source:
        taken = kernel.choices[0].candidates[0][0] if kernel.choices else ""
        return (Slow("", turns=1_000_000) if taken == usual else render)(kernel, symbol, name, flags)

    return on_cpu(render=slow_usual)


@pytest.fixture(scope="module")
def tuned(model: Path, folder: Path, calls: Calls) -> Tuned:
    options = Options(cache_dir=str(folder / "cache"))
    with patch("onnxfuse.pipeline.tune.areas_between", lambda *_: []):  # keep the product a kernel
        return tune(model, options=options, seconds=240.0, threads=1, calls=calls)


def test_predictions_are_of_as_many_threads_as_samples_ran_on(model: Path, tmp_path: Path) -> None:
    """On one thread and on one per core, as is the default: schedules have a prediction of each."""
    found = tune(model, options=Options(cache_dir=own_cache(tmp_path / "cache")), seconds=240.0, lock=tmp_path / "l")
    assert {each.threads for each in found.samples} == {1, len(os.sched_getaffinity(0))}
    assert all(each.predicted_us > 0 for each in found.samples)


def test_nothing_runs_beside_the_samples_of_a_large_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Builds let another process run such a model ahead, one at a time; `tune` loads it several times."""
    monkeypatch.setattr("onnxfuse.pipeline.verdict.SMALL", 0)
    calls = replace(on_cpu(), verify_reference=never)
    found = tune(
        model,
        options=Options(cache_dir=own_cache(tmp_path / "cache")),
        seconds=5.0,
        threads=1,
        calls=calls,
        lock=tmp_path / "l",
    )
    assert found.samples


def test_tune_finds_a_faster_schedule(tuned: Tuned, usual: str) -> None:
    (found,) = tuned.faster_schedules
    assert found.taken and found.instead_of == usual != found.schedule
    assert found.places == 1 and found.after_us < 0.8 * found.before_us


def test_the_next_build_uses_it_without_measuring(
    tuned: Tuned, model: Path, folder: Path, calls: Calls, usual: str
) -> None:
    settled = replace(calls, time_samples=never, profile_models=never)
    made = built(model, folder, settled)
    assert schedule_of(made) == tuned.faster_schedules[0].schedule
    assert made.verify is not None and made.verify.ok
    assert sum("as `tune` measured" in note for note in made.notes) == 1
    assert schedule_of(built(model, folder, settled, strategy="anchors")) == usual


def test_the_lock_file_replays_elsewhere(tuned: Tuned, model: Path, folder: Path, calls: Calls, tmp_path: Path) -> None:
    here = built(model, folder, calls)
    lock = {"lock": tuned.lock, "check": True, "cache_dir": own_cache(tmp_path / "cache")}
    there = built(model, folder, calls, **lock)
    assert (schedule_of(there), there.domain) == (schedule_of(here), here.domain)
    text = json.loads(Path(tuned.lock).read_text())
    assert [each["schedule"] for each in text["faster_schedules"]] == [tuned.faster_schedules[0].schedule]
    with pytest.raises(AnsweredNo, match="does not fit"):
        built(model, folder, calls, min_group=1, **lock)


def test_lock_files_of_the_first_schema_version_are_still_read(tuned: Tuned) -> None:
    now = Path(tuned.lock).read_text()
    document = json.loads(now)
    document["schema_version"] = 1
    document["ways"] = [
        {"way" if key == "schedule" else key: value for key, value in each.items()}
        for each in document.pop("faster_schedules")
    ]
    assert lock_in(json.dumps(document), "old").faster_schedules == lock_in(now, "new").faster_schedules != ()
