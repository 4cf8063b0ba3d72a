"""Without ONNX Runtime, models are read, explained and built, and what needs it says so: exit code 5."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest

from onnxfuse.runtime import process
from tests.cli.conftest import Said, chain, files

# Where `import onnxruntime` fails, as after `pip install .` without extras: a process for each command line.
PROGRAM = """
import json, os, sys
sys.modules["onnxruntime"] = None
from onnxfuse_cli import show, verbs_models, verbs_tools
from onnxfuse_cli.__main__ import run
from onnxfuse import pipeline
for number, line in enumerate(json.loads(sys.argv[1])):
    pid = os.fork()
    if not pid:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[2]}/{name}{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        code = run(line.split())
        show.finish()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def model(here: Path) -> Path:
    onnx.save(chain(), "m.onnx")
    return here


@pytest.fixture
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what command lines print."""
    return tmp_path_factory.mktemp("said")


def without(kernels: Path, said: Path, *lines: str) -> list[Said]:
    """What command lines do, one after the other; `said` is a folder for what they print."""
    done = process.run(
        (sys.executable, "-c", PROGRAM, json.dumps(lines), str(said)), env={"ONNXFUSE_CACHE_DIR": str(kernels)}
    )
    assert done.code == 0, done.err
    codes = map(int, done.out.split())
    return [Said(code, *((said / f"{name}{n}").read_text() for name in ("out", "err"))) for n, code in enumerate(codes)]


def test_a_model_is_built_and_a_note_says_that_it_was_not_verified(model: Path, kernels: Path, said: Path) -> None:
    (built,) = without(kernels, said, "optimize m.onnx o.onnx")
    assert built.code == 0 and "verify    not possible: onnxruntime is not installed" in built.err, built.err
    assert files(model) == {"m.onnx", "o.onnx", "libo.so", "o.fuse.json"}
    lines = ("config", "doctor", "inspect o.onnx", "explain m.onnx", "cache info", "package .", "diff m.onnx o.onnx")
    *others, differ = without(kernels, said, *lines)
    assert [each.code for each in others] == [0] * 6, others
    assert differ.code == 1


LINES = ("optimize m.onnx --verify", "profile m.onnx", "verify m.onnx m.onnx", "bisect m.onnx m.onnx", "tune m.onnx")


def test_what_needs_it_says_so(model: Path, kernels: Path, said: Path) -> None:
    for line, done in zip(LINES, without(kernels, said, *LINES), strict=True):
        last = done.err.strip().splitlines()[-1]
        assert done.code == 5 and "onnxruntime is not installed (pip install onnxruntime" in last, f"{line}: {done.err}"
    assert files(model) == {"m.onnx"}
