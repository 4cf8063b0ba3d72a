"""What a worker does with the jobs that it reads, one in each line, until a fault leaves it no context."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any


def served(timed: Callable[[Mapping[str, Any]], dict[str, Any]], sync: Callable[[], object]) -> None:
    """Writes a line for each job: what `timed` found, or the problem; after one behind which `sync` fails, `fatal`."""
    for line in sys.stdin:
        try:
            found = timed(json.loads(line))
        except Exception as problem:
            found = {"problem": f"{type(problem).__name__}: {problem}"[:300]}
            try:
                sync()
            except Exception:
                found["fatal"] = True
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if found.get("fatal"):
            return
