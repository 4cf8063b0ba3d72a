"""Measurements on disk: seconds of kernels and of the runtime's nodes, and the plans that tuning found with them.

One SQLite file in write-ahead mode. Each write is one transaction, so a killed writer leaves either its old or its new
rows and does not touch those of others. Reading never creates the file.
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
_TIMEOUT = 60.0  # seconds to wait for other writers
_RETRY_SECONDS = 0.01
_TABLES = """
CREATE TABLE IF NOT EXISTS measured (
    key TEXT PRIMARY KEY, place TEXT NOT NULL, what TEXT NOT NULL, seconds REAL NOT NULL, spread REAL NOT NULL,
    runs INTEGER NOT NULL, date TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_place ON measured (place);
CREATE TABLE IF NOT EXISTS plans (key TEXT PRIMARY KEY, lock TEXT NOT NULL, date TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The least seconds of many runs; `spread` is (median - least) / least.

    `key` identifies what ran, where and how; `place` identifies machine and runtime version; `what` is a description
    for people.
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

    def known(self, place: str) -> Mapping[str, Measurement]:
        """All measurements of a place, by key; empty if the file is missing or unreadable."""
        rows = self._read("SELECT * FROM measured WHERE place = ?", place)
        return {each.key: each for each in (Measurement(*row) for row in rows)}

    def plan(self, key: str) -> tuple[str, str] | None:
        """The lock stored under a key, and its date; None if there is none."""
        found = self._read("SELECT lock, date FROM plans WHERE key = ?", key)
        return (str(found[0][0]), str(found[0][1])) if found else None

    def keep(self, measured: Iterable[Measurement]) -> None:
        """Store measurements; a later one replaces an earlier one with the same key. Raises OutputError."""
        rows = [astuple(each) for each in measured]
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def keep_plan(self, key: str, lock: str, date: str) -> None:
        """Store a lock under a key. Raises OutputError."""
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO plans VALUES (?, ?, ?)", (key, lock, date))

    def _read(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        if not self.path.is_file():
            return []
        try:
            with closing(sqlite3.connect(self.path, timeout=_TIMEOUT)) as connection:
                return connection.execute(query, values).fetchall()
        except sqlite3.Error:
            return []

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection with an open transaction, which is committed at the end of the block."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_TIMEOUT, isolation_level=None)) as connection:
                _prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
                with connection:
                    yield connection
        except (sqlite3.Error, OSError) as problem:
            hint = "name another folder with --cache-dir, or remove the file"
            raise OutputError(f"tune: {self.path} cannot be written: {problem}", hint=hint) from None


def _prepare(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead mode and create the tables in a new file.

    Retries, because SQLite's timeout does not cover two processes that switch the mode of a new file at once.
    """
    until = time.monotonic() + _TIMEOUT
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
            time.sleep(_RETRY_SECONDS)
