"""The page of commands is the program's own help, and the README names every verb."""

from __future__ import annotations

import re

from onnxfuse_cli.verbs import onnxfuse

from scripts import commands
from tests.craft.sources import ROOT


def test_the_page_is_current():
    assert commands.OUT.read_text(encoding="utf-8") == commands.text(), "run python scripts/commands.py"


def test_the_readme_names_every_verb_and_every_exit_code():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([a-z]+)", readme, re.MULTILINE))
    assert set(onnxfuse.commands) <= named
    codes = re.findall(r"^\| (\d+) \|", readme, re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "4", "5", "6", "7", "70", "130"]


def test_installation_has_one_form():
    """From a checkout, as long as there is no release: the folder, with extras."""
    pages = [ROOT / "README.md", ROOT / "models/README.md", *(ROOT / "docs").glob("*.md")]
    texts = {str(path): path.read_text(encoding="utf-8") for path in (*pages, *(ROOT / "docs/recipes").iterdir())}
    found = [(name, said) for name, text in texts.items() for said in re.findall(r"pip install (.*)", text)]
    ours = [(name, said) for name, said in found if "[" in said or "onnxfuse" in said]
    assert len(ours) > 8
    assert [
        each for each in ours if not re.match(r"""'\.\[|"\./onnxfuse\[|--no-cache-dir "/onnxfuse\[""", each[1])
    ] == []
