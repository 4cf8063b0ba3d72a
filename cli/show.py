"""Standard streams: data to stdout, messages to stderr, a model from stdin. No other module prints."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import IO, BinaryIO

from onnxfuse.errors import OnnxFuseError, OutputError, UsageError

_NARROW = 16  # narrowest column in which text is wrapped
_STYLES = {"good": "32", "bad": "31;1", "faint": "2"}


@dataclass(frozen=True, slots=True)
class Screen:
    """The verbosity, and whether stderr is a terminal with cursor control and colours."""

    quiet: bool = False
    verbose: bool = False
    terminal: bool = False

    def say(self, text: str) -> None:
        """Print a message; not with --quiet."""
        if not self.quiet:
            _put(sys.stderr, text)

    def detail(self, text: str) -> None:
        """Print a message only with --verbose."""
        if self.verbose:
            self.say(text)

    def warn(self, text: str) -> None:
        """Print a warning; not with --quiet."""
        self.say(f"{self.styled('note', 'faint')}      {text}")

    def styled(self, text: str, style: str) -> str:
        """The text with a style, if stderr supports it."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.terminal else text


def screen(*, quiet: bool = False, verbose: bool = False) -> Screen:
    """The screen of this process; with NO_COLOR, CI or TERM=dumb, a terminal counts as plain."""
    plain = any(os.environ.get(name) for name in ("NO_COLOR", "CI")) or os.environ.get("TERM") == "dumb"
    return Screen(quiet, verbose, sys.stderr is not None and sys.stderr.isatty() and not plain)


def prepare_streams() -> None:
    """Replace characters that a stream cannot encode, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # replaced streams may lack it


def _put(stream: IO[str] | None, text: str) -> None:
    if stream is not None:
        stream.write(text + "\n")
        stream.flush()


def data(text: str) -> None:
    """Print a line of the result to stdout. Raises OutputError, and BrokenPipeError if the reader is gone."""
    if sys.stdout is None:
        raise OutputError("write: standard output is closed", hint="open it, or use --json-file")
    try:
        _put(sys.stdout, text)
    except BrokenPipeError:
        raise
    except OSError as problem:
        abandon_stdout()
        raise OutputError(f"write: standard output cannot be written: {problem.strerror or problem}") from None


def binary() -> BinaryIO:
    """The binary stream of stdout, for a model. Raises OutputError."""
    if sys.stdout is None:
        raise OutputError("write: standard output is closed", hint="name a file")
    return sys.stdout.buffer


def given() -> bytes:
    """The contents of standard input. Raises UsageError."""
    if sys.stdin is None:
        raise UsageError("read: standard input is closed", hint="name a file")
    try:
        return sys.stdin.buffer.read()
    except OSError as problem:
        raise UsageError(f"read: standard input cannot be read: {problem.strerror or problem}") from None


def moving(text: str) -> None:
    """Replace the last line of the terminal; "" clears it."""
    if sys.stderr is not None:
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()


def aside(text: str) -> None:
    """Print a requested text to stderr, as stdout is in use."""
    _put(sys.stderr, text)


def document(value: object) -> None:
    """Print a JSON document to stdout."""
    data(json_text(value).rstrip("\n"))


def json_text(value: object) -> str:
    """A JSON document as text."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def failure(problem: OnnxFuseError) -> None:
    """Print an error in one line."""
    _put(sys.stderr, f"onnxfuse: {' '.join(str(problem).split())}")


def interrupted() -> None:
    """Print that the run was interrupted."""
    _put(sys.stderr, "onnxfuse: interrupted")


def abandon_stdout() -> None:
    """Discard buffered output, since the reader of stdout is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finish() -> None:
    """Flush stdout; if that fails, discard the rest so that the interpreter does not try again at exit."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            abandon_stdout()


def trace(problem: BaseException) -> None:
    """Print the traceback of an error, for --debug."""
    sys.excepthook(type(problem), problem, problem.__traceback__)


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), width: int | None = None) -> Iterator[str]:
    """The lines of a table with aligned columns; those in `right` are right-aligned.

    If it is wider than `width`, by default that of the terminal, the last column is wrapped; if there is no room for
    its longest word, it goes below the others in rows that do not fit; if the others do not fit either, the first one
    goes above them, and they are wrapped.

    >>> list(table([("a", "1", "one two"), ("b", "2", "three")], width=12))
    ['a  1', '  one two', 'b  2', '  three']
    """
    width = terminal_width() if width is None else width
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    longest = max((len(word) for row in rows for word in row[-1].split()), default=0)
    for row in rows:
        cells = [
            cell.rjust(size) if at in right else cell.ljust(size)
            for at, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        fits = width is None or sum(widths) + 2 * (len(widths) - 1) <= width
        yield from ["  ".join(cells).rstrip()] if fits else _wrapped(cells, width or 0, max(longest, _NARROW))


def _wrapped(cells: Sequence[str], width: int, least: int) -> Iterator[str]:
    """The lines of a row wider than the terminal; the last cell is beside the others if `least` columns are left."""
    *others, last = cells
    head = "  ".join(others)
    wrap = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
    room = width - len(head) - 2
    if room >= least:
        first, *more = wrap(last.strip(), room) or [""]
        yield f"{head}  {first}".rstrip()
        yield from (" " * (len(head) + 2) + each for each in more)
        return
    if len(head) <= width:
        yield head.rstrip()
    else:
        yield others[0].rstrip()
        yield from _filled(others[1:], width)
    yield from (f"  {each}" for each in wrap(last.strip(), max(width - 2, _NARROW)))


def _filled(cells: Sequence[str], width: int) -> Iterator[str]:
    """Indented lines with as many cells as fit into each."""
    line = ""
    for cell in cells:
        if line and len(line) + 2 + len(cell) > width:
            yield line.rstrip()
            line = ""
        line += f"  {cell}"
    yield line.rstrip()


def sentence(text: str) -> list[str]:
    """A sentence for stdout, wrapped to the width of a terminal; elsewhere one line."""
    width = terminal_width()
    return [text] if width is None else textwrap.wrap(text, max(width, _NARROW), subsequent_indent="  ") or [""]


def terminal_width() -> int | None:
    """The width of the terminal behind stdout, less an indent; None if stdout is not a terminal."""
    shown = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns - 2 if shown else None


def bytes_text(count: float) -> str:
    """A size in human-readable form.

    >>> bytes_text(97_800_000), bytes_text(12)
    ('97.8 MB', '12 B')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def count_text(value: int | None) -> str:
    """A count in human-readable form; "-" if unknown.

    >>> count_text(12), count_text(1_234_567)
    ('12', '1.2 M')
    """
    return "-" if value is None else f"{value:.3g}" if value < 1000 else bytes_text(value).removesuffix("B").strip()


def milliseconds(ms: float) -> str:
    """A time with at least three significant digits.

    >>> milliseconds(23.123), milliseconds(0.01234), milliseconds(1234.5)
    ('23.1', '0.0123', '1234')
    """
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}"
