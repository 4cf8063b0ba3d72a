"""Samples timed on other machines of the same kind through a Dask cluster (the extra `cluster`).

Models and kernel libraries are sent to workers as bytes; workers return times. A machine runs one measurement at a
time, however many workers it has. When a worker is lost, Dask reassigns its samples.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onnxfuse.errors import DeviceError, OnnxFuseError, UsageError, counted
from onnxfuse.measure.machine import identity
from onnxfuse.measure.samples import SampleTime, Task, time_samples
from onnxfuse.runtime.folders import work_folder

BATCH = 4  # samples in one job of a worker, timed in turns
RETRIES = 3  # how often a job is reassigned after a lost worker
_SECONDS = 20.0  # timeout for the connection to the scheduler


class Cluster:
    """The workers of a scheduler that have the same processor, number of cores and versions as this machine.

    Raises UsageError without dask.distributed, DeviceError if no scheduler answers or no worker matches this machine.
    """

    def __init__(self, address: str) -> None:
        try:
            distributed: Any = import_module("distributed")
        except ImportError:
            raise UsageError("tune: --cluster needs dask.distributed", hint="pip install 'onnxfuse[cluster]'") from None
        try:
            self._client = distributed.Client(address, timeout=_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as problem:
            said = str(problem).splitlines()[0]
            raise DeviceError(f"tune: no scheduler answers at {address}: {said}", hint="see --cluster") from None
        self._address = address

    def __enter__(self) -> Cluster:
        self._workers()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # the scheduler may have ended
            self._client.close()

    def time_samples(
        self,
        tasks: Sequence[Task],
        *,
        libraries: Sequence[Path] = (),
        threads: int = 1,
        seconds: float = 0.1,
        time_limit: float | None = None,
    ) -> list[SampleTime]:
        """Like `samples.time_samples`, on the workers. Raises DeviceError when no worker is left."""
        workers, until = self._workers(), time.monotonic() + (time_limit if time_limit is not None else 3600.0)
        library_bytes = [each.read_bytes() for each in libraries]
        parts = [tasks[at : at + BATCH] for at in range(0, len(tasks), BATCH)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Dask warns of large graphs when models have weights
            futures = [
                self._client.submit(
                    timed_here, [(asdict(t), Path(t.model).read_bytes()) for t in part], library_bytes,
                    threads=threads, seconds=seconds, workers=workers, retries=RETRIES, pure=False,
                )
                for part in parts
            ]  # fmt: skip
            try:
                return [t for part, each in zip(parts, futures, strict=True) for t in self._answer(each, part, until)]
            finally:
                self._client.cancel(futures)

    def _answer(self, future: Any, part: Sequence[Task], until: float) -> Iterator[SampleTime]:
        try:
            found = future.result(timeout=max(0.1, until - time.monotonic()))
        except TimeoutError:
            self._workers()
            raise DeviceError(f"tune: the cluster at {self._address} did not answer in time") from None
        except Exception as problem:  # raised by Dask or by the worker
            return iter([SampleTime(problem=f"on the cluster: {type(problem).__name__}")] * len(part))
        return iter([SampleTime(**each) for each in found])

    def _workers(self) -> list[str]:
        """Addresses of the workers that match this machine. Raises DeviceError if there are none."""
        try:
            found: Mapping[str, Any] = self._client.run(fingerprint, on_error="return")
        except Exception as problem:
            raise DeviceError(f"tune: the cluster at {self._address} is lost: {problem}") from None
        alike = [name for name, facts in found.items() if not isinstance(facts, Exception) and facts == fingerprint()]
        if not alike:
            said = f"none of its {counted(len(found), 'worker')} has this machine's processor, cores and versions"
            raise DeviceError(f"tune: the cluster at {self._address} cannot measure for this machine: {said}")
        return alike


def fingerprint() -> tuple[str, ...]:
    """What must be equal on two machines for one to measure for the other: processor, cores, versions."""
    return (*identity(), import_module("onnxruntime").__version__, version("onnxfuse"))


def timed_here(
    given: Sequence[tuple[Mapping[str, Any], bytes]], libraries: Sequence[bytes], *, threads: int, seconds: float
) -> list[dict[str, Any]]:
    """Run by a worker: time models given as bytes. Returns the fields of a `SampleTime` for each."""
    with work_folder() as folder, _alone():
        paths = [folder / f"lib{number}.so" for number in range(len(libraries))]
        for path, data in zip(paths, libraries, strict=True):
            path.write_bytes(data)
        tasks = []
        for number, (fields, data) in enumerate(given):
            model = folder / f"sample{number}.onnx"
            model.write_bytes(data)
            tasks.append(Task(**{**fields, "model": str(model)}))
        try:
            return [asdict(each) for each in time_samples(tasks, libraries=paths, threads=threads, seconds=seconds)]
        except OnnxFuseError as problem:
            return [asdict(SampleTime(problem=problem.message))] * len(tasks)


@contextmanager
def _alone() -> Iterator[None]:
    """A lock so that one measurement runs at a time on this machine, across all workers and users."""
    path = Path(tempfile.gettempdir(), f"onnxfuse-timing-{os.getuid()}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
