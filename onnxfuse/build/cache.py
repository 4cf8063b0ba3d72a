"""A content-addressed cache in a folder: `get` gives exactly what `put` stored, however many processes use the folder.

An entry is one file, `<2 digits>/<key>.<digest>`: the key is a hash of its inputs, the digest one of its content. It
appears by one rename, so readers never see a partial file; a file that does not match its digest counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from onnxfuse.errors import OutputError

_KEY = re.compile(r"[0-9a-f]{64}")
_ENTRY = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{64}")
_STALE_SECONDS = 3600.0  # a temporary file older than this was left by a dead process


@dataclass(frozen=True, slots=True)
class Info:
    """Number and bytes of the entries of a cache; `removed` counts the entries that `gc` has just deleted."""

    root: Path
    entries: int
    bytes: int
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache in the folder `root`, which the first `put` creates. Any number of processes may share it."""

    root: Path

    def get(self, key: str) -> Path | None:
        """The file stored under `key`, read-only, or None. A damaged entry is removed and counts as absent."""
        folder = self._folder(key)
        for path in sorted(folder.glob(f"{key}.*")):
            with contextlib.suppress(OSError):
                if path.name == f"{key}.{file_digest(path)}":
                    with contextlib.suppress(OSError):  # a read-only cache can still be used
                        os.utime(path)
                    return path
                if _ENTRY.fullmatch(path.name):
                    path.unlink()
        return None

    def put(self, key: str, content: bytes | Path) -> Path:
        """Store `content` (bytes, or a file to copy) under `key`; returns the stored file. Raises OutputError."""
        folder = self._folder(key)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, prefix=".new-", delete=False) as new:
                partial = Path(new.name)
                try:
                    if isinstance(content, bytes):
                        new.write(content)
                    else:
                        with content.open("rb") as source:
                            shutil.copyfileobj(source, new)
                    new.close()
                    kept = folder / f"{key}.{file_digest(partial)}"
                    partial.replace(kept)
                except BaseException:
                    partial.unlink(missing_ok=True)
                    raise
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise OutputError(
                f"cache: {self.root} cannot be written: {reason}",
                hint="name another with --cache-dir, or use --no-cache",
            ) from problem
        return kept

    def info(self) -> Info:
        """Number and bytes of the entries."""
        sizes = [status.st_size for _, status in self._entries()]
        return Info(self.root, len(sizes), sum(sizes))

    def gc(self, max_bytes: int) -> Info:
        """Delete the least recently used entries until at most `max_bytes` are left, and stale temporary files."""
        self._drop_stale()
        entries = sorted(self._entries(), key=lambda entry: (entry[1].st_mtime_ns, entry[0]))
        total, removed = sum(status.st_size for _, status in entries), 0
        for path, status in entries:
            if total <= max_bytes:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                total, removed = total - status.st_size, removed + 1
        return Info(self.root, len(entries) - removed, total, removed)

    def pack(self, stream: BinaryIO) -> Info:
        """Write every entry into a tar archive; equal entries give equal bytes. Raises OSError."""
        paths = sorted(path for path, _ in self._entries())
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in paths:
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # deleted meanwhile
                    member = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
                    member.size = os.fstat(file.fileno()).st_size
                    archive.addfile(member, file)
        return self.info()

    def unpack(self, stream: BinaryIO) -> Info:
        """Add the entries of an archive made by `pack`; files that are no entries, or are damaged, are skipped.

        Raises tarfile.TarError if it is not an archive, and OutputError.
        """
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                folder, _, name = member.name.rpartition("/")
                file = archive.extractfile(member) if member.isfile() and _ENTRY.fullmatch(name) else None
                key, _, digest = name.partition(".")
                if file is not None and folder == key[:2] and self.get(key) is None:
                    content = file.read()
                    if hashlib.sha256(content).hexdigest() == digest:
                        self.put(key, content)
        return self.info()

    def _folder(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not a sha256 key: {key!r}")
        return self.root / key[:2]

    def _entries(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self.root.glob("[0-9a-f][0-9a-f]/*.*"):
            if _ENTRY.fullmatch(path.name):
                with contextlib.suppress(OSError):  # another process may have deleted it
                    yield path, path.stat()

    def _drop_stale(self) -> None:
        oldest = time.time() - _STALE_SECONDS
        for path in self.root.glob("[0-9a-f][0-9a-f]/.new-*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


def key_of(*parts: str | bytes) -> str:
    """The SHA-256 key of some parts, in hex. Each is hashed with its length, so ("ab", "c") and ("a", "bc") differ.

    >>> key_of("ab", "c") == key_of("a", "bc")
    False
    """
    whole = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        whole.update(len(raw).to_bytes(8, "little"))
        whole.update(raw)
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, in hex, read in blocks. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def default_cache_dir() -> Path:
    """The folder for compiled kernels unless one is named: $ONNXFUSE_CACHE_DIR, else in the user's cache folder."""
    named = os.environ.get("ONNXFUSE_CACHE_DIR")
    if named:
        return Path(named)
    from platformdirs import user_cache_path  # noqa: PLC0415  keeps `onnxfuse --help` fast

    return Path(user_cache_path("onnxfuse"))
