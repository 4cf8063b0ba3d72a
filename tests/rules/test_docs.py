"""The page of rules says what the engine does."""

from __future__ import annotations

from onnxfuse.rewrite import STEPS
from scripts import rules


def test_the_page_is_current() -> None:
    assert rules.OUT.read_text(encoding="utf-8") == rules.text(), "run python scripts/rules.py"


def test_every_rule_has_a_row() -> None:
    page = rules.text()
    assert all(page.count(f"\n| {s.name} | ") == 1 for s in STEPS)
