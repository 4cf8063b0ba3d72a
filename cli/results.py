"""Output of results: lines or a JSON document to stdout, and the files of `--json-file` and `--report`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import click

from onnxfuse.config import Options
from onnxfuse.emit.staged import refuse_existing, refuse_inputs, write_text
from onnxfuse.errors import UsageError, counted
from onnxfuse.load.read import files_of as files_of_model
from onnxfuse.pipeline.outputs import STREAM, places_of
from onnxfuse.report.document import Format, envelope, format_of, parsed, plain
from onnxfuse.report.result import Result

from . import show
from .flags import InputFile
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


def read_here() -> Iterator[Path]:
    """The files that the verb that runs may read: models with all that belongs to them, inputs, libraries, settings."""
    context = click.get_current_context()
    for param in context.command.params:
        found = (context.params.get(param.name or "") or ()) if isinstance(param.type, InputFile) else ()
        for each in map(Path, (found,) if isinstance(found, str) else found):
            yield from each.rglob("input_*.pb") if each.is_dir() else files_of_model(each)
    if context.find_root().obj is not None:
        yield context.find_root().obj


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
        refuse_inputs([self.path], read_here())

    def write(self, text: str) -> None:
        """Write the file in one step. Raises OutputError."""
        assert self.path is not None
        write_text(self.path, text, overwrite=self.overwrite)
        tell_written([self.path])


class ResultFiles:
    """The files of `--json-file` and `--report`."""

    def __init__(self, values: dict[str, Any], *, overwrite: bool | None = None, others: Iterable[Name] = ()) -> None:
        """Removes its flags from `values`; `overwrite` is given if the verb has that flag itself."""
        json_file, report = values.pop("json_file"), values.pop("report")
        replace = bool(values.pop("overwrite")) if overwrite is None else overwrite
        named = list(others)
        self.json_file = OutputFile("--json-file", json_file, overwrite=replace, others=named)
        self.form: Format = "html" if report is None else page_format(report, "--report")
        self.report = OutputFile("--report", report, overwrite=replace, others=[*named, json_file])

    @property
    def paged(self) -> bool:
        """Whether a page is written."""
        return self.report.path is not None

    @property
    def paths(self) -> list[Path]:
        """The files that are written."""
        return [file.path for file in (self.json_file, self.report) if file.path is not None]

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
            found[self.report.path] = page_text(value, self.form)
        return found


def tell_written(paths: Sequence[Path]) -> None:
    """Print which files the verb that runs has written; not with --quiet."""
    if paths:
        quiet = bool(click.get_current_context().params.get("quiet"))
        show.screen(quiet=quiet).say(f"wrote     {'  '.join(map(str, paths))}")


def read_document(name: str) -> Any:
    """The JSON document of a file, or of standard input. Raises UsageError."""
    try:
        text = show.given() if name == STREAM else Path(name).read_bytes()
        return parsed(text)
    except OSError as problem:
        raise UsageError(f"read: {name} cannot be read: {problem.strerror}", hint="check the spelling") from None
    except ValueError:
        raise UsageError(f"read: {name} is not a JSON document", hint="make one with --json-file") from None


def page_text(value: Any, form: Format) -> str:
    """A result as a page. Raises UsageError."""
    from onnxfuse.report.page import text_of  # noqa: PLC0415  only where one is wanted: jinja2 takes its time
    from onnxfuse.report.sections import page_of  # noqa: PLC0415  it needs the page

    return text_of(page_of(value), form)


def page_format(path: str, what: str, hint: str = "name a .html or .md file") -> Format:
    """The format of a page by the name of its file, which `what` gave. Raises UsageError."""
    found = format_of(path)
    if found is None:
        raise UsageError(f"usage: {what} {path} is neither HTML nor Markdown", hint=hint)
    return found


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
