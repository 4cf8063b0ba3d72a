"""Engines measured in turns (B A, A B, ...): each in a process of its own that runs only when it is asked for times.

The parent's half is `race`. A child ends its set-up with `serve`. Between them goes one line of JSON at a time. An
engine whose turn it is not stands still as a whole, the threads included that would go on spinning for what comes next.
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

# About how long the slowest engine's turn is. Short: a process that has just slept may run for some milliseconds even
# where all cores are busy, and what a machine does besides changes little from one turn to the next.
_TURN_MS = 4.0
LONG_MS = 30.0  # what caches hold of a run before is nothing to such a run
_THREADS = "/proc/self/task"


@dataclass(frozen=True, slots=True)
class Engine:
    """What to start: a module that answers `process.python_child` and, given `address`, calls `serve` with it."""

    module: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Raced:
    """Milliseconds of every run of an engine by turns, and what it said of itself when it was ready.

    Turns with the same number are neighbours, and all have equally many runs.
    """

    turns: tuple[tuple[float, ...], ...]
    facts: Mapping[str, Any]

    @property
    def times(self) -> tuple[float, ...]:
        """Of every run, in order."""
        return tuple(ms for turn in self.turns for ms in turn)

    @property
    def least(self) -> tuple[float, ...]:
        """The least time of each turn."""
        return tuple(min(turn) for turn in self.turns)


T = TypeVar("T")
Enough = Callable[[Sequence[Raced]], bool]


@dataclass(frozen=True, slots=True)
class _Running:
    """A child that waits: one line with a count is answered by one line with that many times."""

    connection: socket.socket
    lines: IO[str]
    answer: Future[Any]
    facts: Mapping[str, Any]
    pid: int

    def times(self, count: int) -> list[float]:
        """Milliseconds of `count` runs; before and after, the child stands still."""
        _signal(self.pid, signal.SIGCONT)
        with suppress(OSError):  # it has ended: nothing will be heard
            self.connection.sendall(f"{count}\n".encode())
        found = list(_heard(self.lines, self.answer))
        _signal(self.pid, signal.SIGSTOP)
        return found


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # what it died of is said where it is asked
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
) -> list[Raced]:
    """Run each engine for about `duration` seconds or, if given, for `repeats` runs; `folder` is for sockets.

    Seconds are the clock's: they hold what turns wait for a core of a busy machine. Where what was seen by then is not
    `enough` they go on for twice as long in all, and so on, until that has been asked `looks` times.

    Raises DeviceError when an engine ends by itself, and what it says when it fails.
    """
    with _started(engines, folder, time_limit) as running:
        count = _count(running, warmup, repeats)
        raced = [Raced((), each.facts) for each in running]
        for look in range(looks):
            raced = _continued(running, raced, count, duration * 2 ** max(0, look - 1), repeats)
            if repeats or enough(raced):
                break
        return raced


def serve(
    address: str, call: Callable[[], Any], facts: Mapping[str, Any], workers: Sequence[int] = (), *, own: bool = False
) -> None:
    """The child's half: say `facts`, then answer each line `n` with the times of n calls, in ms, until none comes.

    `workers` are the threads that work for the calling one.
    """
    with socket.socket(socket.AF_UNIX) as connection, Places() as places:
        connection.connect(address)
        with connection.makefile("rw", encoding="ascii") as lines:
            _say(lines, {"pid": os.getpid(), "facts": dict(facts)})
            for turn, line in enumerate(lines):
                places.take(workers, turn)
                _say(lines, times(call, int(line), own=own))


class Places:
    """Gives the calling thread and its workers a core each, as far as cores go round; all of them back at the end.

    Where no core is idle the system wakes a worker on the core of the thread that wakes it, and leaves it there: two
    threads then share that core for seconds, and of two equal engines one took 1.8 times as long as the other.
    """

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._moved: set[int] = set()

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._moved:
            _place(thread, self._cores)

    def take(self, workers: Sequence[int], turn: int) -> None:
        """Move the caller and these threads to their cores of a turn, other ones in the next; who is alone stays."""
        threads = (threading.get_native_id(), *workers) if workers else ()
        shares = min(len(threads), len(self._cores))
        for number, thread in enumerate(threads):
            _place(thread, self._cores[(number + turn) % shares :: shares])
        self._moved.update(threads)


def _place(thread: int, cores: Sequence[int]) -> None:
    with suppress(OSError):  # the thread has ended, or the core was taken away
        os.sched_setaffinity(thread, cores)


def workers_of(start: Callable[[], T]) -> tuple[T, tuple[int, ...]]:
    """What `start` gives, and the threads of this process that it has left running, in the order of their making."""
    before = set(os.listdir(_THREADS))
    made = start()
    return made, tuple(sorted(int(each) for each in set(os.listdir(_THREADS)) - before))


def times(call: Callable[[], Any], count: int, *, own: bool = False) -> list[float]:
    """Milliseconds of `count` calls, after one that brings the caches back to this process; of one alone where it is 0.

    `own`: only while the thread that calls was running, which is all that counts where it works alone.
    """
    clock = time.thread_time_ns if own else time.perf_counter_ns
    if count:
        call()
    found = []
    for _ in range(count or 1):
        begin = clock()
        call()
        found.append((clock() - begin) / 1e6)
    return found


def shuffled(sides: int, number: int) -> list[int]:
    """The order of the sides in round `number`, drawn at random and the same each time.

    Who ran last, or has waited longer, is treated otherwise by caches and by the system's scheduler: in a fixed order
    that is always the same side (of A B C C B A always B runs after another one, and it was 7 to 16 % faster beside
    other work). An order that is drawn treats all sides alike, and has no period that others could fall in step with.
    """
    order = list(range(sides))
    random.Random(number).shuffle(order)
    return order


def runs_of_a_turn(ms: float) -> int:
    """How many runs of so many milliseconds make a turn; 0 is one that needs none before it."""
    if ms > LONG_MS:
        return 0
    return max(1, min(int(_TURN_MS / max(ms, 1e-3)), 1000))


def _say(lines: IO[str], value: Any) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


@contextmanager
def _started(engines: Sequence[Engine], folder: Path, time_limit: float | None) -> Iterator[list[_Running]]:
    """One child per engine, loaded and waiting, in order; they end with the block."""
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
            said = _heard(lines, answer)
            stack.callback(_signal, said["pid"], signal.SIGCONT)  # it hears that nobody asks any more, and ends
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


def _heard(lines: IO[str], answer: Future[Any]) -> Any:
    """The next thing that a child says. Raises the child's own error when it has ended instead."""
    try:
        line = lines.readline()
    except OSError:
        line = ""
    if not line:
        answer.result()
        raise DeviceError("profile: an engine ended while it was measured")
    return json.loads(line)


def _count(engines: Sequence[_Running], warmup: int, repeats: int | None) -> int:
    """Runs of a turn, of which each engine has as many: the slowest one's fill it."""
    slowest = max(min(each.times(max(1, warmup))) for each in engines)
    return min(runs_of_a_turn(slowest), repeats or 1000)


def _continued(
    engines: Sequence[_Running], raced: Sequence[Raced], count: int, duration: float, repeats: int | None
) -> list[Raced]:
    """The race with more turns, each round in an order of its own."""
    turns = [list(each.turns) for each in raced]
    until = time.monotonic() + duration * len(engines)
    while _wants(turns[0], until, repeats):
        number = len(turns[0])
        left = count if repeats is None else min(count, repeats - sum(map(len, turns[0])))
        for at in shuffled(len(engines), number):
            turns[at].append(tuple(engines[at].times(left)))
    return [Raced(tuple(found), each.facts) for found, each in zip(turns, raced, strict=True)]


def _wants(turns: Sequence[Sequence[float]], until: float, repeats: int | None) -> bool:
    return sum(map(len, turns)) < repeats if repeats else not turns or time.monotonic() < until
