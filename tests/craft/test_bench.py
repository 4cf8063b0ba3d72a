"""Tables of benchmarks say on which machine, with which versions and when they were measured."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, networks, results
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


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"revision": "other"}, False),
        ({"revision": "same+"}, False),
        ({"versions": {"onnxruntime": "1.0"}}, False),
        ({"quick": True}, False),
        ({"load_average": 3.0}, True),
    ],
)
def test_a_measurement_goes_on_where_it_ended_if_nothing_changed(
    change: dict[str, Any], kept: bool, tmp_path: Path
) -> None:
    about = {**machine.facts(), "revision": "same", "quick": False}
    path = tmp_path / "kept.json"
    results.write({**about, "rows": [1.0]}, path)
    assert ("rows" in results.resumed(path, {**about, **change})) == kept


def test_only_what_is_missing_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is ended keeps the networks before; the next one measures the others, and the document has all."""
    path, asked_for = tmp_path / "kept.json", []

    def measured(name: str, *_: Any) -> networks.Measured:
        asked_for.append(name)
        if len(asked_for) == 2:
            raise KeyboardInterrupt
        return networks.Measured({"network": name, "latency": []}, networks.Built(tmp_path, 1.0, 1, {}), {})

    stands: dict[str, Callable[..., Any]] = {"measure": measured, "with_floors": lambda found, _: found.row}
    for name, function in stands.items():
        monkeypatch.setattr(networks, name, function)
    limits = machine.Limits(2, 100.0, {1: 10.0})
    monkeypatch.setattr(machine, "limits", lambda *_: limits)
    monkeypatch.setattr(machine, "facts", lambda: {**ABOUT, "revision": "same"})
    monkeypatch.setattr(bench, "show_networks", lambda *_: None)
    monkeypatch.setattr(bench, "wait_for_quiet", lambda *_: True)
    monkeypatch.setattr(bench, "raced_with_peers", lambda *_: [])
    monkeypatch.setattr(results, "write_pages", lambda: None)
    line = ["--json", str(path), "--parts", "networks", "--network", "gpt2", "--network", "swin-t"]
    with pytest.raises(KeyboardInterrupt):
        bench.main(line)
    assert [row["network"] for row in json.loads(path.read_text())["networks"]] == ["gpt2"]
    assert bench.main(line) == 0 and asked_for == ["gpt2", "swin-t", "swin-t"]
    assert [row["network"] for row in json.loads(path.read_text())["networks"]] == ["gpt2", "swin-t"]


ABOUT = machine.facts()
