"""The measurement database under concurrent writers and killed processes."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxfuse.errors import OutputError
from onnxfuse.measure.database import Database, Measurement
from tests.runtime.database_writer import row

ROOT = Path(__file__).resolve().parents[2]
WRITERS, KILLS = 8, 50


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "folder" / "profiles.sqlite")


def writer(path: Path, name: str, out: Path) -> subprocess.Popen[bytes]:
    with out.open("ab") as stream:
        asked = [sys.executable, "-m", "tests.runtime.database_writer", str(path), name]
        return subprocess.Popen(asked, stdout=stream, cwd=ROOT)


def test_writers_and_kills_lose_nothing(database: Database, tmp_path: Path) -> None:
    """Eight write at once, fifty are killed in the middle: what they said was kept is there, and as it was given."""
    draw, said, number = random.Random(1), tmp_path / "said", 0
    said.mkdir()
    running: list[subprocess.Popen[bytes]] = []
    for _ in range(WRITERS):
        running.append(writer(database.path, f"w{number}", said / f"w{number}"))
        number += 1
    time.sleep(1.0)
    for _ in range(KILLS):
        time.sleep(draw.uniform(0.02, 0.15))
        at = draw.randrange(len(running))
        running[at].send_signal(signal.SIGKILL)
        running[at].wait()
        running[at] = writer(database.path, f"w{number}", said / f"w{number}")
        number += 1
    time.sleep(2.0)
    for each in running:
        each.send_signal(signal.SIGKILL)
        each.wait()
    known = database.known("here")
    kept = [line for file in said.iterdir() for line in file.read_text().split("\n")[:-1]]
    assert len(kept) > KILLS
    for key in kept:
        assert {f"{key[:-1]}{part}" for part in range(3)} <= known.keys(), key
    assert all(known[key] == row(key) for key in known), "a row is not as it was written"
    with sqlite3.connect(database.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        plans = dict(connection.execute("SELECT key, lock FROM plans").fetchall())
    assert all(plans[key] == key * 100 for key in kept)
    assert database.plan(kept[0]) == (kept[0] * 100, "today")


def test_a_later_measurement_takes_the_place_of_an_earlier_one(database: Database) -> None:
    first = Measurement("key", "here", "Relu", 1e-6, 0.1, 10, "2026-01-01")
    database.keep([first])
    database.keep([second := Measurement("key", "here", "Relu", 2e-6, 0.0, 20, "2026-01-02")])
    database.keep([Measurement("other", "elsewhere", "Relu", 3e-6, 0.0, 20, "2026-01-02")])
    assert database.known("here") == {"key": second}


def test_reading_makes_no_file(database: Database) -> None:
    assert database.known("here") == {} and database.plan("key") is None
    assert not database.path.parent.exists()


def test_a_file_that_is_no_database_is_not_read_and_not_overwritten(database: Database) -> None:
    database.path.parent.mkdir()
    database.path.write_bytes(b"not a database " * 100)
    assert database.known("here") == {}
    with pytest.raises(OutputError, match=r"profiles\.sqlite cannot be written"):
        database.keep([row("key")])
    assert database.path.read_bytes() == b"not a database " * 100
