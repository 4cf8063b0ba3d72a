"""Progress of long-running verbs: an updated line on terminals, plain lines on request, nothing in pipes."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from onnxfuse_cli import progress
from onnxfuse_cli.show import Screen

from tests.cli.conftest import Onnxfuse, two_chains
from tests.cli.terminal import watched

SOON = 0.5  # seconds, on a machine that does nothing else
MOVED = re.compile(r"\r[|/\\-] ([^\r]*?)\x1b\[K")


def test_a_terminal_sees_something_at_once_and_each_compilation(here: Path, tmp_path: Path):
    """Three kernels to compile, with a cache that is empty: each is counted, and nothing of it is left at the end."""
    two_chains(here, "4, 32", "5, 7")
    env = {"ONNXFUSE_CACHE_DIR": str(tmp_path / "cache"), "ONNXFUSE_GAIN": "0"}
    seen = [watched(["optimize", "chains.onnx", "--overwrite"], env) for _ in range(2)]
    assert [each.code for each in seen] == [0, 0] and seen[0].out == ""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "onnxfuse_cli", "--version"], check=True, capture_output=True)
    assert min(each.first for each in seen) < max(SOON, 3 * (time.monotonic() - begin)), "busy machines take longer"
    moved = MOVED.findall(seen[0].err)
    counted = sorted({text.partition(",")[0] for text in moved if text.startswith("compile ")})
    assert counted and all(re.fullmatch(r"compile \d/[34]", each) for each in counted), moved
    assert any(text.startswith("verify") for text in moved)
    assert seen[0].err.splitlines()[-1].strip("\r").startswith("next")


def test_pipes_see_the_steps_alone(onnxfuse: Onnxfuse, model: Path):
    said = onnxfuse("optimize", "m.onnx")
    assert "\r" not in said.err and "..." not in said.err
    assert onnxfuse("explain", "m.onnx").err == ""


def test_lines_on_request(onnxfuse: Onnxfuse, model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "_SOON", 0.01)
    monkeypatch.setattr(progress, "_REPEATS", 0.05)
    said = onnxfuse("profile", "m.onnx", "--duration", "0.3s", "--progress", "plain")
    assert said.code == 0 and "measure ..." in said.err.splitlines() and "\x1b" not in said.err
    assert onnxfuse("profile", "m.onnx", "--duration", "0.1s", "--progress", "none").err == ""
    assert onnxfuse("profile", "m.onnx", "--duration", "0.1s", "--progress", "plain", "-q").err == ""
    assert onnxfuse("profile", "m.onnx", "--progress", "loud").code == 2


def test_what_is_counted_and_how_long_it_takes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """A second after it began its seconds are told, and a line that stays does not stay in the middle of it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    at = progress.Progress(Screen(terminal=True), moves=True)
    at.tell("begin", {"step": "build"})
    at.tell("part", {"done": 3, "of": 8})
    now[0] += 12.4
    at._show()
    at.say("read      m.onnx")
    shown = capsys.readouterr().err
    assert "compile 3/8, 12 s\x1b[K" in shown
    assert shown.endswith("\r\x1b[Kread      m.onnx\n")
