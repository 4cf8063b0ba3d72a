"""Small programs that load a model with its library, one for each language."""

from __future__ import annotations

import json
from pathlib import Path

_FOLDER = Path(__file__).parent / "loaders"


def programs(model: str, library: str | None) -> dict[str, str]:
    """By file name, a program in each language that loads a model, with its library if it has one.

    They are meant to be two folders below the model, as in archives of `onnxfuse package`, or take its folder as an
    argument.
    """
    found = {}
    for path in sorted(_FOLDER.iterdir()):
        text = path.read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if library is not None or "LIBRARY" not in line]
        made = "\n".join(lines) + "\n"
        found[path.name.removesuffix(".txt")] = made.replace('"MODEL"', json.dumps(model)).replace(
            '"LIBRARY"', json.dumps(library or "")
        )
    return found
