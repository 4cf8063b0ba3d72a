"""The reference of the Python interface is complete, and its table of options is the program's own."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import pytest

import onnxfuse
from scripts import options
from tests.craft.sources import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    """What the page says of one of the public names."""
    title = re.escape(name.replace("__", r"\_\_"))
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/api.md has nothing about {name}"
    return found[1]


def words(text: str) -> set[str]:
    """The names in code of a text."""
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def test_the_table_of_options_is_current():
    assert options.OUT.read_text(encoding="utf-8") == options.text(), "run python scripts/options.py"


@pytest.mark.parametrize("name", onnxfuse.__all__)
def test_a_public_name_has_a_section_with_an_example(name: str):
    text = section(name)
    assert name == "__version__" or "```python" in text


@pytest.mark.parametrize("name", ["optimize", "session", "verify", "profile"])
def test_every_parameter_is_documented(name: str):
    function: Any = getattr(onnxfuse, name)
    function = function.verify_models if name == "verify" else function
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    given = {p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds}
    assert given - words(section(name)) - {"a", "b"} == set()


def test_every_field_of_a_result_is_documented():
    told = words(section("Result"))
    fields = {f.name for f in dataclasses.fields(onnxfuse.Result)}
    assert fields - told == set()
    assert {"nodes_left", "to_json"} <= told


def test_every_kind_of_error_is_documented_with_its_code():
    kinds = {kind.__name__: kind.exit_code for kind in onnxfuse.OnnxFuseError.__subclasses__()}
    rows = dict(re.findall(r"^\| `(\w+)`[^|]*\| (\d+) \|", section("OnnxFuseError"), re.MULTILINE))
    assert {name: int(code) for name, code in rows.items()} == {
        **kinds,
        "OnnxFuseError": onnxfuse.OnnxFuseError.exit_code,
    }
