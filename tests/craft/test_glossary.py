"""The glossary names things that exist, and every public class of the rooms that it promises."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.craft.sources import ROOT, python_files, tree_of

ROOMS = tuple(f"onnxfuse/{room}" for room in ("ir", "ops", "lower", "emit", "render"))
GLOSSARY = ROOT / "docs" / "glossary.md"


def terms() -> set[str]:
    """Names in code font in the first column of the tables."""
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def names_in(path: Path) -> set[str]:
    """Names of classes, functions and fields that a file defines."""
    found = {n.name for n in ast.walk(tree_of(path)) if isinstance(n, (ast.ClassDef, ast.FunctionDef))}
    fields = (n.target for n in ast.walk(tree_of(path)) if isinstance(n, ast.AnnAssign))
    return found | {t.id for t in fields if isinstance(t, ast.Name)}


def test_terms_exist():
    known = set().union(*(names_in(path) for path in python_files("onnxfuse")))
    assert len(terms()) > 100
    assert not terms() - known


def test_public_classes_are_there():
    public = {
        n.name
        for path in python_files(*ROOMS)
        for n in tree_of(path).body
        if isinstance(n, ast.ClassDef) and not n.name.startswith("_")
    }
    assert not public - terms()


def test_public_classes_have_names_of_their_own():
    """One word, one thing: no two public classes of the program have the same name."""
    found = Counter(
        n.name
        for path in python_files("onnxfuse", "cli")
        for n in tree_of(path).body
        if isinstance(n, ast.ClassDef) and not n.name.startswith("_")
    )
    assert not [name for name, count in found.items() if count > 1]
