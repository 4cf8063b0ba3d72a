"""Background threads for work that waits for child processes, concurrent with the build."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[threading.Event], object]  # returns soon after its event is set

_LOOK = 0.05  # seconds between two lines of Python while it waits: a build's time limit raises between them


class Background:
    """Named tasks, each in a thread of its own; leaving the context cancels and joins them."""

    def __init__(self) -> None:
        self._stops: dict[str, threading.Event] = {}
        self._made: dict[str, Future[Any]] = {}

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        for name in tuple(self._stops):
            self.cancel(name)

    def started(self, name: str) -> bool:
        """Whether a task was started and not cancelled."""
        return name in self._stops

    def start(self, name: str, work: Work) -> None:
        """Start a task. None of this name may be running."""
        assert name not in self._stops, f"background: {name} is running"
        stop, made = threading.Event(), Future[Any]()
        self._stops[name], self._made[name] = stop, made
        threading.Thread(target=_do, args=(work, stop, made), daemon=True, name=f"onnxfuse-{name}").start()

    def result(self, name: str, otherwise: Callable[[], T]) -> T:
        """Wait for a task; its result or exception. If it was not started, the result of `otherwise`."""
        if name not in self._made:
            return otherwise()
        while wait((self._made[name],), _LOOK).not_done:
            pass
        made: T = self._made[name].result()
        return made

    def cancel(self, name: str) -> None:
        """Cancel a task and drop its result; no effect if it was not started."""
        stop, made = self._stops.pop(name, None), self._made.pop(name, None)
        if stop is not None and made is not None:
            stop.set()
            made.exception()


def _do(work: Work, stop: threading.Event, made: Future[Any]) -> None:
    try:
        made.set_result(work(stop))
    except BaseException as problem:
        made.set_exception(problem)
