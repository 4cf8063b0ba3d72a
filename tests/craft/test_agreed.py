"""Constants shared by Python and C++ are defined in Python only; C++ gets them from a generated header."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from onnxfuse.build import TILES
from onnxfuse.ir.dtype import BF16
from onnxfuse.ir.products import PRODUCTS
from onnxfuse.render.agreed import AGREED, MEASURES, Agreed, header
from onnxfuse.runtime.entries import ABI_VERSION
from onnxfuse.target import CPUS
from onnxfuse.target.cpu import TILE_VECTORS
from tests.craft.sources import ROOT

HEADER = TILES / "agreed.h"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])(0x[0-9a-fA-F]+|\d+)(?![\w.]|\s*:)")
SMALL = 64  # numbers up to this one mean many things
# Where such a number means something else: mathematics, and results of tasks that nobody reads.
OTHER = {"machine.h", "math.h", "math_tables.h", "vec_cast.h"}


def code_of(path: Path) -> str:
    return _COMMENT.sub("", path.read_text(encoding="utf-8"))


HEADERS = {path.name: code_of(path) for path in sorted(TILES.glob("*.h")) if path != HEADER}
PARTICULAR = [each for each in AGREED if isinstance(each.value, str) or each.value > SMALL]
NAMES = [*(each.name for each in AGREED), *MEASURES, "tile_rows"]


def test_the_header_is_current():
    assert HEADER.read_text(encoding="utf-8") == header(), "make docs"


@pytest.mark.parametrize("name", NAMES)
def test_each_agreed_constant_is_used_by_a_header(name: str):
    """NOTHING is what is done where nothing else is asked for."""
    assert name == "NOTHING" or any(re.search(rf"\bagreed::{name}\b", text) for text in HEADERS.values())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_has_a_name_twice(name: str):
    """No header defines what the generated one does."""
    defined = re.compile(rf"(?:constexpr|const|enum|#define)[^;\n]*\b(?<!agreed::){name}\b\s*(?:=|,|\}}|\[\])")
    assert [file for file, text in HEADERS.items() if defined.search(text)] == []


@pytest.mark.parametrize("each", PARTICULAR, ids=lambda e: e.name)
def test_no_value_is_spelled_twice(each: Agreed):
    """Texts, and numbers that mean one thing, stand in no other header."""
    spelled = []
    for file, text in HEADERS.items():
        if isinstance(each.value, str):
            found = f'"{each.value}"' in text
        else:
            found = file not in OTHER and any(int(n, 0) == each.value for n in _NUMBER.findall(text))
        spelled += [file] if found else []
    assert spelled == []


def test_the_oldest_runtime_has_the_interface():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert wanted["cpu"] == [f"onnxruntime>=1.{ABI_VERSION}"]


def test_rows_of_tiles_are_those_of_the_machine_classes():
    """Panels are whole register tiles, and steps of a product lie side by side as its header takes them."""
    for row in CPUS.values():
        assert row.panel % (TILE_VECTORS * row.lanes) == 0
        assert f"if (lanes == {row.lanes}) return {row.rows};" in header()
    assert {p.step for p in PRODUCTS if p.right == BF16} == {2}
