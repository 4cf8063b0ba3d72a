"""Atomic output of several files: written to temporary files beside the targets, renamed once all are complete."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType

from onnxfuse.errors import OutputError, UsageError


def refuse_existing(paths: Iterable[Path], *, overwrite: bool) -> None:
    """UsageError for an output that exists (unless `overwrite`) or is no file, OutputError where none can be made."""
    for path in paths:
        if path.exists() and not path.is_file():
            raise UsageError(f"write: {path} is not an ordinary file", hint="name a file, or - for stdout")
        if not overwrite and (path.exists() or path.is_symlink()):
            raise UsageError(f"write: {path} exists", hint="--overwrite replaces it")
        folder = path.absolute().parent
        if not folder.is_dir():
            raise OutputError(f"write: the folder {folder} does not exist", hint="create it")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"write: {folder} cannot be written", hint="check its permissions or write elsewhere")


def refuse_inputs(outputs: Iterable[Path], read: Iterable[Path]) -> None:
    """UsageError for an output that is one of the files `read`, under any name; without outputs that exist, none is."""
    there = [path for path in outputs if path.exists()]
    if not there:  # and what is read is not looked for
        return
    for source in read:
        for path in there:
            if source.exists() and source.samefile(path):
                said = f"{path} is read by this command" + f", as {source}" * (source != path)
                raise UsageError(f"write: {said}", hint="choose another name")


class Staged:
    """A transaction over the output files of a run. As a context manager it removes what was not committed.

    No existing file is touched before `commit`, which renames in the order of staging: stage a file before those that
    refer to it. Where a rename fails, the previous ones are rolled back.
    """

    def __init__(self, *, overwrite: bool = False) -> None:
        self.overwrite = overwrite
        self._temporary: dict[Path, Path] = {}

    def stage(self, path: Path | str) -> Path:
        """An empty file to write the output `path` into; raises what `refuse_existing` raises."""
        target = Path(path)
        assert target not in self._temporary, f"write: {target} is staged twice"
        refuse_existing([target], overwrite=self.overwrite)
        target = target.resolve() if target.is_symlink() else target  # what the link names is replaced, not the link
        try:
            temporary = _beside(target, "new")
        except OSError as e:
            raise OutputError(f"write: {path} cannot be written: {e.strerror or e}") from None
        self._temporary[target] = temporary
        return temporary

    def commit(self) -> None:
        """Rename every output to its target. Where that fails, rolls back and raises OutputError."""
        refuse_existing(self._temporary, overwrite=self.overwrite)
        old: dict[Path, Path | None] = {}
        try:
            for target, temporary in self._temporary.items():
                old[target] = _backup(target) if len(self._temporary) > 1 else None
                os.replace(temporary, target)
        except BaseException as problem:
            _restore(old, self._temporary)
            self.abort()
            if isinstance(problem, OSError):
                raise OutputError(f"write: {problem.filename} cannot be written: {problem.strerror}") from None
            raise
        self._temporary.clear()
        for kept in old.values():
            if kept is not None:
                _remove(kept)

    def abort(self) -> None:
        """Remove the staged files."""
        for temporary in self._temporary.values():
            _remove(temporary)
        self._temporary.clear()

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a file of text in one step. Raises UsageError and OutputError."""
    with Staged(overwrite=overwrite) as staged:
        temporary = staged.stage(path)
        try:
            temporary.write_text(text, encoding="utf-8", errors="replace")
        except OSError as problem:
            raise OutputError(f"write: {path} cannot be written: {problem.strerror}") from None
        staged.commit()


def _temporary_names(target: Path, what: str) -> Iterator[Path]:
    for i in count():
        yield target.with_name(f".{target.name[:200]}.{os.getpid()}.{i}.{what}")


def _beside(target: Path, what: str) -> Path:
    """A new empty file in the target's folder, with the mode of the user's umask."""
    for path in _temporary_names(target, what):
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return path
    raise AssertionError("write: unreachable")


def _backup(target: Path) -> Path | None:
    """A backup of a file that is about to be replaced: a hard link, or the renamed file without support for links."""
    if not target.exists():
        return None
    for path in _temporary_names(target, "old"):
        if not path.exists():
            try:
                os.link(target, path)
            except OSError:
                os.rename(target, path)
            return path
    raise AssertionError("write: unreachable")


def _restore(old: dict[Path, Path | None], temporary: dict[Path, Path]) -> None:
    for target, kept in old.items():
        if kept is not None:
            with suppress(OSError):
                os.replace(kept, target)
                _remove(kept)  # a rename between two names of one file does nothing
        elif not temporary[target].exists():  # it was renamed, and nothing was there before
            _remove(target)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
