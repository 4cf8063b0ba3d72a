"""The pages of two models in a real browser: of a profile, and of a difference, both of a real build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.runtime import process
from tests.cli.pages.browsing import browser, in_time, needs_browser, on_phone, opened, webdriver
from tests.models.fused import CACHE, built

__all__ = ["browser"]  # a fixture
pytestmark = needs_browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pages of a small BERT and what became of it, a node of each left to the runtime."""
    folder = tmp_path_factory.mktemp("pair")
    built("tiny-bert.decomposed", folder, skip_node=("tanh", "erf"))
    pair = ("m.onnx", "fused.onnx")
    profile = ("profile", *pair, "--duration", "0.2s", "--threads", "1", "--report", "profile.html", "--json")
    for verb, code in ((profile, 0), (("diff", *pair, "--report", "diff.html"), 1)):
        command = (sys.executable, "-m", "onnxfuse_cli", *verb)
        done = process.run(command, cwd=folder, env={"ONNXFUSE_CACHE_DIR": str(CACHE)})
        assert done.code == code, done.err
    return folder


def count(browser: Any, selector: str) -> int:
    return len(browser.find_elements("css selector", selector))


def test_a_profile_shows_layers_rates_and_memory(browser: Any, pages: Path):
    page = pages / "profile.html"
    assert page.stat().st_size < 500_000
    assert in_time(browser, page)
    rows = browser.execute_script("return [...document.querySelectorAll('#times > div')].map((d) => d.textContent)")
    assert any("encoder.layer.1" in row for row in rows)
    widths = browser.execute_script("return [...document.querySelectorAll('#times .bar')].map((b) => b.offsetWidth)")
    assert len(widths) == len(rows) and max(widths) > 100
    assert count(browser, "#roofline rect.dot") > 20 and count(browser, "#roofline circle.dot") > 8
    assert "measured on this machine" in browser.find_element("tag name", "body").text
    assert count(browser, "#memory path.run") == 2
    assert count(browser, ".legend li") == 2


def test_dots_tell_their_names(browser: Any, pages: Path):
    """Under the pointer, and by the keyboard."""
    opened(browser, pages / "profile.html")
    dot = browser.find_element("css selector", "#roofline circle.dot")
    webdriver.ActionChains(browser).move_to_element(dot).perform()
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed() and "GFLOP/s at" in tip.text and "of what memory and arithmetic allow" in tip.text
    browser.execute_script("arguments[0].blur(); document.querySelector('#roofline rect.dot').focus()", dot)
    assert tip.is_displayed() and "FLOP per byte" in tip.text
    webdriver.ActionChains(browser).move_to_element(browser.find_element("css selector", "#memory svg")).perform()
    assert "B at " in tip.text


def test_refusals_are_grouped_by_reason_with_their_layers(browser: Any, pages: Path):
    opened(browser, pages / "profile.html")
    rows = browser.execute_script(
        "const h = [...document.querySelectorAll('h2')].find((h) => h.textContent.startsWith('What was not'));"
        "return [...h.nextElementSibling.rows].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    kept = [row for row in rows if "E-KEEP" in row]
    assert kept and "encoder.layer.0, encoder.layer.1" in kept[0], rows


def test_a_difference_shows_both_graphs_and_what_belongs_together(browser: Any, pages: Path):
    page = pages / "diff.html"
    assert page.stat().st_size < 3_000_000 and in_time(browser, page)
    assert count(browser, "#graph-before canvas") and count(browser, "#graph-after canvas")
    browser.execute_script(
        "const n = views.before.nodes('.fused').filter((n) => n.data('label') === 'MatMul')[0];n.emit('tap')"
    )
    assert "became a part of" in browser.find_element("id", "about").text
    assert browser.execute_script("return views.after.nodes(':selected').length") == 1
    browser.find_element("id", "search").send_keys("erf")
    assert browser.find_element("id", "count").text.endswith("found")
    assert "and 0 found" not in browser.find_element("id", "count").text
    browser.find_element("id", "search").clear()
    browser.find_element("id", "collapse").click()
    assert (
        "130 of" in browser.find_element("id", "count").text or "135 of 135" in browser.find_element("id", "count").text
    )
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("name", ["profile.html", "diff.html"])
def test_a_phone_shows_them(browser: Any, pages: Path, name: str):
    with on_phone(browser):
        opened(browser, pages / name)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
