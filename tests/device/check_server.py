"""A program that runs GPU checks in forks of itself, one after the other: importing all cases takes 5 s of each.

A line of its input is what one is asked for: arguments, variables, and a file for what it says. A line of its output is
how that ended.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import traceback
from typing import Any

from benchmarks.gpu import bandwidth, check
from benchmarks.gpu.networks import full


def forked(asked: dict[str, Any]) -> int:
    """The exit code of a check, with few turns: what the stand-in for a device takes tells nothing."""
    os.environ.update(asked["variables"])
    out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    bandwidth.TURNS = bandwidth.RUNS = full.ROUNDS = 2
    of = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: of("fork")  # type: ignore[assignment,arg-type]  # cases too
    try:
        return check.main(asked["arguments"])
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(forked(json.loads(line)))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
