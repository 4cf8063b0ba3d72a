"""Crash recovery for child processes: an attempt that killed one process is skipped by its successor.

The runtime's own operators crash the process for some models and sizes (a Reshape that divides by zero, say). The
search for sizes at which a model runs has to survive that, so attempts are logged in a file before they are made.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import process
from onnxfuse.runtime.folders import work_folder

_VARIABLE = (
    "ONNXFUSE_ATTEMPTS"  # environment variable of a child: the log file, a line for each attempt that killed a process
)
_MOST = 32  # child processes, the last one included


def persistent_child(
    module: str,
    payload: Any,
    *,
    stage: str,
    time_limit: float | None = None,
    memory_limit: int | None = None,
    stop: threading.Event | None = None,
) -> Any:
    """As `process.python_child`; a child that dies in an `attempt` is restarted and skips that attempt."""
    begin = time.monotonic()
    with work_folder() as folder:
        attempts = folder / "attempts"
        while True:
            died = _fatal(attempts)
            left = None if time_limit is None else max(time_limit - (time.monotonic() - begin), 0.001)
            env = {_VARIABLE: str(attempts)}
            try:
                return process.python_child(
                    module, payload, stage=stage, env=env, time_limit=left, memory_limit=memory_limit, stop=stop
                )
            except DeviceError:
                if (stop is not None and stop.is_set()) or not len(died) < len(_fatal(attempts)) < _MOST:
                    raise


@contextmanager
def attempt(words: str) -> Iterator[None]:
    """A context around code that may kill this process; `words` describes it in one line.

    It is logged if `persistent_child` started the process. Raises DeviceError where it killed an earlier process.
    """
    file = os.environ.get(_VARIABLE)
    if file is None:
        yield
        return
    attempts = Path(file)
    fatal = _fatal(attempts)
    if words in fatal:
        raise DeviceError(f"runtime: the process died when it ran the model on {words}")
    attempts.write_text("".join(f"{each}\n" for each in (*fatal, words)), encoding="utf-8")
    try:
        yield
    finally:
        attempts.write_text("".join(f"{each}\n" for each in fatal), encoding="utf-8")


def _fatal(attempts: Path) -> list[str]:
    """The attempts that killed a process, and one in progress."""
    return attempts.read_text(encoding="utf-8").splitlines() if attempts.exists() else []
