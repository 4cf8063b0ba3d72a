"""Without ONNX Runtime, models are read, explained and built, and what needs it says so: exit code 5."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from onnxfuse.runtime import process
from tests.cli.conftest import chain, files

# The program where `import onnxruntime` fails, as after `pip install .` without extras.
PROGRAM = (
    "import sys; sys.modules['onnxruntime'] = None; from onnxfuse_cli.__main__ import run; sys.exit(run(sys.argv[1:]))"
)


def without(kernels: Path, *arguments: str) -> process.Finished:
    """A command line in a process of its own."""
    return process.run((sys.executable, "-c", PROGRAM, *arguments), env={"ONNXFUSE_CACHE_DIR": str(kernels)})


def test_a_model_is_built_and_a_note_says_that_it_was_not_verified(here: Path, kernels: Path) -> None:
    onnx.save(chain(), "m.onnx")
    done = without(kernels, "optimize", "m.onnx", "o.onnx")
    assert done.code == 0 and "verify    not possible: onnxruntime is not installed" in done.err, done.err
    assert files(here) == {"m.onnx", "o.onnx", "libo.so", "o.fuse.json"}
    for line in ("config", "doctor", "inspect o.onnx", "explain m.onnx", "cache info", "package ."):
        done = without(kernels, *line.split())
        assert done.code == 0, f"{line}: {done.err}"
    assert without(kernels, "diff", "m.onnx", "o.onnx").code == 1


@pytest.mark.parametrize(
    "line",
    ["optimize m.onnx --verify", "profile m.onnx", "verify m.onnx m.onnx", "bisect m.onnx m.onnx", "tune m.onnx"],
)
def test_what_needs_it_says_so(here: Path, kernels: Path, line: str) -> None:
    onnx.save(chain(), "m.onnx")
    done = without(kernels, *line.split())
    last = done.err.strip().splitlines()[-1]
    assert done.code == 5 and "onnxruntime is not installed (pip install onnxruntime" in last, done.err
    assert files(here) == {"m.onnx"}
