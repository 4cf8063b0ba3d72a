"""Work that waits for other processes, done beside the build while the build goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Work = Callable[[threading.Event], Any]  # ends soon after its event is set

_LOOK = 0.05  # seconds between looks: the meter of a build raises its end between two lines of Python


class Background:
    """Named pieces of work, each in a thread of its own; as a context it ends them and waits until they have ended."""

    def __init__(self) -> None:
        self._stops: dict[str, threading.Event] = {}
        self._made: dict[str, Future[Any]] = {}

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        for name in tuple(self._stops):
            self.cancel(name)

    def start(self, name: str, work: Work) -> None:
        """Begin with it. Nothing of this name may be under way."""
        assert name not in self._stops, f"background: {name} is under way"
        stop, made = threading.Event(), Future[Any]()
        self._stops[name], self._made[name] = stop, made
        threading.Thread(target=_do, args=(work, stop, made), daemon=True, name=f"onnxfuse-{name}").start()

    def result(self, name: str, otherwise: Callable[[], Any]) -> Any:
        """What it gives or raises once it is done; where it was not started, what `otherwise` gives."""
        if name not in self._made:
            return otherwise()
        while not self._made[name].done():
            self._stops[name].wait(_LOOK)
        return self._made[name].result()

    def cancel(self, name: str) -> None:
        """End it, whatever it was about to give; nothing where it was not started."""
        stop, made = self._stops.pop(name, None), self._made.pop(name, None)
        if stop is not None and made is not None:
            stop.set()
            made.exception()


def _do(work: Work, stop: threading.Event, made: Future[Any]) -> None:
    try:
        made.set_result(work(stop))
    except BaseException as problem:
        made.set_exception(problem)
