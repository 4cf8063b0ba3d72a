"""Samples measured by the workers of a Dask cluster, also where one of them is killed meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.config import Options
from onnxfuse.errors import DeviceError, UsageError
from onnxfuse.measure import cluster as clusters
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.tune import Tuned, tune
from tests.caches import own_cache
from tests.cli.conftest import Onnxfuse, chain

distributed = pytest.importorskip("distributed")


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("measured here")


@pytest.fixture(scope="module")
def workers() -> Iterator[Any]:
    """A cluster; the variables that it sets in this process would keep later tests from forking their children."""
    before = dict(os.environ)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=60
    ) as made:
        yield made
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def tuned(folder: Path, address: str, seconds: float = 20.0) -> Tuned:
    onnx.save(chain(), folder / "m.onnx")
    calls = replace(Calls(), time_samples=never)
    options = Options(cache_dir=own_cache(folder / "own"))
    return tune(folder / "m.onnx", options=options, seconds=seconds, threads=1, cluster=address, calls=calls)


def test_workers_measure(workers: Any, tmp_path: Path):
    found = tuned(tmp_path, workers.scheduler_address)
    assert found.samples and found.problems == ()
    assert all(0.01 < s.measured_us < 1e5 for s in found.samples)
    assert {s.left for s in found.samples} == {True, False}, "kernels, and nodes of the runtime"


def test_a_worker_is_killed_in_the_middle(workers: Any, tmp_path: Path):
    lost: list[int] = []

    def kill() -> None:
        """The first worker that is seen at work, by what the scheduler itself, in this process, knows."""
        until = time.monotonic() + 60
        while not lost and time.monotonic() < until:
            busy = [address for address, worker in tuple(workers.scheduler.workers.items()) if worker.processing]
            for nanny in tuple(workers.workers.values()):
                if nanny.worker_address in busy[:1]:
                    os.kill(nanny.pid, signal.SIGKILL)
                    lost.append(nanny.pid)
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    found = tuned(tmp_path, workers.scheduler_address)
    killer.join()
    assert lost, "nobody was seen at work"
    assert found.samples and found.problems == ()


def test_workers_of_another_kind_do_not_measure(workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clusters, "version", lambda package: "another")
    workers.wait_for_workers(2, timeout=60)  # the one that was killed before starts again
    with pytest.raises(DeviceError, match="none of its 2 workers has this machine's processor"):
        tuned(tmp_path, workers.scheduler_address)


def test_an_unreachable_scheduler(onnxfuse: Onnxfuse, model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clusters, "_SECONDS", 1.0)
    said = onnxfuse("tune", model, "--cluster", "tcp://127.0.0.1:9", "--cache-dir", "own")
    assert said.code == 5 and "no scheduler answers at tcp://127.0.0.1:9" in said.err
    said = onnxfuse("tune", model, "--cluster", "nonsense://", "--cache-dir", "own")
    assert said.code == 5 and "no scheduler answers" in said.err


def test_without_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="needs dask"):
        tuned(tmp_path, "tcp://127.0.0.1:9")
