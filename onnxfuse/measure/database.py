"""What was measured, on disk: seconds of kernels and of the runtime's nodes, and the plans that were found with them.

One SQLite file in write-ahead mode. A row is written in one transaction, so whoever is killed while writing leaves the
rows of all others, and his own as they were before or after. A file that is not there is never made by reading.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from onnxfuse.errors import OutputError

FILE = "profiles.sqlite"  # in the folder of the cache
_WAIT = 60.0  # seconds for other writers
_LOOK = 0.01  # seconds between two tries
_TABLES = """
CREATE TABLE IF NOT EXISTS measured (
    key TEXT PRIMARY KEY, place TEXT NOT NULL, what TEXT NOT NULL, seconds REAL NOT NULL, spread REAL NOT NULL,
    runs INTEGER NOT NULL, date TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_place ON measured (place);
CREATE TABLE IF NOT EXISTS plans (key TEXT PRIMARY KEY, lock TEXT NOT NULL, date TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one run of something, the least of many; `spread` is how far the median lies above, as a part of it.

    `key` names what ran, where and how; `place` is the machine with its runtime, `what` is for people.
    """

    key: str
    place: str
    what: str
    seconds: float
    spread: float
    runs: int
    date: str


@dataclass(frozen=True, slots=True)
class Database:
    """The file at `path`; any number of processes may read and write it at once."""

    path: Path

    def known(self, place: str) -> Mapping[str, Measured]:
        """All that was measured at a place, by key; nothing where there is no file, or one that cannot be read."""
        rows = self._read("SELECT * FROM measured WHERE place = ?", place)
        return {each.key: each for each in (Measured(*row) for row in rows)}

    def plan(self, key: str) -> tuple[str, str] | None:
        """The lock that was kept under a key, and when; None where none was."""
        found = self._read("SELECT lock, date FROM plans WHERE key = ?", key)
        return (str(found[0][0]), str(found[0][1])) if found else None

    def keep(self, measured: Iterable[Measured]) -> None:
        """Keep what was measured; a later measurement takes the place of an earlier one. Raises OutputError."""
        rows = [astuple(each) for each in measured]
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def keep_plan(self, key: str, lock: str, date: str) -> None:
        """Keep a lock under a key. Raises OutputError."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?)", (key, lock, date))

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        if not self.path.is_file():
            return []
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT)) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error:
            return []

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection in one transaction, which ends with the block."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as connection:
                _prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
                with connection:
                    yield connection
        except (sqlite3.Error, OSError) as problem:
            hint = "name another folder with --cache-dir, or remove the file"
            raise OutputError(f"tune: {self.path} cannot be written: {problem}", hint=hint) from None


def _prepare(connection: sqlite3.Connection) -> None:
    """Write-ahead mode, and the tables where the file is new.

    SQLite does not wait for others who change the mode, as two do who both found no file.
    """
    until = time.monotonic() + _WAIT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'plans'").fetchone():
                connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
            return
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem) or time.monotonic() > until:
                raise
            time.sleep(_LOOK)
