"""Engines measured in turns (B A, A B, ...), each in a process of its own that runs only during its turns.

The parent calls `race`; a child calls `serve` after its set-up. They exchange lines of JSON. Between its turns the
whole process of an engine is stopped, including threads that would spin while waiting for work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import process

# Approximate length of the slowest engine's turn. Short, since a process that has just slept may run for some
# milliseconds even where all cores are busy, and the machine's load changes little from one turn to the next.
_TURN_MS = 4.0
LONG_MS = 30.0  # runs longer than this do not need a preceding run to warm the caches
_THREADS = "/proc/self/task"


@dataclass(frozen=True, slots=True)
class Engine:
    """A child process to start: a module for `process.python_child` that calls `serve` with the given `address`."""

    module: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RaceResult:
    """Milliseconds of every run of an engine by turns, and the facts that it reported when it was ready.

    Turns with the same index are neighbours in time; all have the same number of runs.
    """

    turns: tuple[tuple[float, ...], ...]
    facts: Mapping[str, Any]

    @property
    def times(self) -> tuple[float, ...]:
        """The milliseconds of every run, in order."""
        return tuple(ms for turn in self.turns for ms in turn)

    @property
    def least(self) -> tuple[float, ...]:
        """The least time of each turn."""
        return tuple(min(turn) for turn in self.turns)


T = TypeVar("T")
Enough = Callable[[Sequence[RaceResult]], bool]


@dataclass(frozen=True, slots=True)
class _Running:
    """A waiting child: it answers a line with a count by a line with that many times."""

    connection: socket.socket
    lines: IO[str]
    answer: Future[Any]
    facts: Mapping[str, Any]
    pid: int

    def times(self, count: int) -> list[float]:
        """Milliseconds of `count` runs; before and after, the child is stopped."""
        _signal(self.pid, signal.SIGCONT)
        with suppress(OSError):  # it has ended: reading the answer reports it
            self.connection.sendall(f"{count}\n".encode())
        found = list(_received(self.lines, self.answer))
        _signal(self.pid, signal.SIGSTOP)
        return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended: reading its answer reports why
        os.kill(pid, number)


def race(
    engines: Sequence[Engine],
    folder: Path,
    *,
    warmup: int,
    duration: float,
    repeats: int | None = None,
    time_limit: float | None = None,
    enough: Enough = lambda raced: True,
    looks: int = 1,
) -> list[RaceResult]:
    """Run each engine for about `duration` seconds or, if given, for `repeats` runs; `folder` is for sockets.

    Seconds are wall time, including waiting for a core on a busy machine. If the result is not `enough`, measuring
    continues until the total time has doubled, and so on; `enough` is called at most `looks` times.

    Raises DeviceError when an engine ends early, and the error of an engine that fails.
    """
    with _started(engines, folder, time_limit) as running:
        count = _count(running, warmup, repeats)
        raced = [RaceResult((), each.facts) for each in running]
        for look in range(looks):
            raced = _continued(running, raced, count, duration * 2 ** max(0, look - 1), repeats)
            if repeats or enough(raced):
                break
        return raced


def serve(
    address: str,
    call: Callable[[], object],
    facts: Mapping[str, Any],
    workers: Sequence[int] = (),
    *,
    own: bool = False,
) -> None:
    """Called by the child: send `facts`, then answer each line `n` with the milliseconds of n calls, until end of file.

    `workers` are the ids of the threads that work for the calling one.
    """
    with socket.socket(socket.AF_UNIX) as connection, CorePlacement() as placement:
        connection.connect(address)
        with connection.makefile("rw", encoding="ascii") as lines:
            _send(lines, {"pid": os.getpid(), "facts": dict(facts)})
            for turn, line in enumerate(lines):
                placement.take(workers, turn)
                _send(lines, times(call, int(line), own=own))


class CorePlacement:
    """Pins the calling thread and its workers to a core each, as far as there are cores; all are released at the end.

    Where no core is idle, Linux wakes a worker on the core of the waking thread and leaves it there: two threads then
    share a core for seconds, and one of two equal engines took 1.8 times as long as the other.
    """

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._moved: set[int] = set()

    def __enter__(self) -> CorePlacement:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._moved:
            _place(thread, self._cores)

    def take(self, workers: Sequence[int], turn: int) -> None:
        """Pin the caller and these threads for a turn, to other cores in the next; a single thread is not moved."""
        threads = (threading.get_native_id(), *workers) if workers else ()
        shares = min(len(threads), len(self._cores))
        for number, thread in enumerate(threads):
            _place(thread, self._cores[(number + turn) % shares :: shares])
        self._moved.update(threads)


def _place(thread: int, cores: Sequence[int]) -> None:
    with suppress(OSError):  # the thread has ended, or the core was taken away
        os.sched_setaffinity(thread, cores)


def workers_of(start: Callable[[], T]) -> tuple[T, tuple[int, ...]]:
    """The result of `start`, and the ids of the threads that it left running, in the order of creation."""
    before = set(os.listdir(_THREADS))
    made = start()
    return made, tuple(sorted(int(each) for each in set(os.listdir(_THREADS)) - before))


def times(call: Callable[[], object], count: int, *, own: bool = False) -> list[float]:
    """Milliseconds of `count` calls, after one that warms the caches; for a count of 0, of one call without warming.

    `own`: processor time of the calling thread instead of wall time, for calls that use one thread only. A virtual
    machine takes what its host gave to others off processor time, at times all of a short call: then wall time counts.
    """
    if count:
        call()
    found = []
    for _ in range(count or 1):
        processor, begin = time.thread_time_ns(), time.perf_counter_ns()
        call()
        passed, used = time.perf_counter_ns() - begin, time.thread_time_ns() - processor
        found.append((used if own and used > 0 else passed) / 1e6)
    return found


def order_of_round(sides: int, number: int) -> list[int]:
    """The order of the engines in round `number`: pseudo-random, and the same each time.

    Caches and the system's scheduler treat an engine by what ran before it and how long it waited; a fixed order favors
    one engine (in A B C C B A, B always runs after another one, and was 7 to 16 % faster beside other work). A random
    order treats all engines alike and has no period with which other load could be in phase.
    """
    order = list(range(sides))
    random.Random(number).shuffle(order)
    return order


def runs_of_a_turn(ms: float) -> int:
    """How many runs of `ms` milliseconds make a turn; 0: a single long run, without one to warm the caches."""
    if ms > LONG_MS:
        return 0
    return max(1, min(int(_TURN_MS / max(ms, 1e-3)), 1000))


def _send(lines: IO[str], value: object) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


@contextmanager
def _started(engines: Sequence[Engine], folder: Path, time_limit: float | None) -> Iterator[list[_Running]]:
    """One child per engine, loaded and waiting, in order; they end at the end of the block."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(len(engines)))
        running = []
        for number, each in enumerate(engines):
            address = str(folder / f"turns{number}")
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen(1)
            request = {**each.request, "address": address}
            answer = pool.submit(process.python_child, each.module, request, stage="profile", time_limit=time_limit)
            connection = stack.enter_context(_accepted(listener, answer))
            lines = stack.enter_context(connection.makefile("r", encoding="ascii"))
            said = _received(lines, answer)
            stack.callback(_signal, said["pid"], signal.SIGCONT)  # it reads end of file, and ends
            running.append(_Running(connection, lines, answer, said["facts"], said["pid"]))
        yield running


def _accepted(listener: socket.socket, answer: Future[Any]) -> socket.socket:
    """The child's connection. Raises the child's own error when it ends without one."""
    listener.settimeout(0.05)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if answer.done():
                answer.result()
                raise DeviceError("profile: an engine ended before it was measured") from None
            continue
        connection.settimeout(None)
        return connection


def _received(lines: IO[str], answer: Future[Any]) -> Any:
    """The next line of a child, as a value. Raises the child's own error when it has ended instead."""
    try:
        line = lines.readline()
    except OSError:
        line = ""
    if not line:
        answer.result()
        raise DeviceError("profile: an engine ended while it was measured")
    return json.loads(line)


def _count(engines: Sequence[_Running], warmup: int, repeats: int | None) -> int:
    """Runs of a turn, the same number for all engines, by the time of the slowest one."""
    slowest = max(min(each.times(max(1, warmup))) for each in engines)
    return min(runs_of_a_turn(slowest), repeats or 1000)


def _continued(
    engines: Sequence[_Running], raced: Sequence[RaceResult], count: int, duration: float, repeats: int | None
) -> list[RaceResult]:
    """The measurement continued by more turns, each round in an order of its own."""
    turns = [list(each.turns) for each in raced]
    until = time.monotonic() + duration * len(engines)
    while _more_turns(turns[0], until, repeats):
        number = len(turns[0])
        left = count if repeats is None else min(count, repeats - sum(map(len, turns[0])))
        for at in order_of_round(len(engines), number):
            turns[at].append(tuple(engines[at].times(left)))
    return [RaceResult(tuple(found), each.facts) for found, each in zip(turns, raced, strict=True)]


def _more_turns(turns: Sequence[Sequence[float]], until: float, repeats: int | None) -> bool:
    return sum(map(len, turns)) < repeats if repeats else not turns or time.monotonic() < until
