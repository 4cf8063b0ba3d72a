"""Writes docs/commands.md: every verb with its flags, as `--help` prints them."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from onnxfuse_cli.verbs import onnxfuse

OUT = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
WIDTH = 110
HEAD = """# Commands

Written by `python scripts/commands.py` from the program. Every flag is also a key of `[tool.onnxfuse]` in
`pyproject.toml` or of `onnxfuse.toml`, and an environment variable: `--fast-math` is `fast-math = true` and
`ONNXFUSE_FAST_MATH=1`. Exit codes and the outputs are described in the [README](../README.md).
"""


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, verb in onnxfuse.commands.items():
        settings = dict(onnxfuse.context_settings) | {"terminal_width": WIDTH, "max_content_width": WIDTH}
        context = click.Context(verb, info_name=f"onnxfuse {name}", **settings)
        parts.append(f"## {name}\n\n```text\n{verb.get_help(context)}\n```\n")
    return "\n".join(parts)


def main() -> int:
    OUT.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
