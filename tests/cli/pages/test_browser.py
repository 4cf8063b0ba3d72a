"""The page of a build in a real browser: it opens without a complaint, and clicking, searching and unfolding work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from onnxfuse.pipeline import optimize
from onnxfuse.report.page import text_of
from onnxfuse.report.sections import page_of
from tests.cli.pages.browsing import browser, in_time, luminance, needs_browser, on_phone, opened, webdriver
from tests.models.fused import model_bytes

__all__ = ["browser"]  # a fixture

pytestmark = needs_browser
LAYERS = 40


def deep() -> bytes:
    """Equal layers, 1,041 nodes in all, and at the end one that belongs to somebody else."""
    steps = []
    for layer in range(LAYERS):
        value = f"x{layer}"
        for at in range(24):
            made = f"v{layer}_{at}"
            steps.append(f"{made} = {('Exp', 'Neg', 'Tanh', 'Sigmoid')[at % 4]} ({value})")
            value = made
        steps += [f"s{layer} = Softmax <axis = -1> ({value})", f"x{layer + 1} = Add (s{layer}, x{layer})"]
    head = '<ir_version: 8, opset_import: ["" : 17, "theirs" : 1]> deep (float[4, 32] x0) => (float[4, 32] y)'
    body = "\n".join([*steps, f"y = theirs.Own (x{LAYERS})"])
    return bytes(onnx.parser.parse_model(f"{head} {{ {body} }}").SerializeToString())


def page_of_model(model: bytes, folder: Path) -> Path:
    result = optimize(model, stop_after="render")
    path = folder / "page.html"
    path.write_text(text_of(page_of(result.to_json("explain", drawing=True)), "html"), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of_model(model_bytes("tiny-bert.decomposed"), tmp_path_factory.mktemp("bert"))


def shown(browser: Any) -> list[int]:
    """How many nodes are shown, and of how many."""
    words = browser.find_element("id", "count").text.split()
    return [int(words[0]), int(words[2])]


def click(browser: Any, word: str) -> str:
    """Click, in the middle of where it is drawn, the first node whose label has a word; what is told of it then."""
    place = browser.execute_script(
        "const n = view.nodes().filter((n) => n.data('label').includes(arguments[0]))[0];"
        "view.center(n); const p = n.renderedPosition(); return [p.x, p.y]", word
    )  # fmt: skip
    graph = browser.find_element("id", "graph")
    size = graph.size
    mouse = webdriver.ActionChains(browser)
    mouse.move_to_element_with_offset(
        graph, place[0] - size["width"] / 2, place[1] - size["height"] / 2
    ).click().perform()
    return str(browser.find_element("id", "about").text)


def test_a_kernel_tells_what_it_stands_for(browser: Any, bert: Path):
    opened(browser, bert)
    before, whole = shown(browser)
    said = click(browser, "MatMul")
    assert "mapping type" in said and "stands for" in said and "scheduled kernel" in said and "generated C++" in said
    browser.find_element("css selector", "#about details summary").click()
    assert "phase over" in browser.find_element("css selector", "#about details pre").text
    assert before <= whole


def test_layers_that_repeat_unfold(browser: Any, tmp_path: Path):
    """The page of a deep network is there in time, folded and unfolded, and is no larger than its parts."""
    page = page_of_model(deep(), tmp_path)
    assert page.stat().st_size < 3e6
    assert in_time(browser, page)
    browser.find_element("id", "before").click()
    few, whole = shown(browser)
    assert few < 60 and whole > 26 * LAYERS
    click(browser, "more of these 26 nodes")
    assert shown(browser) == [whole, whole]
    browser.find_element("id", "collapse").click()
    assert shown(browser) == [few, whole]
    assert "theirs" in click(browser, "Own") or "E-OPAQUE" in browser.find_element("id", "about").text
    assert browser.get_log("browser") == []


def test_a_large_graph_is_seen_from_its_beginning(browser: Any, tmp_path: Path):
    """The first nodes are inside of the box, wherever the rest of the graph goes; no two boxes lie on each other."""
    opened(browser, page_of_model(deep(), tmp_path))
    browser.find_element("id", "before").click()
    browser.find_element("id", "collapse").click()
    seen = "const n = view.nodes()[0].renderedPosition(); return [n.x / view.width(), n.y / view.height()]"
    assert all(0 < share < 1 for share in browser.execute_script(seen))
    overlaps = """const at = new Map();
      return view.nodes().filter((n) => {
        const [row, box] = [n.position('y'), n.boundingBox()];
        const hit = (at.get(row) ?? []).some((b) => box.x1 < b.x2 && b.x1 < box.x2);
        at.set(row, [...(at.get(row) ?? []), box]);
        return hit; }).length"""
    assert browser.execute_script(overlaps) == 0


def test_search_finds_and_moves_there(browser: Any, bert: Path):
    opened(browser, bert)
    browser.find_element("id", "search").send_keys("matmul")
    found = int(browser.find_element("id", "count").text.split()[0])
    assert found == browser.execute_script("return view.nodes('.found').length") > 0
    browser.find_element("id", "search").clear()
    browser.find_element("id", "search").send_keys("no such node")
    assert browser.find_element("id", "count").text == "0 found"


def test_times_and_roofline_are_drawn_and_nothing_is_loaded(browser: Any, bert: Path):
    opened(browser, bert)
    bars = browser.execute_script("return [...document.querySelectorAll('#times .bar')].map((b) => b.offsetWidth)")
    assert len(bars) >= 4 and max(bars) > 100
    assert browser.execute_script("return document.querySelectorAll('#roofline circle').length") >= 2
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_phone_can_show_it(browser: Any, bert: Path):
    with on_phone(browser):
        opened(browser, bert)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        assert browser.execute_script("return document.querySelector('#times .bar').parentElement.offsetHeight") < 40


def test_dark_mode_has_enough_contrast(browser: Any, bert: Path):
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    try:
        opened(browser, bert)
        style = "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
        ink, paper = (luminance(each) for each in browser.execute_script(style))
        assert (ink + 0.05) / (paper + 0.05) > 7, "the contrast that WCAG asks for at its highest level"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
