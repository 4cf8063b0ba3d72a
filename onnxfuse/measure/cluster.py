"""Samples measured by other machines of this one's kind, through a Dask cluster (the extra `cluster`).

What is sent to a worker are the bytes of models and of the library of kernels, what comes back are times. A machine
measures one thing at a time, however many workers it has. Dask hands on what a worker had begun when it was lost.
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

from onnxfuse.errors import DeviceError, OnnxFuseError, UsageError
from onnxfuse.measure.machine import identity
from onnxfuse.measure.samples import Task, Timed, time_samples
from onnxfuse.runtime.folders import work_folder

TOGETHER = 4  # samples that a worker gets at once: they are timed in turns
RETRIES = 3  # workers that may be lost with the same samples
_SECONDS = 20.0  # that a scheduler has to answer


class Cluster:
    """The workers of a scheduler that may measure for this machine: equal processors, versions and numbers of cores.

    Raises UsageError without dask.distributed, DeviceError where no scheduler answers, or no worker is like this one.
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
        with suppress(Exception):  # of a scheduler that is gone
            self._client.close()

    def time_samples(
        self,
        tasks: Sequence[Task],
        *,
        libraries: Sequence[Path] = (),
        threads: int = 1,
        seconds: float = 0.1,
        time_limit: float | None = None,
    ) -> list[Timed]:
        """As `samples.time_samples`, by the workers. Raises DeviceError when there are none any more."""
        workers, until = self._workers(), time.monotonic() + (time_limit if time_limit is not None else 3600.0)
        held = [each.read_bytes() for each in libraries]
        parts = [tasks[at : at + TOGETHER] for at in range(0, len(tasks), TOGETHER)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model with weights is said to be a large graph
            asked = [
                self._client.submit(
                    timed_here, [(asdict(t), Path(t.model).read_bytes()) for t in part], held,
                    threads=threads, seconds=seconds, workers=workers, retries=RETRIES, pure=False,
                )
                for part in parts
            ]  # fmt: skip
            try:
                return [t for part, each in zip(parts, asked, strict=True) for t in self._answer(each, part, until)]
            finally:
                self._client.cancel(asked)

    def _answer(self, asked: Any, part: Sequence[Task], until: float) -> Iterator[Timed]:
        try:
            found = asked.result(timeout=max(0.1, until - time.monotonic()))
        except TimeoutError:
            self._workers()
            raise DeviceError(f"tune: the cluster at {self._address} did not answer in time") from None
        except Exception as problem:  # of Dask, or what a worker raised
            return iter([Timed(problem=f"on the cluster: {type(problem).__name__}")] * len(part))
        return iter([Timed(**each) for each in found])

    def _workers(self) -> list[str]:
        """The addresses of those that are like this machine. Raises DeviceError."""
        try:
            found: Mapping[str, Any] = self._client.run(about, on_error="return")
        except Exception as problem:
            raise DeviceError(f"tune: the cluster at {self._address} is lost: {problem}") from None
        alike = [address for address, told in found.items() if not isinstance(told, Exception) and told == about()]
        if not alike:
            said = f"none of its {len(found)} workers has this machine's processor, cores and versions"
            raise DeviceError(f"tune: the cluster at {self._address} cannot measure for this machine: {said}")
        return alike


def about() -> tuple[str, ...]:
    """What machines have in common that measure for each other."""
    return (*identity(), import_module("onnxruntime").__version__, version("onnxfuse"))


def timed_here(
    given: Sequence[tuple[Mapping[str, Any], bytes]], libraries: Sequence[bytes], *, threads: int, seconds: float
) -> list[dict[str, Any]]:
    """What a worker does: time models that came as bytes. The fields of a `Timed` for each."""
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
            return [asdict(Timed(problem=problem.message))] * len(tasks)


@contextmanager
def _alone() -> Iterator[None]:
    """One measurement at a time on this machine, whoever's worker it is."""
    path = Path(tempfile.gettempdir(), f"onnxfuse-timing-{os.getuid()}.lock")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
