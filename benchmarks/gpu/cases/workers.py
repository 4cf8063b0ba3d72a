"""Cases in processes of their own: one that faults, hangs or dies is told, and another process takes the rest.

    python -m benchmarks.gpu.cases.workers SETUP.json

runs cases in this process alone, and says before each which it is: for tools that watch a process. The file has the
fields of `Setup`, and the names of cases.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.gpu.cases.kept import SEED, Array, Kept, cases
from benchmarks.gpu.devices import Cuda, Device, Emulated
from onnxfuse.ir.kernel import Kernel
from tests.kernels.compiled import Case, expected, fed, packed
from tests.kernels.rounding import check
from tests.threads.scheduled import scheduled

NONE, RIGHT, WRONG, LOST = "none", "right", "wrong", "lost"  # LOST: wrong, and its process is of no use any more
STARTING = 90.0  # seconds in which a process has to be ready
STARTS = 3  # of a process that is never ready, then its place stays empty
PRELOADED = [
    "benchmarks.gpu.cases.workers",
    "benchmarks.gpu.networks.full",
    "models.networks",
    "tests.threads.driver_mock",
]


@dataclass(frozen=True)
class Setup:
    """How a process runs cases.

    `few` are cases that the emulator compiles together; `kept` is a folder. Outputs are `compared` with the emulator's,
    with those that are kept where there is a folder.
    """

    emulated: bool = False
    few: tuple[str, ...] = ()
    kept: str | None = None
    compared: bool = True
    fault: str | None = None  # the case at which the process ends, to try what follows

    @property
    def folder(self) -> Path | None:
        """Where what was made beforehand lies."""
        return Path(self.kept) if self.kept is not None else None

    def device(self) -> Device:
        """The device itself, or the emulator."""
        kept = Kept(self.folder)
        return Emulated(few=tuple(map(named, self.few))) if self.emulated else Cuda(kept.compiled)


@dataclass(frozen=True)
class Outcome:
    """How a case ended: the largest share of its bound, and the distance from the emulator if that was compared."""

    case: str
    kind: str
    problem: str = ""
    share: float = 0.0
    apart: float | None = None
    seconds: float = field(default=0.0, compare=False)


@cache
def _named() -> dict[str, Case]:
    return {case.name: case for case in cases()}


def named(name: str) -> Case:
    """The case of a name."""
    return _named()[name]


# in a process that runs cases -----------------------------------------------------------------------------------------


def outcome(setup: Setup, device: Device, name: str) -> Outcome:
    """How a case ends on a device."""
    begin, case = time.monotonic(), named(name)
    if name == setup.fault:
        sys.exit(f"{name}: the process ends here, as it was asked to")
    share, problem = 0.0, ""
    apart: list[float] = []
    try:
        kernel = scheduled(case)
        if not isinstance(kernel, Kernel):
            return Outcome(name, NONE)
        for number in range(len(case.sizes)):
            found, away = _compared(setup, device, kernel, case, number)
            share, apart = max(share, found), [*apart, *away]
    except Exception as wrong:
        problem = f"{type(wrong).__name__}: {wrong}"[:300]
    kind = RIGHT if not problem else LOST if isinstance(device, Cuda) and not device.usable() else WRONG
    return Outcome(name, kind, problem, share, max(apart, default=None), time.monotonic() - begin)


def _compared(setup: Setup, device: Device, kernel: Kernel, case: Case, number: int) -> tuple[float, list[float]]:
    """Of one of the sizes of a case: the largest share of a bound, and the distances from the emulator's outputs."""
    inputs, wanted = fed(kernel, case, number), expected(case, number)
    found = device.run(case, kernel, inputs)
    shares = [
        check(got, p.dtype, *(packed(p.layout, a) for a in wanted[p.value]))
        for p, got in zip(kernel.outputs, found, strict=True)
    ]
    emulated = Kept(setup.folder).emulated(case, kernel, inputs) if setup.compared else None
    if emulated is None and setup.compared and setup.kept is None:
        emulated = Emulated(SEED, tuple(map(named, setup.few))).run(case, kernel, inputs)
    if emulated is None:
        return max(shares, default=0.0), []
    return max(shares, default=0.0), [_apart(a, b) for a, b in zip(found, emulated, strict=True)]


def _apart(a: Array, b: Array) -> float:
    """The largest difference of finite elements over the largest of them."""
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    return float(np.abs(x - y).max(initial=0.0) / max(np.abs(y).max(initial=0.0), 1e-30))


def _serve(setup: Setup, pipe: Connection) -> None:
    """Say that the device is there, then how each case ends whose name is sent."""
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            device = setup.device()
        except Exception as wrong:
            pipe.send(f"{type(wrong).__name__}: {wrong}"[:300])
            return
        pipe.send("")
        while True:
            ended = outcome(setup, device, pipe.recv())
            pipe.send(ended)
            if ended.kind == LOST:
                return


# in the process that has them -----------------------------------------------------------------------------------------


class Worker:
    """A process that runs cases, and is replaced where it is of no use."""

    def __init__(self, setup: Setup, seconds: float) -> None:
        self._setup, self._seconds, self._starts = setup, seconds, 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._process: Any = None
        self._pipe: Any = None

    def run(self, name: str) -> Outcome:
        """How a case ends, in at most so many seconds. Raises StartError where no process is ready."""
        begin = time.monotonic()
        if self._process is None:
            self._start()
        try:
            self._pipe.send(name)
            if not self._pipe.poll(self._seconds):
                problem = f"no answer in {self._seconds:g} s"
            else:
                ended: Outcome = self._pipe.recv()
                if ended.kind == LOST:
                    self.close()
                return ended
        except (EOFError, OSError):
            self._process.join(5)
            problem = f"its process ended, code {self._process.exitcode}"
        self.close()
        return Outcome(name, LOST, problem, seconds=time.monotonic() - begin)

    def _start(self) -> None:
        problem = "it took too long"
        while self._starts < STARTS:
            self._pipe, other = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(self._setup, other), daemon=True)
            self._process.start()
            other.close()
            with suppress(EOFError, OSError):
                if self._pipe.poll(STARTING):
                    problem = self._pipe.recv()
                    if not problem:
                        self._starts = 0
                        return
            self._starts += 1
            self.close()
        raise StartError(f"no process is ready: {problem}")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join(5)
            self._pipe.close()
            self._process = None


class StartError(RuntimeError):
    """No process could be made ready for cases."""


def outcomes(
    setup: Setup, names: Sequence[str], workers: int, seconds: float, late: Callable[[], bool]
) -> Iterator[Outcome]:
    """How cases end, as they do, in several processes; those that are not begun in time are left out.

    Raises StartError where no process can be made ready, after all others have ended.
    """
    todo, found = iter(names), SimpleQueue[Outcome | Exception | None]()

    def place() -> None:
        worker = Worker(setup, seconds)
        try:
            while not late() and (name := next(todo, None)) is not None:
                found.put(worker.run(name))
        except Exception as wrong:
            found.put(wrong)
        finally:
            worker.close()
            found.put(None)

    wrong: Exception | None = None
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(workers):
            pool.submit(place)
        ended = 0
        while ended < workers:
            match found.get():
                case None:
                    ended += 1
                case Exception() as problem:
                    wrong = problem
                case Outcome() as each:
                    yield each
    if wrong is not None:
        raise wrong


def main(arguments: list[str] | None = None) -> int:
    """Run cases here, one after the other, until one takes the device away."""
    (file,) = arguments if arguments is not None else sys.argv[1:]
    given = json.loads(Path(file).read_text())
    names = given.pop("names")
    setup = Setup(**given | {"few": tuple(given.get("few", ()))})
    device = setup.device()
    for name in names:
        sys.stdout.write(f"case {name}\n")
        sys.stdout.flush()
        ended = outcome(setup, device, name)
        sys.stdout.write(f"ended {name} {ended.kind} {ended.problem.splitlines()[:1]}\n")
        sys.stdout.flush()
        if ended.kind == LOST:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
