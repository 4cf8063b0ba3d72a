"""Command lines and Python as programs of their own, without the second that it takes to import all of onnxfuse.

Children are forked from a server that has done so. That the program itself starts is tested elsewhere: `test_streams`,
`test_demo`, and the commands of the README.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxfuse.runtime import process
from tests.cli.conftest import Said

CHILD = "tests.cli.program_child"
READ, WRITE = os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_SHELL = re.compile(r"[|&;$`~*?\\(){}\n]|<<|>>|\d>")  # what only a shell understands


def onnxfuse_as_program(
    words: list[str],
    env: Mapping[str, str],
    stdin: str = os.devnull,
    stdout: str | None = None,
    *,
    loaded: Sequence[Path] = (),
) -> Said:
    """What a command line does in the current folder; `env` is added to the variables of this process.

    Libraries that are `loaded` beforehand are found by their own names.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = (str(Path(folder, name)) for name in ("out", "err"))
        streams = ((stdin, READ), (stdout or out, WRITE), (err, WRITE))
        variables = {**os.environ, **env}
        asked = {"words": words, "env": variables, "streams": streams, "loaded": [str(path) for path in loaded]}
        code = process.python_child(CHILD, asked, stage="test", time_limit=300)
        said = ["" if path == stdout else Path(path).read_text(encoding="utf-8") for path, _ in streams[1:]]
    return Said(code, *said)


def python(text: str) -> None:
    """What a program in Python does in the current folder; a warning is an error. Raises what says how it ended."""
    process.python_child(CHILD, {"text": text, "env": dict(os.environ)}, stage="test", time_limit=300)


def line(text: str, env: Mapping[str, str]) -> Said:
    """What a line of a shell does: a command of onnxfuse, with its files for streams, needs no shell."""
    words = shlex.split(text, comments=True)
    if not words or words[0] != "onnxfuse" or _SHELL.search(text.partition(" #")[0]):
        done = process.run(("sh", "-ec", text), env=dict(env))
        return Said(done.code, done.out, done.err)
    files = {sign: words[words.index(sign) + 1] for sign in "<>" if sign in words}
    plain = words[1 : min(words.index(sign) for sign in files)] if files else words[1:]
    return onnxfuse_as_program(plain, env, files.get("<", os.devnull), files.get(">"))
