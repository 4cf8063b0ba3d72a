"""A process that keeps measurements in a database as fast as it can, and says each key once it is kept."""

from __future__ import annotations

import itertools
import sys
import zlib
from pathlib import Path

from onnxfuse.measure.database import Database, Measurement


def row(key: str) -> Measurement:
    """What is kept under a key: all of it follows from the key."""
    number = zlib.crc32(key.encode())
    return Measurement(key, "here", f"kernel {number}", number * 1e-9, number % 7 / 100, number % 100, f"day {number}")


if __name__ == "__main__":
    database = Database(Path(sys.argv[1]))
    for number in itertools.count():
        keys = [f"{sys.argv[2]}-{number}-{part}" for part in range(3)]
        database.keep([row("shared"), *map(row, keys)])
        database.keep_plan(keys[0], keys[0] * 100, "today")
        sys.stdout.write(f"{keys[0]}\n")
        sys.stdout.flush()
