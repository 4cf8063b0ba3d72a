"""`make replay` compares texts over its table of renamings, tells which differ, and keeps those of commits."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import replay

PLAN = "E-TYPE a, b: {0}\n{1} y: bfloat16\nphase over m from 0 to 4\n"


def folders(tmp_path: Path, old: str, new: str) -> tuple[Path, Path]:
    made = tmp_path / "old", tmp_path / "new"
    for folder, text in zip(made, (old, new), strict=True):
        folder.mkdir()
        (folder / "net.x86-64-v4.plan").write_text(text, encoding="utf-8")
    return made


def test_wording_and_renamed_words_make_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = folders(tmp_path, PLAN.format("one reason", "held"), PLAN.format("the reason in other words", "stored"))
    assert replay.changed(old, new, ["net.x86-64-v4.plan"], "HEAD") == 0
    assert "0 of 1 texts differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "other"), [("E-TYPE", "E-COST"), ("a, b", "a, c"), ("bfloat16", "float32"), ("4", "5")]
)
def test_other_changes_are_differences(
    word: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PLAN.format("a reason", "stored")
    old, new = folders(tmp_path, text, text.replace(word, other))
    assert replay.changed(old, new, ["net.x86-64-v4.plan"], "HEAD") == 1
    assert other in capsys.readouterr().out


def test_kept_texts_are_not_computed_again(tmp_path: Path) -> None:
    kept = tmp_path / "no-such-network.x86-64-v4.render"
    kept.write_text("kept")
    replay.write_texts(tmp_path, ["x86-64-v4"], [tmp_path / "no-such-network.onnx"])
    assert kept.read_text() == "kept" and len(list(tmp_path.iterdir())) == 1
