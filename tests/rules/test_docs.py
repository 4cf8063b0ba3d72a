"""The page of rules agrees with the rewrite engine."""

from __future__ import annotations

import pytest

from onnxfuse.rewrite import STEPS
from scripts import rules


def test_the_page_is_current() -> None:
    assert rules.OUT.read_text(encoding="utf-8") == rules.text(), "run python scripts/rules.py"


def parts() -> tuple[str, str]:
    """The page without the part about where rules fire, and this part."""
    head, _, rest = rules.text().partition(rules.FIRES)
    fires, _, tail = rest.partition("\n## ")
    return head + tail, fires


def test_every_rule_has_a_row() -> None:
    page, _ = parts()
    assert all(page.count(f"\n| {s.name} | ") == 1 for s in STEPS)


# By hand: a change of the rules shows here at once; the others are looked at in the slow test.
QUICK = ("tiny-bert.dynamic", "tiny-mobilenet.decomposed", "tiny-gpt2", "tiny-tagger.dynamic")


def test_rules_fire_where_the_page_says() -> None:
    for name in QUICK:
        check_counts(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*rules.SMALL} - {*QUICK}))
def test_rules_fire_where_the_page_says_in_all_networks(name: str) -> None:
    check_counts(name)


def check_counts(name: str) -> None:
    _, page = parts()
    found = rules.fired(name)
    for step in STEPS:
        cells = next((line.split(" | ") for line in page.splitlines() if line.startswith(f"| {step.name} | ")), None)
        where = dict(part.rsplit(" ", 1) for part in cells[2].split(", ")) if cells else {}
        count = int(where.get(name.removeprefix("tiny-"), 0))
        assert count == found.get(step.name, 0), f"{name}: {step.name}: run python scripts/rules.py --fires"


def test_every_rule_fires_or_is_said_not_to() -> None:
    _, page = parts()
    idle = page.partition(rules.IDLE)[2].rstrip(".\n").split(", ")
    rows = [line.split(" | ")[0][2:] for line in page.splitlines() if line.startswith("| ")][2:]
    assert [s.name for s in STEPS if s.name not in idle] == rows
    assert set(idle) == {s.name for s in STEPS} - set(rows)
