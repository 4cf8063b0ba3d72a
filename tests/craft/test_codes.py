"""Every reason code is raised by the program, and covered by a test."""

import ast
from collections.abc import Iterator
from pathlib import Path

from onnxfuse.ir.graph import CODES
from tests.craft.sources import ROOT, name_of, python_files, tree_of

TABLE = "onnxfuse/ir/graph.py"  # where codes get their meaning


def codes_in(path: Path) -> Iterator[str]:
    """Codes that a file spells, but for the keys of tables, which only say something about them."""
    keys = {id(key) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Dict) for key in node.keys}
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in keys:
            yield from (code for code in CODES if node.value == code)


def test_every_code_is_given():
    given = {c for path in python_files("onnxfuse") if name_of(path) != TABLE for c in codes_in(path)}
    assert given == set(CODES)


def test_every_code_is_tested():
    here = Path(__file__).relative_to(ROOT).as_posix()
    asked = {c for path in python_files("tests") if name_of(path) != here for c in codes_in(path)}
    assert asked == set(CODES)
