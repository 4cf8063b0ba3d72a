"""Closed, full and unread standard streams; folders without write permission; names that are links."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from onnxfuse.runtime import process
from tests.cli.conftest import Onnxfuse, Said, files

PROGRAM = (sys.executable, "-m", "onnxfuse_cli")


def shell(line: str, kernels: Path, **env: str) -> Said:
    """What a line of a shell does; in it `"$@"` is the program."""
    done = process.run(("sh", "-c", line, "sh", *PROGRAM), env={"ONNXFUSE_CACHE_DIR": str(kernels)} | env)
    return Said(done.code, done.out, done.err)


def fails(said: Said, code: int, words: str) -> None:
    assert said.code == code, said.err
    assert said.last.startswith("onnxfuse: ") and words in said.last, said.err
    assert "Traceback" not in said.err and "internal" not in said.err


def test_closed_standard_input(model: Path, here: Path, kernels: Path):
    for verb in ("optimize - o.onnx", "inspect -", "explain -", "profile -"):
        fails(shell(f'"$@" {verb} <&-', kernels), 2, "standard input is closed")
    assert files(here) == {"m.onnx"}


def test_empty_standard_input(here: Path, kernels: Path):
    fails(shell('"$@" optimize - o.onnx < /dev/null', kernels), 3, "the input is empty")
    assert files(here) == set()


def test_closed_standard_output(model: Path, here: Path, kernels: Path):
    fails(shell('"$@" inspect m.onnx >&-', kernels), 7, "standard output is closed")
    fails(shell('"$@" optimize m.onnx -o - --lib l.so >&-', kernels), 7, "standard output is closed")
    assert files(here) == {"m.onnx"}
    assert shell('"$@" optimize m.onnx o.onnx --no-verify >&-', kernels).code == 0  # nothing goes there


def test_closed_standard_error(model: Path, here: Path, kernels: Path):
    assert shell('"$@" optimize m.onnx o.onnx --no-verify 2>&-', kernels).code == 0
    assert shell('"$@" optimize n.onnx 2>&-', kernels).code == 2
    assert "o.onnx" in files(here)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("verb", ["inspect m.onnx", "inspect m.onnx --json", "config", "--version"])
def test_a_full_disk_while_a_result_is_written(model: Path, kernels: Path, verb: str):
    fails(shell(f'"$@" {verb} > /dev/full', kernels), 7, "standard output cannot be written")


def test_a_pipe_closed_while_a_result_is_written(model: Path, here: Path, kernels: Path):
    said = shell('{ "$@" config --json; echo "$?" >&2; } | head -n 1', kernels)
    assert (said.code, said.out) == (0, "{\n")
    assert said.err.splitlines() in (["0"], ["7"])  # whether it was written before the pipe was closed
    said = shell('{ "$@" optimize m.onnx -o - --lib l.so --no-verify -q; echo "$?" >&2; } | true', kernels)
    assert said.err.splitlines()[-1] == "7" and "Broken pipe" in said.err
    assert files(here) == {"m.onnx"}


def test_what_is_read_is_not_replaced_by_something_else(onnxfuse: Onnxfuse, model: Path, here: Path):
    Path("link.onnx").symlink_to("m.onnx")
    before = model.read_bytes()
    fails(onnxfuse("optimize", "m.onnx", "o.onnx", "--manifest", "link.onnx", "--overwrite"), 2, "the manifest and")
    assert model.read_bytes() == before and files(here) == {"m.onnx", "link.onnx"}


def test_a_link_as_output_keeps_being_one(onnxfuse: Onnxfuse, model: Path, here: Path):
    Path("real").mkdir()
    Path("real/o.onnx").write_text("old")
    Path("o.onnx").symlink_to("real/o.onnx")
    assert onnxfuse("optimize", model, "o.onnx", "--overwrite", "--no-verify").code == 0
    assert Path("o.onnx").is_symlink() and Path("real/o.onnx").read_bytes() != b"old"
    assert files(Path("real")) == {"o.onnx"}


def test_names_with_spaces_and_letters_of_all_sorts(onnxfuse: Onnxfuse, model: Path, here: Path):
    folder = here / "with space, déjà vu"
    folder.mkdir()
    named = folder / "mödel \u4e2d.onnx"
    model.rename(named)
    assert onnxfuse("optimize", named).code == 0
    assert len(files(folder)) == 4
    assert onnxfuse("verify", named, folder / "mödel \u4e2d.fused.onnx").code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_usual_cache_that_cannot_be_written(model: Path, here: Path, kernels: Path):
    Path("home").mkdir(mode=0o500)
    said = shell(
        '"$@" optimize m.onnx --no-verify', kernels, HOME=str(here / "home"), XDG_CACHE_HOME="", ONNXFUSE_CACHE_DIR=""
    )
    assert said.code == 0 and "compiled without a cache" in said.err


def test_a_usual_cache_that_cannot_be_made(model: Path, here: Path, kernels: Path):
    Path("home").write_text("no folder")
    said = shell(
        '"$@" optimize m.onnx --no-verify', kernels, HOME=str(here / "home"), XDG_CACHE_HOME="", ONNXFUSE_CACHE_DIR=""
    )
    assert said.code == 0 and "compiled without a cache" in said.err
    named = shell('"$@" optimize m.onnx --overwrite --no-verify --cache-dir home/x', kernels)
    fails(named, 7, "cache: home/x cannot be written")
