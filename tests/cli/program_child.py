"""The program `onnxfuse` in a child that is forked from a server that has imported it: see `programs`.

So are its own children: the server that it asks is this process as it was before the command line, not a Python that
imports all of that again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from onnxfuse_cli import show, verbs_models, verbs_tools
from onnxfuse_cli.__main__ import run

from onnxfuse import pipeline
from onnxfuse.measure import gain_child, machine_child, profile_child, samples_child
from onnxfuse.runtime import fork_server, forks, inference_child, process
from onnxfuse.verify import pieces_child

# What verbs, and their children, import when they run.
IMPORTED = (pipeline, verbs_models, verbs_tools, gain_child, machine_child, profile_child, samples_child, pieces_child,
            inference_child)  # fmt: skip


class Itself:
    """A fork of this process that serves."""

    def __init__(self, number: int, _: Mapping[str, str], modules: tuple[str, ...]) -> None:
        with warnings.catch_warnings(action="ignore"):  # threads of libraries are idle here
            self.pid = os.fork()
        if self.pid == 0:
            os.closerange(3, number)
            os.closerange(number + 1, os.sysconf("SC_OPEN_MAX"))
            fork_server.main(number, *modules)
            os._exit(0)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        return os.waitpid(self.pid, 0)[1]


def main(asked: dict[str, Any]) -> int:
    """The exit code of a command line, or of a text in Python, in the environment that is asked for."""
    os.environ.clear()
    os.environ.update(asked["env"])
    for path in asked.get("loaded", ()):
        ctypes.CDLL(path)
    process._FORKS = forks.Forks(Itself)
    process._FORKS._running(forks._theirs({**os.environ, **process._import_path()}))
    code = command_line(asked["words"], asked["streams"]) if "words" in asked else text(asked["text"])
    process._FORKS.end()
    return code


def command_line(words: list[str], streams: list[tuple[str, int]]) -> int:
    """With these files for standard streams."""
    for number, (path, flags) in enumerate(streams):
        file = os.open(path, flags, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.argv = ["onnxfuse", *words]
    code = run(words)
    show.finish()
    return code


def text(program: str) -> int:
    """A warning is an error."""
    warnings.simplefilter("error")
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    process.serve(main)
