"""The pages become a site without a warning: every page is in a table of contents, every link and picture is there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onnxfuse.runtime import process
from tests.craft.sources import ROOT

DOCS = ROOT / "docs"


def test_the_site_builds_without_a_warning(tmp_path: Path):
    pytest.importorskip("sphinx", reason="make site installs what builds the pages")
    command = (sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-n", "-c", str(DOCS / "site"))
    done = process.run((*command, "-d", str(tmp_path / "trees"), str(DOCS), str(tmp_path / "site")))
    assert done.code == 0, done.err


def test_pages_stay_in_their_folder():
    """The site has no files of the program: pages name them as code."""
    outside = [
        f"{page.name}: {line}"
        for page in DOCS.rglob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if "](../../" in line or (page.parent == DOCS and "](../" in line)
    ]
    assert outside == []
