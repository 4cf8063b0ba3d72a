"""Temporary folders that clean up after themselves; those of killed programs are removed by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".onnxfuse-"
_LOCK = ".lock"  # a lock file, locked by the owner of a folder during its lifetime


@contextmanager
def work_folder(beside: Path | None = None) -> Iterator[Path]:
    """An empty folder (except for its lock), in `beside` or the system's temporary folder; removed at the end.

    Stale folders of killed programs there are removed too. Raises OSError.
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
    """Holds the lock of a folder; on file systems without locks, folders never count as stale."""
    descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, b"locked")
        yield
    finally:
        os.close(descriptor)


def sweep(parent: Path) -> None:
    """Remove the stale folders in `parent`: their lock files exist and are not locked."""
    with suppress(OSError):
        for folder in sorted(parent.glob(f"{_PREFIX}*")):
            if not folder.is_symlink() and _left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _left(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False  # of another user, or not locked yet
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(descriptor).st_uid == os.getuid() and os.fstat(descriptor).st_size > 0
    except OSError:
        return False
    finally:
        os.close(descriptor)
