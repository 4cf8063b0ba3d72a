"""Runs a model and what was made of it at several sizes, with its library and without; prints what differs.

A process of its own, because a wrong kernel may end it: the last line that it printed tells at which size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onnxfuse.runtime.engine import open_session, options
from onnxfuse.verify.compare import distance

Feeds = dict[str, np.ndarray[Any, Any]]
Outputs = list[np.ndarray[Any, Any]] | str  # the words of a runtime that refuses
WORDS = 400  # characters of a reason
AGAIN = 1e-6  # of the same kernels in another order: sums of several threads may be grouped in another way


def main(original: str, fused: str, library: str, feeds: str, limit: str) -> None:
    """`feeds` is a folder of .npz files, one for each size; `library` may be empty."""
    sets = [dict(np.load(path)) for path in sorted(Path(feeds).glob("*.npz"))]
    plain = open_session(original, options(optimize=False, threads=2))
    wanted = [outcome(plain, each) for each in sets]
    for way, libraries in (("library", [library] if library else []), ("bodies", [])):
        say({"way": way, "at": "load"})
        session = open_session(fused, options(libraries=libraries, threads=2))
        found = []
        for number, each in enumerate(sets):
            say({"way": way, "at": number})
            found.append(outcome(session, each))
            report(way, number, wanted[number], found[-1], float(limit))
        _orders(session, way, sets, found)


def _orders(session: ort.InferenceSession, way: str, sets: Sequence[Feeds], found: Sequence[Outputs]) -> None:
    """The same session again, backwards and then by four threads at once: what it said before."""
    say({"way": way, "at": "again"})
    for number in reversed(range(len(sets))):
        report(way, f"again-{number}", found[number], outcome(session, sets[number]), AGAIN)
    say({"way": way, "at": "threads"})
    with ThreadPoolExecutor(4) as pool:
        numbers = [number for turn in range(3) for number in np.roll(range(len(sets)), turn).tolist()]
        for number, got in zip(numbers, pool.map(lambda n: outcome(session, sets[n]), numbers), strict=True):
            report(way, f"threads-{number}", found[number], got, AGAIN)


def outcome(session: ort.InferenceSession, feeds: Feeds) -> Outputs:
    """What a model says, or why it fails."""
    try:
        return list(session.run(None, feeds))
    except Exception as problem:  # the runtime has one type of exception for each of its codes
        return str(problem)[:WORDS]


def report(way: str, at: int | str, wanted: Outputs, found: Outputs, limit: float) -> None:
    """Say what is wrong at a size, if something is."""
    if isinstance(wanted, str) or isinstance(found, str):
        if not isinstance(wanted, str):
            say({"way": way, "wrong": at, "why": f"refused: {found}"})
        elif not isinstance(found, str):
            say({"way": way, "wrong": at, "why": f"not refused: {wanted}"})
        return
    worst = max((distance(a, b) for a, b in zip(wanted, found, strict=True)), key=lambda each: each.error)
    if not worst.error <= limit:
        say({"way": way, "wrong": at, "why": worst.reason or f"{worst.error:.1e}"})


def say(fact: dict[str, Any]) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
