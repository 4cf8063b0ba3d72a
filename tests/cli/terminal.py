"""Runs the command line with a terminal as its standard error."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from typing import NamedTuple


class Seen(NamedTuple):
    """Exit code, stdout, and stderr of a command whose stderr is a terminal; seconds until that showed something."""

    code: int
    out: str
    err: str
    first: float


def watched(arguments: list[str], env: dict[str, str]) -> Seen:
    """What is seen of a command on a terminal."""
    ours, theirs = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR") and not k.startswith("ONNXFUSE_")}
    command = [sys.executable, "-m", "onnxfuse_cli", *arguments]
    full = kept | {"TERM": "xterm"} | env
    seen, first, begin = b"", float("inf"), time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=full, text=True) as child:
        os.close(theirs)
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            first = min(first, time.monotonic() - begin)
            seen += piece
        assert child.stdout is not None
        out = child.stdout.read()
        code = child.wait(60)
    os.close(ours)
    return Seen(code, out, seen.decode(), first)


def on_terminal(arguments: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command whose stderr is a terminal."""
    return watched(arguments, env)[:3]
