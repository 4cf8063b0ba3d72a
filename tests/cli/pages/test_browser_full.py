"""The pages of networks of full size in a real browser: small, there in time, to be clicked, searched and unfolded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.runtime import process
from tests.cli.pages.browsing import browser, in_time, needs_browser, opened
from tests.cli.pages.test_browser import click, shown
from tests.craft.sources import ROOT

__all__ = ["browser"]  # a fixture

pytest.importorskip("torch", reason="networks of full size are exported by torch")
pytestmark = [needs_browser, pytest.mark.slow]
# Nodes at least, a word of a node that is clicked, and one that the search is asked for.
NETWORKS = {"bert-base.decomposed": (650, "MatMul", "Exp"), "yolo-v4-boxes.decomposed": (600, "Conv", "Resize")}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_page_of_a_network_opens_in_time(name: str, browser: Any, tmp_path: Path) -> None:
    least, word, wanted = NETWORKS[name]
    made = process.run((sys.executable, "-m", "models", name, "--out", str(tmp_path)), cwd=ROOT)
    assert made.code == 0, made.err
    page = tmp_path / "page.html"
    done = process.run(
        (sys.executable, "-m", "onnxfuse_cli", "explain", f"{tmp_path / name}.onnx", "--report", str(page))
    )
    assert done.code == 0, done.err
    assert page.stat().st_size < 3e6
    assert in_time(browser, page)
    opened(browser, page)
    assert "mapping type" in click(browser, word)
    browser.find_element("id", "before").click()
    few, whole = shown(browser)
    assert whole >= least
    folded = "return view.nodes().filter((n) => n.data('label').includes('more of these')).length"
    if browser.execute_script(folded):
        click(browser, "more of these")
        assert shown(browser)[0] > few
    else:
        assert few == whole
    browser.find_element("id", "search").send_keys(wanted)
    assert browser.execute_script("return view.nodes('.found').length") > 0
    assert [each["message"] for each in browser.get_log("browser")] == []
