"""Measurements that are kept: one JSON document for each machine, and the tables of pages that are made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, tables
from onnxfuse.report.document import plain

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "docs" / "performance.md",)
_DIGITS = 5  # of the figures in the JSON document
_STAMP = ("onnxfuse_version", "revision", "host", "versions", "target", "compiler", "quick")  # what figures depend on
_BLOCK = re.compile(
    r"(?P<begin><!-- made by scripts/bench\.py from (?P<file>benchmarks/results/[\w.-]+\.json): (?P<table>\w+) -->\n)"
    r"(?P<text>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


def path_of(about: Mapping[str, Any]) -> Path:
    """The document of a machine: its instruction set, and how many cores it has."""
    return FOLDER / f"{about['target']}-{about['host']['cores']}-cores.json"


def resumed(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """A measurement to be gone on with: what is there of the same machine, versions and code, else nothing but `about`.

    Of code that was modified since its commit (a revision with `+`) nothing is taken over.
    """
    if not path.exists() or str(about["revision"]).endswith("+"):
        return dict(about)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    same = all(found.get(name) == plain(about[name]) for name in _STAMP)
    return found if same else dict(about)


def rounded(value: Any) -> Any:
    """The document with figures of a length that means something."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def write(document: Mapping[str, Any], path: Path) -> None:
    """Write a document whole, so that one that is ended leaves what was measured before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(rounded(plain(document)), indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


# Tables of pages ------------------------------------------------------------------------------------------------------


def networks(document: Mapping[str, Any]) -> str:
    """The networks of a document, with its stamp and the geometric means."""
    rows: Sequence[Mapping[str, Any]] = document["networks"]
    stamp = machine.show(document, ()).replace("\n", "; ")
    won = [each["speedup"]["fused"] for row in rows for each in row["latency"] if each["threads"] == 2]
    mean = f"Geometric mean {tables.geometric_mean(won):.2f}x on two threads." if won else ""
    return f"{stamp}.\n\n{tables.beside_runtime(rows)}\n\n{mean}\n"


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"networks": networks}


def made(text: str) -> str:
    """A page with its blocks made anew from the documents that they name."""

    def block(found: re.Match[str]) -> str:
        document = json.loads((ROOT / found["file"]).read_text(encoding="utf-8"))
        return f"{found['begin']}{TABLES[found['table']](document)}{found['end']}"

    return _BLOCK.sub(block, text)


def sources(text: str) -> list[str]:
    """The documents that the blocks of a page name."""
    return [found["file"] for found in _BLOCK.finditer(text)]


def write_pages() -> None:
    """Write the tables of all pages anew."""
    for page in PAGES:
        page.write_text(made(page.read_text(encoding="utf-8")), encoding="utf-8")
