"""Tables of benchmarks say on which machine, with which versions and when they were measured."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from benchmarks import machine
from onnxfuse import __version__
from scripts import bench


def test_the_page_is_stamped_and_holds_every_table():
    limits = [machine.Limits(1, 100.0, {1: 10.0})]
    document = {**machine.facts(), "limits": machine.to_json(limits), "sizes": [], "dynamic": []}
    page = bench.page_of(document)
    assert page.startswith("# Benchmarks\n\n## Machine\n")
    assert re.search(rf"onnxfuse {re.escape(__version__)}.*, measured on \d{{4}}-\d\d-\d\d$", page, re.MULTILINE)
    assert document["date"] <= datetime.now(UTC).date().isoformat() and document["date"] in page
    assert document["host"]["cpu"] in page and f"onnxruntime {document['versions'].get('onnxruntime', '')}" in page
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Machine",
        "## One build at several sizes, minimum (median)",
        "## As shipped, and built for each size; minimum (median)",
    ]


def test_figures_of_earlier_versions_are_shown_without_a_date():
    document = {**machine.facts(), "limits": []}
    del document["date"], document["revision"]
    assert "measured on a day that was not kept" in bench.page_of(document)
