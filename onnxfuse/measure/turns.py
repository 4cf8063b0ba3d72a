"""Engines measured in turns (A B B A ...): each in a process of its own that runs only when it is asked for times.

The parent's half is `race`. A child ends its set-up with `serve`. Between them goes one line of JSON at a time. An
engine whose turn it is not stands still as a whole, the threads included that would go on spinning for what comes next.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import process

# About how long the slowest engine's turn is. Short: a process that has just slept may run for some milliseconds even
# where all cores are busy, and what a machine does besides changes little from one turn to the next.
_TURN_MS = 2.0


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

    Where what was seen by then is not `enough` they go on for twice as long in all, and so on, until that has been
    asked `looks` times. Raises DeviceError when an engine ends by itself, and what it says when it fails.
    """
    with _started(engines, folder, time_limit) as running:
        count = _count(running, warmup, repeats)
        raced = [Raced((), each.facts) for each in running]
        for look in range(looks):
            raced = _continued(running, raced, count, duration * 2**look, repeats)
            if repeats or enough(raced):
                break
        return raced


def serve(address: str, call: Callable[[], Any], facts: Mapping[str, Any], *, own: bool = False) -> None:
    """The child's half: say `facts`, then answer each line `n` with the times of n calls, in ms, until none comes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="ascii") as lines:
            _say(lines, {"pid": os.getpid(), "facts": dict(facts)})
            for line in lines:
                _say(lines, times(call, int(line), own=own))


def times(call: Callable[[], Any], count: int, *, own: bool = False) -> list[float]:
    """Milliseconds of `count` calls, after one that brings the caches back to this process.

    `own`: only while the thread that calls was running, which is all that counts where it works alone.
    """
    clock = time.thread_time_ns if own else time.perf_counter_ns
    call()
    found = []
    for _ in range(count):
        begin = clock()
        call()
        found.append((clock() - begin) / 1e6)
    return found


def runs_of_a_turn(ms: float) -> int:
    """How many runs of so many milliseconds make a turn."""
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
    """The race with more turns, every other round in the opposite order: what drifts weighs on both sides."""
    turns = [list(each.turns) for each in raced]
    seconds = sum(sum(each.times) for each in raced) / 1e3
    while _wants(turns[0], seconds / len(engines), duration, repeats):
        number = len(turns[0])
        order = range(len(engines)) if number % 2 == 0 else reversed(range(len(engines)))
        left = count if repeats is None else min(count, repeats - sum(map(len, turns[0])))
        for at in order:
            turns[at].append(tuple(engines[at].times(left)))
            seconds += sum(turns[at][-1]) / 1e3
    return [Raced(tuple(found), each.facts) for found, each in zip(turns, raced, strict=True)]


def _wants(turns: Sequence[Sequence[float]], seconds: float, duration: float, repeats: int | None) -> bool:
    return sum(map(len, turns)) < repeats if repeats else not turns or seconds < duration
