"""What plan, scheduler and renderer make of small models, in full: changes are meant, and are reviewed as a diff.

`make golden` (or pytest with --update-golden) writes the sections anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.case import FOLDER, SECTIONS, current, read, whole

CASES = sorted(FOLDER.glob("*.case"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 10


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_golden_texts_are_unchanged(path: Path, request: pytest.FixtureRequest) -> None:
    case = read(path)
    now = current(case)
    if request.config.getoption("--update-golden"):
        path.write_text(whole(case, now), encoding="utf-8")
        return
    for name in SECTIONS:
        assert now[name].strip() == case.sections[name].strip(), f"# {name} is another: make golden, then git diff"
    assert path.read_text(encoding="utf-8") == whole(case, now)


@pytest.mark.parametrize("path", CASES[:4], ids=lambda p: p.stem)
def test_two_builds_are_equal(path: Path) -> None:
    assert current(read(path)) == current(read(path))
