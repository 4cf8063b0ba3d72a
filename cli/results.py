"""Output of results: lines or a JSON document to stdout, and the files of `--json-file` and `--report`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from onnxfuse.config import Options
from onnxfuse.emit.staged import Staged, refuse_existing
from onnxfuse.errors import OutputError, UsageError, counted
from onnxfuse.pipeline.outputs import STREAM, places_of
from onnxfuse.report.document import envelope, parsed, plain
from onnxfuse.report.result import Result

from . import show
from .summary import summary

Name: TypeAlias = Path | str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a verb: a JSON document, and the printed lines."""

    document: Mapping[str, Any]
    lines: tuple[str, ...]


def document(command: str, **fields: Any) -> dict[str, Any]:
    """A JSON document of a verb."""
    return dict(plain(envelope(command) | fields))


class OutputFile:
    """The output file of a flag, checked before the work starts; without a name nothing is written.

    It must not be one of `others`, the files that the verb reads or writes. Raises UsageError and OutputError.
    """

    def __init__(self, flag: str, path: str | None, *, overwrite: bool, others: Iterable[Name] = ()) -> None:
        self.path = Path(path) if path is not None else None
        self.overwrite = overwrite
        if self.path is None:
            return
        if path == STREAM:
            raise UsageError(f"usage: {flag} needs a file", hint="--json prints to standard output")
        if os.path.realpath(self.path) in {os.path.realpath(each) for each in others if each is not None}:
            raise UsageError(f"usage: {flag} {path} is also another file of this command", hint="choose another name")
        refuse_existing([self.path], overwrite=overwrite)

    def write(self, text: str) -> None:
        """Write the file in one step. Raises OutputError."""
        assert self.path is not None
        with Staged(overwrite=self.overwrite) as staged:
            temporary = staged.stage(self.path)
            try:
                temporary.write_text(text, encoding="utf-8", errors="replace")
            except OSError as problem:
                raise OutputError(f"write: {self.path} cannot be written: {problem.strerror}") from None
            staged.commit()


class ResultFiles:
    """The files of `--json-file` and `--report`."""

    def __init__(self, values: dict[str, Any], *, overwrite: bool | None = None, others: Iterable[Name] = ()) -> None:
        """Removes its flags from `values`; `overwrite` is given if the verb has that flag itself."""
        json_file, report = values.pop("json_file"), values.pop("report")
        replace = bool(values.pop("overwrite")) if overwrite is None else overwrite
        named = list(others)
        self.json_file = OutputFile("--json-file", json_file, overwrite=replace, others=named)
        self.report = OutputFile("--report", report, overwrite=replace, others=[*named, json_file])

    @property
    def paged(self) -> bool:
        """Whether a page is written."""
        return self.report.path is not None

    def write(self, value: Mapping[str, Any]) -> None:
        """Write the document and its page. Raises OutputError."""
        texts = self.texts(value)
        for file in (self.json_file, self.report):
            if file.path is not None:
                file.write(texts[file.path])

    def texts(self, value: Mapping[str, Any]) -> dict[Path, str]:
        """The texts of document and page, by file."""
        found: dict[Path, str] = {}
        if self.json_file.path is not None:
            found[self.json_file.path] = show.json_text(value)
        if self.report.path is not None:
            found[self.report.path] = page_text(value, None, self.report.path)
        return found


def read_document(name: str) -> Any:
    """The JSON document of a file, or of standard input. Raises UsageError."""
    try:
        text = show.given() if name == STREAM else Path(name).read_bytes()
        return parsed(text)
    except OSError as problem:
        raise UsageError(f"read: {name} cannot be read: {problem.strerror}", hint="check the spelling") from None
    except ValueError:
        raise UsageError(f"read: {name} is not a JSON document", hint="make one with --json-file") from None


def page_text(value: Any, form: str | None, path: Path | None) -> str:
    """A result as a page: in the given format, else by the name of the file, else Markdown. Raises UsageError."""
    from onnxfuse.report import page  # noqa: PLC0415  only where one is wanted: jinja2 takes its time
    from onnxfuse.report.sections import page_of  # noqa: PLC0415  it needs the page

    found = next((each for each in page.FORMATS if each == form), None)
    return page.text_of(page_of(value), found or (page.format_of(path) if path is not None else "markdown"))


def files_of(model: str, options: Options) -> list[Name]:
    """The files that `optimize` reads and writes. Raises UsageError if two are the same."""
    if options.dry_run or options.stop_after is not None:
        return [model]
    places = places_of(None if model == STREAM else Path(model), options)
    return [model, places.model, places.data, places.library, places.manifest, places.lock]


def answer(found: Answer, as_json: bool, keep: ResultFiles) -> None:
    """Print the result of a verb, and write its files."""
    keep.write(found.document)
    if as_json:
        show.document(printed(found.document))
    else:
        print_lines(found.lines)


def printed(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without the data for pages, which is most of its bytes."""
    return {name: value for name, value in document.items() if name != "drawing"}


def print_lines(lines: Iterable[str]) -> None:
    """Lines to stdout."""
    for line in lines:
        show.data(line)


def after_optimize(screen: show.Screen, result: Result) -> None:
    """The messages at the end of `optimize`."""
    for note in result.notes:
        screen.warn(note)
    bugs = [refusal for refusal in result.refusals if refusal.code == "E-INTERNAL"]
    if bugs:
        screen.warn(f"worked around {counted(len(bugs), 'bug')} of onnxfuse; please report: {bugs[0].reason}")
    if not result.kernels and result.output.model is not None:
        screen.warn("nothing was fused: the output is a copy of the input   (why: onnxfuse explain)")
    for line in _details(result):
        screen.detail(line)
    for line in summary(result):
        screen.say(line)


def _details(result: Result) -> Iterable[str]:
    """The lines of --verbose."""
    yield "seconds   " + ", ".join(f"{step} {seconds:.2f}" for step, seconds in result.seconds.items())
    yield f"memory    {show.bytes_text(result.peak_memory_bytes)} at most"
    rows = [(g.kernel, counted(len(g.nodes), "node"), counted(g.phases, "phase"), g.name) for g in result.groups]
    yield from (f"kernel    {line}" for line in show.table(rows)) if rows else ()
    for refusal in result.refusals:
        yield f"refused   {refusal.code} {' + '.join(refusal.nodes[:3])}: {refusal.reason}"
