"""The project's own files, as text and as syntax trees, for the tests of this folder."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("onnxfuse", "cli", "tests", "models", "scripts", "benchmarks", "docs", ".ci")
TEXT = {".py", ".h", ".cpp", ".md", ".toml", ".txt", ".sh", ".case", ".j2", ".json", ".cfg", ".yml", ".yaml", ""}


def files(*rooms: str) -> Iterator[Path]:
    """Every file of these rooms that somebody wrote, in order."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*")):
            made = "__pycache__" in path.parts or path.is_relative_to(ROOT / "models" / "build")
            if path.is_file() and not made:
                yield path


def python_files(*rooms: str) -> list[Path]:
    return [path for path in files(*rooms) if path.suffix == ".py"]


def name_of(path: Path) -> str:
    """A path as messages show it, relative to the project."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
