"""Folders to work in that nobody has to remove: at the end they go, and those of a killed program with the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".onnxfuse-"
_LOCK = ".lock"  # held by the program that works in a folder, as long as it lives


@contextmanager
def work_folder(beside: Path | None = None) -> Iterator[Path]:
    """An empty folder (but for its lock), in `beside` or where temporary files go; removed at the end. Raises OSError.

    Folders there that were left by programs which were killed are removed too.
    """
    parent = beside or Path(tempfile.gettempdir())
    sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock of a folder, held; where the file system has no locks, nobody ever takes it for left."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, b"locked")
        yield
    finally:
        os.close(descriptor)


def sweep(parent: Path) -> None:
    """Remove the folders in `parent` whose programs are dead: their locks were taken and are free again."""
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{_PREFIX}*")):
            if not folder.is_symlink() and _left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _left(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False  # another's, or not locked yet
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_uid == os.getuid() and os.fstat(descriptor).st_size > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)
