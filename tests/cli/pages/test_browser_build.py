"""The page of a build beside clicks on nodes: colours by time, rows that lead to nodes, keys, sorting, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from onnxfuse.pipeline import optimize
from onnxfuse.report.page import text_of
from onnxfuse.report.sections import page_of
from tests.cli.pages.browsing import browser, needs_browser, opened
from tests.cli.pages.test_browser import click, page_of_model, shown
from tests.models.fused import model_bytes

__all__ = ["browser"]  # a fixture

pytestmark = needs_browser


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of_model(model_bytes("tiny-bert.decomposed"), tmp_path_factory.mktemp("bert"))


def colours(browser: Any) -> dict[str, str]:
    return dict(browser.execute_script("return view.nodes('.fused').map((n) => [n.id(), n.data('colour')])"))


def press(browser: Any, key: str) -> None:
    browser.find_element("id", "search").send_keys({"Enter": "\ue007", "Escape": "\ue00c"}[key])


def test_colours_say_how_long_a_kernel_takes(browser: Any, bert: Path):
    opened(browser, bert)
    browser.find_element("id", "collapse").click()
    by_kernel = colours(browser)
    assert not browser.find_element("id", "scale").is_displayed()
    browser.find_element("id", "heat").click()
    by_time = colours(browser)
    assert by_time.keys() == by_kernel.keys() and by_time != by_kernel
    assert browser.find_element("id", "scale").is_displayed()
    assert "ms predicted" in browser.find_element("id", "scale").text
    order = """const at = new Map(data.groups.map((g) => [g.name, g.predicted_ms]));
      const timeAt = (n) => at.get(data.drawing.after.nodes[n.data('nodes')[0]].kernel);
      return view.nodes('.fused').map((n) => [timeAt(n), HEAT.indexOf(n.data('colour'))])"""
    steps = [step for _, step in sorted(browser.execute_script(order))]
    assert steps == sorted(steps) and steps[-1] == 6, "the longer, the darker"


def test_a_click_on_a_table_row_selects_its_nodes(browser: Any, bert: Path):
    opened(browser, bert)
    rows = browser.find_elements("css selector", "tr.finds[data-side=after]")
    kernel = rows[0].find_element("css selector", "td").text
    calls = rows[0].find_elements("css selector", "td")[1].text
    rows[0].click()
    assert browser.find_element("id", "count").text.endswith("found")
    assert kernel in browser.find_element("id", "about").text
    browser.find_element("id", "collapse").click()
    browser.find_elements("css selector", "tr.finds[data-side=after]")[0].click()
    assert browser.execute_script("return view.nodes('.found').length") == int(calls)
    refused = browser.find_elements("css selector", "tr.finds[data-side=before]")[0]
    code = refused.find_elements("css selector", "td")[1].text
    refused.send_keys("\ue007")
    assert browser.find_element("id", "before").get_attribute("aria-pressed") == "true"
    assert browser.execute_script("return view.nodes('.found').length") > 0 and code.startswith("E-")
    assert browser.get_log("browser") == []


def test_one_run_of_repeated_layers_unfolds_alone(browser: Any, tmp_path: Path):
    """Two towers of layers, and a node between them: the one that is clicked unfolds, the other stays as it is."""
    steps, value = [], "x"
    for tower, ops in (("a", ("Exp", "Neg", "Tanh")), ("b", ("Abs", "Sigmoid", "Floor", "Ceil"))):
        for layer in range(5):
            for at, op in enumerate(ops):
                made = f"{tower}{layer}_{at}"
                steps.append(f"{made} = {op} ({value})")
                value = made
        value = steps[-1].split()[0]
        steps.append(f"{tower}s = Softmax <axis = -1> ({value})")
        value = f"{tower}s"
    body = "\n".join([*steps, f"y = Identity ({value})"])
    head = '<ir_version: 8, opset_import: ["" : 17]> towers (float[4, 32] x) => (float[4, 32] y)'
    model = bytes(onnx.parser.parse_model(f"{head} {{ {body} }}").SerializeToString())
    opened(browser, page_of_model(model, tmp_path))
    browser.find_element("id", "before").click()
    few, whole = shown(browser)
    click(browser, "more of these 3 nodes")
    between, _ = shown(browser)
    assert few < between < whole and browser.execute_script("return view.nodes('.more').length") == 1
    browser.find_element("id", "collapse").click()
    assert shown(browser) == [few, whole]


def test_enter_selects_the_next_match_and_escape_clears(browser: Any, bert: Path):
    opened(browser, bert)
    browser.find_element("tag name", "body").send_keys("/")
    search = browser.switch_to.active_element
    assert search.get_attribute("id") == "search" and search.get_attribute("value") == ""
    search.send_keys("matmul")
    found = int(browser.find_element("id", "count").text.split()[0])
    assert found > 1
    press(browser, "Enter")
    assert browser.find_element("id", "count").text == f"2 of {found} found"
    for _ in range(found - 1):
        press(browser, "Enter")
    assert browser.find_element("id", "count").text == f"1 of {found} found", "behind the last comes the first"
    browser.find_element("id", "before").click()
    assert browser.find_element("id", "count").text.endswith("found"), (
        "what is looked for is marked on the other side too"
    )
    assert browser.execute_script("return view.nodes('.found').length") > found
    press(browser, "Escape")
    assert browser.execute_script("return view.nodes('.found').length") == 0


def test_keys_move_the_graph_and_the_pointer_shows_hints(browser: Any, bert: Path):
    opened(browser, bert)
    graph = browser.find_element("id", "graph")
    seen = "return [view.pan().x, view.pan().y, view.zoom()]"
    x, _, zoom = browser.execute_script(seen)
    graph.send_keys("\ue014")  # to the right
    assert browser.execute_script(seen)[0] == pytest.approx(x - 60)
    graph.send_keys("+")
    assert browser.execute_script(seen)[2] == pytest.approx(1.25 * zoom)
    click(browser, "MatMul")
    tip = browser.find_element("id", "tip")
    assert tip.is_displayed() and "ms predicted" in tip.text and "FLOP" in tip.text
    assert browser.get_log("browser") == []


def test_times_by_layer_and_memory_over_time(browser: Any, bert: Path):
    opened(browser, bert)
    by_kernel = browser.find_element("id", "times").text
    browser.find_element("css selector", "[data-by=layer]").click()
    by_layer = browser.find_element("id", "times").text
    assert by_layer != by_kernel and "layer.0" in by_layer and "layer.1" in by_layer
    sums = """return ['kernel', 'layer'].map((by) => BY[by]().reduce(
      (sums, row) => sums.map((sum, at) => sum + row.times[at]), [0, 0]))"""
    kernels, layers = browser.execute_script(sums)
    assert layers == pytest.approx(kernels), "all times are there, however they are told"
    runs = browser.execute_script("return document.querySelectorAll('#memory path.run').length")
    assert runs == 2 and browser.execute_script("return document.querySelector('#memory path.run.before') !== null")


def test_tables_are_sorted_by_the_column_that_is_clicked(browser: Any, bert: Path):
    opened(browser, bert)
    table = "[...document.querySelectorAll('h2')].find((h) => h.textContent === 'Kernels').nextElementSibling"
    column = f"return [...{table}.rows].slice(1).map((r) => numberIn(r.cells[4].textContent))"
    head = browser.execute_script(f"return {table}.rows[0].cells[4]")
    assert head.text == "flops"
    head.click()
    values = browser.execute_script(column)
    assert values == sorted(values, reverse=True) and len(set(values)) > 1
    assert head.get_attribute("aria-sort") == "descending"
    head.click()
    assert browser.execute_script(column) == sorted(values)
    assert browser.get_log("browser") == []


def test_a_kernel_tells_which_groups_were_proposed_in_its_place(browser: Any, tmp_path: Path):
    result = optimize(model_bytes("tiny-bert.decomposed"), stop_after="render", strategy="best")
    other = [c for c in result.candidates if c.code]
    group, refused = next((g.name, c) for g in result.groups for c in other if set(c.nodes) & set(g.nodes))
    document = result.to_json("explain", drawing=True)
    page = tmp_path / "page.html"
    page.write_text(text_of(page_of(document), "html"), encoding="utf-8")
    opened(browser, page)
    browser.execute_script("tell({name: arguments[0], op: '', kernel: arguments[0]})", group)
    said = browser.find_element("id", "about").text
    assert "other groups" in said and "schedules" in said
    shown = browser.execute_script("return proposed(groups.get(arguments[0]))", group)
    assert f"{' '.join(refused.by)}: {len(refused.nodes)} nodes" in shown and refused.code in shown and shown in said
