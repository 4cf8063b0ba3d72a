"""Writes docs/rules.md: every rewrite, its law, its numerics and its conditions, as the engine has them."""

from __future__ import annotations

import sys
from pathlib import Path

from onnxfuse.rewrite import STEPS, Step
from onnxfuse.rewrite.idioms import IDIOMS
from onnxfuse.rewrite.proofs.conditions import CONDITIONS

OUT = Path(__file__).resolve().parents[1] / "docs" / "rules.md"
HEAD = """# Rewrites

Written by `python scripts/rules.py`. A rewrite fires where it lowers the cost (work, bytes, launches), then the number
of nodes, then the distance from the canonical form; among several at one node, the one that lowers it most.

| numerics | what differs | allowed |
| --- | --- | --- |
| exact | nothing (zeros may differ in sign) | always |
| reassociates | rounding | always |
| assumes | also what lies outside of the assumption | where it is proven, with `--fast-math`, or by `--enable RULE` |

`--disable RULE` switches any of them off. In a law, lower-case names are values, `@` is MatMul, and `**k` stands for
the attributes and further inputs of an operator.
"""


def text() -> str:
    """The whole page."""
    parts = [HEAD, "## Rules\n", *_table(STEPS), "\n## Conditions\n"]
    parts += ["| condition | holds when |", "| --- | --- |"]
    parts += [f"| {name} | {(check.__doc__ or '').strip()} |" for name, check in CONDITIONS.items()]
    parts += [
        "\n## Chains that stay as they are\n",
        "ONNX Runtime fuses these by itself where no library of ours runs.\n",
    ]
    parts += ["| fused as | chain |", "| --- | --- |"]
    parts += [f"| {name} | `{chain!r}` |" for name, chain in IDIOMS]
    return "\n".join(parts) + "\n"


def _table(steps: tuple[Step, ...]) -> list[str]:
    rows = ["| rule | law | numerics | when |", "| --- | --- | --- | --- |"]
    for s in steps:
        conditions = [*s.when, *(f"assumes {a}" for a in s.assume)]
        rows.append(f"| {s.name} | `{s.law}` | {s.numerics} | {'; '.join(conditions)} |")
    return rows


def main() -> int:
    """Write the page; with --check, exit 1 when it is not current."""
    if "--check" in sys.argv[1:]:
        current = OUT.exists() and OUT.read_text(encoding="utf-8") == text()
        if not current:
            print("docs/rules.md is not current: run python scripts/rules.py", file=sys.stderr)
        return 0 if current else 1
    OUT.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
