"""The GPU check over the stand-in for the driver, in forks of a program that has imported it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.craft.sources import ROOT
from tests.threads.driver_mock import ON_HOST


class Checks:
    """Asks such a program for checks."""

    def __init__(self, asked: IO[str], answers: IO[str]) -> None:
        self._asked, self._answers = asked, answers

    def run(self, result: Path, kernels: Path, *arguments: str, **environment: str) -> tuple[int, str, dict[str, Any]]:
        """Exit code, what it said, and what it found; `kernels` are those of the driver."""
        said = result.with_name("said")
        variables = {**os.environ, **ON_HOST, "DRIVER_KERNELS": str(kernels), **environment}
        variables.pop("LD_LIBRARY_PATH", None)  # as the program was started with
        asked = {"arguments": [str(result), *arguments], "variables": variables, "out": str(said)}
        self._asked.write(f"{json.dumps(asked)}\n")
        self._asked.flush()
        code = int(self._answers.readline())
        return code, said.read_text(), json.loads(result.read_text()) if result.exists() else {}


@contextmanager
def checks_over(driver: Path) -> Iterator[Checks]:
    """A program that loads the driver of a folder."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    command = [sys.executable, "-m", "tests.device.check_server"]
    with subprocess.Popen(
        command, env=env, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        yield Checks(program.stdin, program.stdout)
        program.stdin.close()
