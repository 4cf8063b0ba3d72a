"""Writes docs/options.md: every field of `Options`, with its type, its default and what it does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from onnxfuse.config import option_fields

OUT = Path(__file__).resolve().parents[1] / "docs" / "options.md"
HEAD = """# Options

Written by `python scripts/options.py`. The keyword arguments of [onnxfuse.optimize](api.md#optimize), which are the
fields of `onnxfuse.Options`. A field that holds several values takes a sequence of strings; times are in seconds, sizes
in bytes, shares between 0 and 1.

| field | type | default | what it does |
| --- | --- | --- | --- |
"""


def text() -> str:
    """The whole page."""
    return HEAD + "".join(f"| {' | '.join(_row(field))} |\n" for field in option_fields())


def _row(field: Any) -> tuple[str, str, str, str]:
    kind = str(field.type).replace("|", "\\|")
    said = field.metadata["help"].replace("|", "\\|")
    choices = field.metadata.get("choices")
    if choices:
        said += f" ({', '.join(f'`{each}`' for each in choices)})"
    return f"`{field.name}`", f"`{kind}`".replace("\\|", "or"), f"`{field.default!r}`", said


def main() -> int:
    OUT.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
