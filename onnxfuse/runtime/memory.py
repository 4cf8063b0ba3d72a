"""Memory of processes that the system cannot reclaim: anonymous, shared and swapped pages.

Clean pages of mapped files are not counted, since the system can drop them.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_COUNTED = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_MOST = 1 << 16  # bytes of a file of the system
_FORKED = 0x40  # among the flags of a process: it executes what its parent does (PF_FORKNOEXEC of Linux)
_ALIKE = 32  # part of its parent's memory by which that of a process may differ that still has its parent's
_EVERY = 0.004  # sampling interval in seconds
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None  # glibc only


def children(pid: int) -> Iterator[int]:
    """The children of a process; none where there is no /proc."""
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, _read(f"/proc/{pid}/task/{task}/children").split())


def resident(pid: int) -> int:
    """Counted bytes of one process; 0 once it has ended."""
    try:
        lines = _read(f"/proc/{pid}/status").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(_COUNTED))


def _read(path: str) -> bytes:
    """A file of the system, without the layers of Python's files: some hundred are read a second."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _MOST)
    finally:
        os.close(file)


def resident_of_tree(pid: int) -> int:
    """Counted bytes of a process and its descendants; what one that was just forked shares with its parent, once."""
    return _of_tree(pid, None)


def _of_tree(pid: int, parents: int | None) -> int:
    own = resident(pid)
    shared = parents is not None and abs(own - parents) * _ALIKE <= parents and _forked(pid)
    return (0 if shared else own) + sum(_of_tree(child, own) for child in children(pid))


def _forked(pid: int) -> bool:
    """Whether a process has executed no program of its own, as between `fork` and `exec`."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return False
    return len(fields) > 6 and bool(int(fields[6]) & _FORKED)


def trim() -> None:
    """Return freed heap memory to the system (malloc_trim)."""
    if _TRIM is not None:
        _TRIM(0)


@dataclass(frozen=True, slots=True)
class LoadCost:
    """The cost of one way to load a model: seconds until it can run, and peak memory including one run."""

    way: str
    seconds: float
    peak_bytes: int  # above the process's memory before
    run_seconds: float = 0.0  # minimum over the runs
    with_library: bool = False


class Watch:
    """A context that measures time and peak memory of loading and running a model in this process.

    Call `opened` once the model is loaded, and run it by `timed`. A thread samples memory, so the measured code has to
    release the GIL, as the runtime does.
    """

    def __init__(self) -> None:
        self.seconds, self.peak, self.least = 0.0, 0, math.inf
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name="onnxfuse-watch")

    def __enter__(self) -> Watch:
        trim()
        self._before = resident(os.getpid())
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._look()

    def opened(self) -> None:
        """Mark the end of loading."""
        self.seconds = time.monotonic() - self._begin
        self._look()

    def timed(self, run: Callable[[], T]) -> T:
        """Time a run; its result."""
        begin = time.monotonic()
        found = run()
        self.least = min(self.least, time.monotonic() - begin)
        return found

    def load(self, way: str, with_library: bool = False) -> LoadCost:
        """The measured cost, after at least one run."""
        return LoadCost(way, round(self.seconds, 4), self.peak, round(self.least, 5), with_library)

    def _sample(self) -> None:
        while not self._end.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        self.peak = max(self.peak, resident(os.getpid()) - self._before)
