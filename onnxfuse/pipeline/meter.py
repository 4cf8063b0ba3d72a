"""What a build costs while it runs: seconds per step and the largest memory of the process with its children.

Where a budget is used up the step that runs is ended, whatever it is at: the thread that looks at the memory raises
`Over` in the thread of the build, at its next line of Python. Where that line is in a destructor or a callback of the
garbage collector Python drops it, and says so to `sys.unraisablehook`: it is then raised again at once.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from onnxfuse.errors import BudgetError, UsageError
from onnxfuse.runtime.memory import resident_of_tree

_EVERY = 0.02  # seconds between looks at the memory
_GRACE = 0.2  # seconds that those who wait themselves have to say what they waited for
_AGAIN = 0.7  # seconds that a step has to end itself before it is told again
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


class Over(BaseException):
    """A budget is used up. No `except Exception` takes it for a bug; the meter makes a BudgetError of it."""


class Meter:
    """Measures from its making on; as a context it ends the thread that looks at the memory.

    A `step` ends with BudgetError when `seconds` or `memory` (bytes) are used up, and so does `check`; `left` is for
    those who wait themselves.
    """

    def __init__(self, seconds: float | None = None, memory: int | None = None) -> None:
        self.limit, self.memory = seconds, memory
        self.seconds: dict[str, float] = {}
        self.peak = 0
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._builder: int | None = None  # the thread of the step that runs
        self._raised = -_AGAIN  # when `Over` was last raised there
        self._end = threading.Event()
        self._unraisable = sys.unraisablehook
        self._watch = threading.Thread(target=self._sample, daemon=True, name="onnxfuse-meter")

    def __enter__(self) -> Meter:
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._dropped
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end.set()
        self._watch.join()
        if sys.unraisablehook == self._dropped:  # else another build has begun meanwhile, and ends later
            sys.unraisablehook = self._unraisable
        if kind is Over:  # it was raised on the way out of a step
            self._raise("the last step")

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left(self) -> float | None:
        """Seconds that are left, at least a little; None without a limit."""
        return None if self.limit is None else max(0.01, self.limit - self.elapsed)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Counts the time of a step; a step that runs again adds to its time."""
        begin = time.monotonic()
        self._builder = threading.get_ident()
        try:
            yield
        except Over:
            self._raise(name)
        finally:
            with self._lock:
                self._builder = None
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin
            self._look()
        self.check(name)

    def check(self, step: str) -> None:
        """Raise BudgetError when the time or the memory is used up."""
        if self.limit is not None and self.elapsed > self.limit:
            took = f"{step}: {self.elapsed:.1f} s have passed, more than the {self.limit:.3g} s allowed"
            raise BudgetError(took, hint="raise --time-budget")
        if self.memory is not None and self.peak > self.memory:
            took = f"{step}: {self.peak / 1e6:.0f} MB were taken, more than the {self.memory / 1e6:.0f} MB allowed"
            raise BudgetError(took, hint="raise --memory-budget")

    def _raise(self, step: str) -> NoReturn:
        self.check(step)
        raise BudgetError(f"{step}: a budget was exceeded", hint="raise --time-budget or --memory-budget")

    def _dropped(self, found: sys.UnraisableHookArgs) -> None:
        """Called by Python with an exception that it drops: `Over` is to be raised again, others are the former's."""
        if found.exc_type is Over:
            self._raised = -_AGAIN
        else:
            self._unraisable(found)

    def _sample(self) -> None:
        while not self._end.wait(_EVERY):
            self._look()
            self._enforce()

    def _enforce(self) -> None:
        """Raise `Over` in the thread of the build where a budget is used up in a step, until the step ends."""
        late = self.limit is not None and self.elapsed > self.limit + _GRACE
        large = self.memory is not None and self.peak > self.memory
        with self._lock:
            if self._builder is not None and (late or large) and self.elapsed > self._raised + _AGAIN:
                self._raised = self.elapsed
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._builder), ctypes.py_object(Over))

    def _look(self) -> None:
        self.peak = max(self.peak, resident_of_tree(os.getpid()))


def size_of(text: str) -> int:
    """Bytes from a size such as 8GB, 500MiB or 1e9. Raises UsageError.

    >>> size_of("8GB"), size_of("1.5 GiB"), size_of("1e6")
    (8000000000, 1610612736, 1000000)
    """
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([KMG]I?)?B?\s*", text, re.IGNORECASE)
    try:
        count = int(float(found[1]) * _UNITS[(found[2] or "").upper()]) if found else 0
    except (ValueError, OverflowError):
        count = 0
    if count <= 0:
        raise UsageError(f"{text} is not a size", hint="for example 8GB or 500MiB")
    return count
