"""Output on terminals, in pipes, and where a stream cannot encode it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from onnxfuse_cli import show, summary

from onnxfuse import optimize
from tests.caches import own_cache
from tests.cli.conftest import Onnxfuse
from tests.cli.terminal import on_terminal


def test_columns():
    rows = [("operator", "count"), ("Add", "12"), ("Convolution", "3")]
    assert list(show.table(rows, right=(1,))) == ["operator     count", "Add             12", "Convolution      3"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_columns_fit_the_terminal(width: int):
    words = ", ".join(f"node_matmul_{at}" for at in range(12))
    rows = [("kernel", "type", "flops", "nodes"), ("MatMul_Add_LayerNormalization", "Many-to-Many", "113.4 M", words)]
    lines = list(show.table(rows, right=(2,), width=width))
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(map(" ".join, rows)).split())


@pytest.mark.parametrize("width", [24, 40, 60])
def test_more_columns_of_numbers_than_fit_take_more_lines(width: int):
    rows = [("kernel", "phases", "flops", "bytes", "predicted", "runtime", "bound", "nodes")]
    rows += [("Mul_Add", "1", "113.4 M", "1.3 k", "113.04 us", "141.12 us", "dispatch", "Mul_0, Add_1")]
    lines = list(show.table(rows, right=(1, 2, 3, 4, 5), width=width))
    assert max(map(len, lines)) <= width
    assert " ".join(lines).split() == " ".join(map(" ".join, rows)).split()


@pytest.mark.parametrize("name", ["NO_COLOR", "CI"])
def test_variables_that_ask_for_plain_output_are_obeyed(name: str, monkeypatch: pytest.MonkeyPatch):
    for each in ("NO_COLOR", "CI", "TERM"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert show.screen().terminal
    monkeypatch.setenv(name, "1")
    assert not show.screen().terminal


def test_json_is_strict():
    with pytest.raises(ValueError, match="JSON"):
        show.json_text({"a": float("nan")})


def test_a_terminal_sees_colours_what_is_under_way_and_the_gain(model: Path, kernels: Path):
    code, out, said = on_terminal(["optimize", "m.onnx"], {"ONNXFUSE_CACHE_DIR": str(kernels)})
    assert (code, out) == (0, ""), said
    assert "\x1b[32mok\x1b[0m" in said and "\r| " in said
    assert "gain      " in said


def test_explain_fits_the_terminal_and_a_pipe_gets_whole_lines(onnxfuse: Onnxfuse, model: Path):
    own_cache(Path("own"))
    assert onnxfuse("tune", "m.onnx", "--budget", "1", "--threads", "1", "--cache-dir", "own").code == 0
    command = f"{sys.executable} -m onnxfuse_cli explain m.onnx"
    env = os.environ | {"ONNXFUSE_CACHE_DIR": "own", "COLUMNS": "72", "TERM": "xterm"}
    on_screen = subprocess.run(
        ["script", "-qec", f"{command} 2>/dev/null", "/dev/null"], capture_output=True, text=True, check=True,
        env=env, stdin=subprocess.DEVNULL,
    ).stdout  # fmt: skip
    piped = subprocess.run(command.split(), capture_output=True, text=True, check=True, env=env).stdout
    assert max(map(len, on_screen.splitlines())) <= 72 < max(map(len, piped.splitlines()))
    assert "Mul_0" in on_screen and "note: groups as `tune` measured them on " in on_screen


def test_a_dumb_terminal_sees_plain_lines(model: Path, kernels: Path):
    env = {"ONNXFUSE_CACHE_DIR": str(kernels), "TERM": "dumb", "ONNXFUSE_GAIN": "0"}
    code, out, said = on_terminal(["optimize", "m.onnx", "--no-verify"], env)
    assert (code, out) == (0, "") and "\x1b" not in said
    assert "gain" not in said


def test_names_that_a_stream_cannot_encode(model: Path, here: Path):
    model.rename("möwe.onnx")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "onnxfuse_cli", "inspect", "möwe.onnx"]
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert done.returncode == 0 and b"m?we.onnx" in done.stdout, done.stderr


def test_a_pipe_closed_by_its_reader_is_no_error(model: Path, here: Path):
    script = f"{sys.executable} -m onnxfuse_cli optimize --list-passes | head -n 1"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1 and done.stderr == ""


@pytest.mark.parametrize(("width", "figures"), [(120, 6), (62, 4), (40, 2)])
def test_optimize_ends_with_the_figures_that_fit(
    model: Path, monkeypatch: pytest.MonkeyPatch, width: int, figures: int
):
    result = optimize(model, Path("out.onnx"), verify=False, gain=False)
    monkeypatch.setattr(summary, "terminal_width", lambda: width)
    lines = list(summary.summary(result))
    (row,) = (line for line in lines if line.startswith("all nodes"))
    assert len(row.replace(" k", "k").split()) == 2 + figures
    assert max(len(line) for line in lines if not line.startswith(("files", "next"))) <= width
