"""A result as a page for people: facts and tables, as one HTML file that needs nothing else, or as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jinja2

Format: TypeAlias = Literal["html", "markdown"]
FORMATS: tuple[Format, ...] = ("html", "markdown")
_GRAPHS = ("vendor/cytoscape.min.js", "vendor/dagre.min.js")  # with their licences beside them
# The scripts of a page by the kind of what it draws, in their order.
_SCRIPTS = {
    "": (),
    "build": (*_GRAPHS, "common.js", "graph.js", "plots.js", "build.js"),
    "profile": ("common.js", "plots.js", "profile.js"),
    "diff": (*_GRAPHS, "common.js", "graph.js", "diff.js"),
}
_MARKDOWN_ENDS = (".md", ".markdown")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title. `right` are columns of figures; `shares` (0 to 1) are drawn in the last one.

    `finds` has for each row the nodes that it is about: a click on it shows them in the graph, on the side `finds_in`.
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
    """What a page says: the headline, facts by name, tables, notes. HTML also shows what is `drawn`, by scripts."""

    title: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    ok: bool | None = None  # the answer, where the result is one
    headline: tuple[tuple[str, str], ...] = ()
    drawn: Mapping[str, Any] | None = None  # its `kind`, and what scripts draw, as the JSON of the result has it


def format_of(path: str | Path) -> Format:
    """The format that a file's name asks for.

    >>> format_of("a/summary.md"), format_of("page.html")
    ('markdown', 'html')
    """
    return "markdown" if Path(path).suffix.lower() in _MARKDOWN_ENDS else "html"


def text_of(page: Page, form: Format) -> str:
    """The page in a format; equal pages, equal bytes."""
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
    """Text that Markdown shows as it is.

    >>> _plain("a|b *c*")
    'a\\\\|b \\\\*c\\\\*'
    """
    return " ".join(text.split()).translate(_SPECIAL)
