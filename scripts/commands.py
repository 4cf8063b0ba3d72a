"""Writes docs/commands.md: every verb with its flags, as `--help` prints them."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from onnxfuse_cli.verbs import onnxfuse

from onnxfuse.ir.graph import CODES

OUT = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
WIDTH = 110
HEAD = """# Commands

Written by `python scripts/commands.py` from the program. Every flag is also a key of `[tool.onnxfuse]` in
`pyproject.toml` or of `onnxfuse.toml`, and an environment variable: `--fast-math` is `fast-math = true` and
`ONNXFUSE_FAST_MATH=1`. Exit codes are listed [below](#exit-codes).
"""


EXIT_CODES = {
    0: "good, also when nothing could be fused: then the output is a copy",
    1: 'the question was answered "no": models differ, a limit was missed',
    2: "wrong usage, a missing file, an output that exists",
    3: "the model cannot be read",
    4: "no compiler, or it failed",
    5: "ONNX Runtime failed",
    6: "a time or memory budget was exceeded",
    7: "an output cannot be written",
    70: "a bug of onnxfuse",
    130: "interrupted",
}


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, verb in onnxfuse.commands.items():
        settings = dict(onnxfuse.context_settings) | {"terminal_width": WIDTH, "max_content_width": WIDTH}
        context = click.Context(verb, info_name=f"onnxfuse {name}", **settings)
        parts.append(f"## {name}\n\n```text\n{verb.get_help(context)}\n```\n")
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts.append("\n".join(("## Exit codes", "", "| code | meaning |", "| ---: | --- |", *rows, "")))
    codes = [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    why = "Of refusals, in `explain`, `--json` and reports. They never change their meaning."
    parts.append("\n".join(("## Reason codes", "", why, "", "| code | meaning |", "| --- | --- |", *codes, "")))
    return "\n".join(parts)


def main() -> int:
    OUT.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
