"""Where the outputs of a build go: their names, the folder in which they are made, and the one moment they appear."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onnxfuse.config import Options
from onnxfuse.emit import Staged, data_path, refuse_existing, refuse_inputs
from onnxfuse.errors import OutputError, UsageError
from onnxfuse.load import files_of
from onnxfuse.runtime.folders import work_folder

STREAM = "-"  # as a path: standard input or output


@dataclass(frozen=True, slots=True)
class OutputPaths:
    """Final paths. `model` is None for standard output; there the manifest is written only where one is named."""

    model: Path | None
    library: Path
    manifest: Path | None
    lock: Path | None  # None where none is to be written
    name: str  # of the model, with `.onnx`

    @property
    def folder(self) -> Path:
        """The folder that the manifest and the model's metadata speak from."""
        return (self.model or self.library).absolute().parent

    @property
    def library_name(self) -> str:
        """The library as the model names it: relative to the model's folder."""
        if self.model is None:
            return self.library.name
        return Path(os.path.relpath(self.library.absolute(), self.folder)).as_posix()

    @property
    def manifest_name(self) -> str:
        """The manifest as the model names it; empty when there is none."""
        return Path(os.path.relpath(self.manifest.absolute(), self.folder)).as_posix() if self.manifest else ""

    @property
    def data(self) -> Path | None:
        """Where external data goes; None for standard output, which has none."""
        return None if self.model is None else data_path(self.model)


def places_of(model: Path | None, options: Options) -> OutputPaths:
    """The names of the outputs for a model at `model` (None: standard input). Raises UsageError for ones that clash."""
    out = options.output
    if out is None and model is None:
        raise UsageError("optimize: the model comes from standard input and OUT is missing", hint="name it, or -o -")
    if out == STREAM:
        if options.lib is None:
            raise UsageError("optimize: -o - needs --lib", hint="the library cannot go to standard output too")
        library = Path(options.lib)
        name = f"{library.name.removeprefix('lib').removesuffix('.so')}.onnx"
        manifest, lock = (Path(named) if named else None for named in (options.manifest, _lock_named(options)))
        return _checked(OutputPaths(None, library, manifest, lock, name), model)
    path = Path(out) if out is not None else _default(model)
    if not path.name:
        raise UsageError("optimize: OUT has no name", hint="name the file to write")
    stem = path.name.removesuffix(".onnx")
    library = Path(options.lib) if options.lib else path.with_name(f"lib{stem}.so")
    manifest = Path(options.manifest) if options.manifest else path.with_name(f"{stem}.fuse.json")
    beside = path.with_name(f"{stem}.fuse.lock") if options.profile_guided else None
    lock = Path(named) if (named := _lock_named(options)) else beside
    return _checked(OutputPaths(path, library, manifest, lock, path.name), model)


def _lock_named(options: Options) -> str | None:
    """The lock file to write that the options name; one to read is no output."""
    return options.lock if options.profile_guided else None


def _default(model: Path | None) -> Path:
    assert model is not None
    if not model.name:
        raise UsageError("optimize: MODEL has no name", hint="name the .onnx file to read")
    return model.with_name(f"{model.name.removesuffix('.onnx')}.fused.onnx")


def _checked(places: OutputPaths, source: Path | None) -> OutputPaths:
    """The places, each another file than the model to read and the other places, whatever their names."""
    named = {"the model": places.model, "its data": places.data, "the library": places.library}
    named |= {"the manifest": places.manifest, "the lock file": places.lock}
    seen: dict[str, str] = {} if source is None else {os.path.realpath(source): "the model to read"}
    for what, path in named.items():
        if path is None:
            continue
        if any("\ud800" <= c <= "\udfff" for c in str(path)):  # Python's stand-ins for bytes that are no text
            raise UsageError(f"optimize: the name of {what} is not UTF-8: {path}", hint="choose another")
        other = seen.get(os.path.realpath(path))
        if other is not None:
            raise UsageError(f"optimize: {what} and {other} are both {path}", hint="name them apart")
        seen[os.path.realpath(path)] = what
    return places


def refuse(places: OutputPaths, options: Options, source: Path | None) -> None:
    """Raise UsageError for an output that exists or is read, OutputError where its folder cannot be written."""
    paths = [p for p in (places.model, places.library, places.manifest, places.lock) if p is not None]
    refuse_existing(paths, overwrite=options.overwrite)
    refuse_inputs([*paths, *([places.data] if places.data is not None else [])], _read(options, source))


def _read(options: Options, source: Path | None) -> Iterator[Path]:
    """The files that a build reads."""
    if source is not None:
        yield from files_of(source)
    named = (options.inputs, None if options.profile_guided else options.lock, *options.custom_ops_library)
    yield from (Path(each) for each in named if each is not None)


@contextmanager
def workshop(places: OutputPaths | None) -> Iterator[Path]:
    """A folder to make the outputs in, on the file system of the model where there is one; removed at the end."""
    beside = places.model.absolute().parent if places is not None and places.model is not None else None
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(work_folder(beside))
        except OSError as problem:
            where = beside or tempfile.gettempdir()
            raise OutputError(f"write: {where} cannot be written: {problem.strerror}", hint="write elsewhere") from None
        yield folder


def deliver(made: Mapping[Path, Path], options: Options, stream: tuple[Path, BinaryIO] | None = None) -> None:
    """Move each made file (values) to its final path (keys), all of them or none; the last one names the others.

    `stream` is a file that goes to standard output first. Raises OutputError and UsageError as `Staged` does.
    """
    with Staged(overwrite=options.overwrite) as staged:
        for final, path in made.items():
            _move(path, staged.stage(final))
        if stream is not None:
            _send(*stream)
        staged.commit()


def _move(path: Path, temporary: Path) -> None:
    try:
        os.replace(path, temporary)
    except OSError:  # another file system
        try:
            shutil.copyfile(path, temporary)
        except OSError as problem:
            raise OutputError(f"write: {temporary.parent} cannot be written: {problem.strerror}") from None


def _send(path: Path, stream: BinaryIO) -> None:
    try:
        with path.open("rb") as file:
            shutil.copyfileobj(file, stream, 1 << 20)
        stream.flush()
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise OutputError(f"write: standard output cannot be written: {reason}") from None
