"""Engines measured in turns (A B A B ...): each in a process of its own that runs only when it is asked for times.

The parent's half is `race`. A child ends its set-up with `serve`. Between them goes one line of JSON at a time.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from onnxfuse import process
from onnxfuse.errors import DeviceError

_TURN_MS = 100.0  # about how long one engine runs before the next one's turn


@dataclass(frozen=True, slots=True)
class Engine:
    """What to start: a module that answers `process.python_child` and, given `address`, calls `serve` with it."""

    module: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Raced:
    """Milliseconds of every run of an engine, and what it said of itself when it was ready."""

    times: tuple[float, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Running:
    """A child that waits: one line with a count is answered by one line with that many times."""

    lines: IO[str]
    answer: Future[Any]
    facts: Mapping[str, Any]

    def times(self, count: int) -> list[float]:
        """Milliseconds of `count` runs."""
        self.lines.write(f"{count}\n")
        self.lines.flush()
        return list(_heard(self.lines, self.answer))


def race(
    engines: Sequence[Engine],
    folder: Path,
    *,
    warmup: int,
    duration: float,
    repeats: int | None = None,
    time_limit: float | None = None,
) -> list[Raced]:
    """Run each engine for `duration` seconds or, if given, for `repeats` runs; `folder` is for sockets.

    Raises DeviceError when an engine ends by itself, and what it says when it fails.
    """
    with _started(engines, folder, time_limit) as running:
        times = _in_turns(running, warmup, duration, repeats)
        return [Raced(tuple(ms), each.facts) for ms, each in zip(times, running, strict=True)]


def serve(address: str, call: Callable[[], Any], facts: Mapping[str, Any]) -> None:
    """The child's half: say `facts`, then answer each line `n` with the times of n calls, in ms, until none comes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="ascii") as lines:
            _say(lines, facts)
            for line in lines:
                _say(lines, _times(call, int(line)))


def _say(lines: IO[str], value: Any) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()


def _times(call: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of `count` calls, after one that brings the caches back to this process."""
    call()
    times = []
    for _ in range(count):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1e6)
    return times


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
            lines = stack.enter_context(connection.makefile("rw", encoding="ascii"))
            running.append(_Running(lines, answer, _heard(lines, answer)))
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


def _in_turns(engines: Sequence[_Running], warmup: int, duration: float, repeats: int | None) -> list[list[float]]:
    """Milliseconds of every run, by engine. A turn has as many runs as fit in it, at least one."""
    first = [each.times(max(1, warmup)) for each in engines]
    counts = [max(1, min(int(_TURN_MS / max(min(ms), 1e-3)), repeats or 1000)) for ms in first]
    times: list[list[float]] = [[] for _ in engines]
    while any(_wants(ms, duration, repeats) for ms in times):
        for engine, count, ms in zip(engines, counts, times, strict=True):
            if _wants(ms, duration, repeats):
                ms += engine.times(min(count, repeats - len(ms)) if repeats else count)
    return times


def _wants(times: Sequence[float], duration: float, repeats: int | None) -> bool:
    return len(times) < repeats if repeats else sum(times) < duration * 1e3
