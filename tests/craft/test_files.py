"""Every file starts with a docstring, is short, and does not mention the environment in which it was written."""

import ast
from collections import Counter
from fnmatch import fnmatch

import pytest

from tests.craft.sources import ROOMS, ROOT, TEXT, files, name_of, python_files, tree_of

MAX_LINES = 400
# Sums, laws and bounds of an index call each other: one algebra, which modules that import one way cannot share.
LONGER = {"onnxfuse/ir/index.py": 741}
MAX_FILES = 25  # of a folder
# Folders of data: a file for each case, page or record, found by its name.
DATA = ("docs", "docs/decisions", "tests/exports", "tests/golden", "tests/captured")
MANY = {"tests/threads": 30, "benchmarks/gpu": 30}  # with the probes in C++ or CUDA that stand beside their tests
ALL_PYTHON = python_files("onnxfuse", "cli", "tests", "models", "scripts")
# Spelled in pieces, so that this file passes its own test.
FORBIDDEN = ("/".join(("", "work", "")), "/".join(("", "root", "")), ".".join(("pypi", "org")))
SEEN = (*files(*ROOMS), *sorted(ROOT.glob("*")))
WRITTEN = [path for path in SEEN if path.is_file() and path.suffix in TEXT and path.name != ".git"]


def test_a_file_opens_with_its_promise():
    """One whole sentence on the first line. An empty `__init__.py` promises nothing."""
    trees = {name_of(path): tree_of(path) for path in ALL_PYTHON}
    first = {
        name: (ast.get_docstring(tree) or "").split("\n")[0]
        for name, tree in trees.items()
        if tree.body or not name.endswith("__init__.py")
    }
    assert {name: line for name, line in first.items() if not line.endswith((".", ":"))} == {}


def test_a_file_is_short():
    """Longer ones are two files."""
    lines = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in ALL_PYTHON}
    assert {name: count for name, count in lines.items() if count > LONGER.get(name, MAX_LINES)} == {}


def test_a_folder_has_few_files():
    """More of them are two folders, with names that a reader would guess."""
    counts = Counter(name_of(path.parent) for path in files(*ROOMS))
    assert len(counts) > 40
    many = {folder: count for folder, count in counts.items() if count > MAX_FILES and folder not in DATA}
    assert {folder: count for folder, count in many.items() if count > MANY.get(folder, 0)} == {}
    assert set(many) == set(MANY), "the list of exceptions is longer than needed"


def test_no_file_names_where_it_was_written():
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in WRITTEN}
    named = {name: [word for word in FORBIDDEN if word in text] for name, text in texts.items()}
    assert {name: words for name, words in named.items() if words} == {}


def test_the_files_are_found():
    """The lists above are not empty by mistake."""
    named = {name_of(path) for path in WRITTEN}
    assert {
        "Makefile",
        "pyproject.toml",
        ".ci/run",
        "onnxfuse/errors.py",
        "onnxfuse/render/tiles/host.h",
    } <= named
    assert "tests/craft/test_files.py" in named


def test_pytest_collects_every_folder(pytestconfig: pytest.Config):
    """The default of `norecursedirs` has `build`: tests in folders of that name are left out without a word."""
    left_out = pytestconfig.getini("norecursedirs")
    folders = {part for path in python_files("tests", "onnxfuse") for part in path.relative_to(ROOT).parts[:-1]}
    assert "build" in folders
    assert not [each for each in folders if any(fnmatch(each, pattern) for pattern in left_out)]
