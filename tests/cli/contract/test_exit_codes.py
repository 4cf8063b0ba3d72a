"""Every exit code of docs/commands.md, by a command line that ends with it, and a line that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.commands import EXIT_CODES
from tests.cli.conftest import Onnxfuse

PROGRAM = (sys.executable, "-m", "onnxfuse_cli")


def prepared(here: Path) -> None:
    """What the command lines below need beside m.onnx."""
    (here / "text.onnx").write_text("no model")

    (here / "closed").write_text("a file, so no folder")


LINES: dict[int, tuple[tuple[str, ...], str]] = {
    0: (("inspect", "m.onnx"), ""),
    1: (("optimize", "m.onnx", "--require-fusion", "9", "--no-verify"), "fewer than the 9 required"),
    2: (("optimize", "missing.onnx"), "there is no file missing.onnx"),
    3: (("inspect", "text.onnx"), "text.onnx"),
    4: (("optimize", "m.onnx", "--toolchain", "zig", "--no-cache", "--no-verify"), "compiler"),
    5: (("verify", "m.onnx", "m.onnx", "--target", "cuda"), "CUDA"),
    6: (("optimize", "m.onnx", "--time-budget", "0.001"), "budget"),
    7: (("inspect", "m.onnx", "--json-file", "closed/f.json"), "closed"),
}
ELSEWHERE = {70: "test_bad_input.py plants a bug", 130: "below"}


def test_every_code_of_the_page_is_here():
    assert set(LINES) | set(ELSEWHERE) == set(EXIT_CODES)


@pytest.mark.parametrize("code", LINES)
def test_a_command_line_ends_with_it(onnxfuse: Onnxfuse, model: Path, here: Path, code: int):
    prepared(here)
    arguments, word = LINES[code]
    if code == 4 and onnxfuse("doctor").out.count("zig") and "none" not in _line(onnxfuse("doctor").out, "zig"):
        pytest.skip("there is a zig compiler here")
    said = onnxfuse(*arguments)
    assert said.code == code, said.err
    assert word in said.last and "Traceback" not in said.err
    assert code == 0 or said.last.startswith("onnxfuse: ")


def _line(text: str, word: str) -> str:
    return next(line for line in text.splitlines() if word in line)


def test_an_interrupted_run_says_so_and_leaves_nothing(model: Path, here: Path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONNXFUSE_")}
    asked = [*PROGRAM, "optimize", str(model), "--no-cache", "--progress", "plain"]
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)  # the background's, which ignores it, is inherited
    child = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, env=env, cwd=here)
    signal.signal(signal.SIGINT, handler)
    with child:
        assert child.stderr is not None and child.stderr.readline()
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        said = child.stderr.read()
        # Python ends itself by the signal if it came while a string was executed, as for a dataclass: 130 in a shell
        assert child.wait(60) in (130, -signal.SIGINT), said
    assert said.splitlines()[-1] == "onnxfuse: interrupted"
    assert {path.name for path in here.iterdir()} == {"m.onnx"}
