"""A result as a page: facts, tables and plots, as a self-contained HTML file or as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jinja2

from onnxfuse.report.document import Format

_GRAPHS = ("vendor/cytoscape.min.js", "vendor/dagre.min.js")  # with their licences beside them
# The scripts of a page by the kind of its drawing, in order.
_SCRIPTS = {
    "": (),
    "build": (*_GRAPHS, "common.js", "graph.js", "plots.js", "build.js"),
    "profile": ("common.js", "plots.js", "profile.js"),
    "diff": (*_GRAPHS, "common.js", "graph.js", "diff.js"),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `right` are the right-aligned columns; `shares` (0 to 1) are drawn as bars in the last column.

    `finds` has the nodes of each row: a click on it shows them in the graph, on the side `finds_in`.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()  # one for each row, or none at all
    finds: tuple[tuple[str, ...], ...] = ()  # the same
    finds_in: Literal["before", "after"] = "after"


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page: headline, facts by name, tables, notes, and in HTML what scripts draw from `drawn`."""

    title: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    ok: bool | None = None  # the answer of verbs that answer a question
    headline: tuple[tuple[str, str], ...] = ()
    drawn: Mapping[str, Any] | None = None  # `kind`, and the data that scripts draw


def text_of(page: Page, form: Format) -> str:
    """The text of a page in a format. It is reproducible."""
    return _html(page) if form == "html" else "\n".join(_markdown(page)) + "\n"


def _html(page: Page) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    folder = Path(__file__).parent
    kind = str(page.drawn["kind"]) if page.drawn is not None else ""
    scripts = [folder / name for name in _SCRIPTS[kind]]
    return environment.get_template("page.html.j2").render(
        page=page,
        kind=kind,
        css=(folder / "page.css").read_text(encoding="utf-8"),
        scripts=[each.read_text(encoding="utf-8").replace("</script", "<\\/script") for each in scripts],
        data=json.dumps(page.drawn, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _markdown(page: Page) -> Iterator[str]:
    yield f"# {_plain(page.title)}"
    yield ""
    yield from _rows(("", ""), page.facts, ())
    for table in page.tables:
        yield from ("", f"## {_plain(table.title)}", "")
        yield from _rows(table.head, table.rows, table.right)
    if page.notes:
        yield ""
    for note in page.notes:
        yield f"- {_plain(note)}"


def _rows(head: tuple[str, ...], rows: tuple[tuple[str, ...], ...], right: tuple[int, ...]) -> Iterator[str]:
    yield _row(head)
    yield _row(tuple("---:" if at in right else "---" for at in range(len(head))))
    for row in rows:
        yield _row(tuple(map(_plain, row)))


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


_SPECIAL: Mapping[int, Any] = str.maketrans({c: f"\\{c}" for c in "\\|`*_<[]"})


def _plain(text: str) -> str:
    """Text with Markdown's special characters escaped.

    >>> _plain("a|b *c*")
    'a\\\\|b \\\\*c\\\\*'
    """
    return " ".join(text.split()).translate(_SPECIAL)
