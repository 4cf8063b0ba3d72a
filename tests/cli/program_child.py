"""The program `onnxfuse` in a child that is forked from a server that has imported it: see `programs`."""

from __future__ import annotations

import os
import sys
from typing import Any

from onnxfuse_cli import show, verbs_models, verbs_tools
from onnxfuse_cli.__main__ import run

from onnxfuse import pipeline
from onnxfuse.runtime import process

IMPORTED = (pipeline, verbs_models, verbs_tools)  # what verbs import when they run


def main(asked: dict[str, Any]) -> int:
    """The exit code of a command line, with the environment and standard streams that are asked for."""
    for number, (path, flags) in enumerate(asked["streams"]):
        file = os.open(path, flags, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = ["onnxfuse", *asked["words"]]
    code = run(asked["words"])
    show.finish()
    return code


if __name__ == "__main__":
    process.serve(main)
