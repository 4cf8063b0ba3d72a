"""Runs a model and what was made of it at several sizes, with its library and without; writes what differs.

A process of its own, because a wrong kernel may end it: the last line that it wrote tells at which size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from onnxfuse.runtime import process
from onnxfuse.runtime.engine import open_session, options, saturates
from onnxfuse.verify.compare import distance

Feeds = dict[str, np.ndarray[Any, Any]]
Outputs = list[np.ndarray[Any, Any]] | str  # the words of a runtime that refuses
WORDS = 400  # characters of a reason
AGAIN = 1e-6  # of the same kernels in another order: sums of several threads may be grouped in another way


def main(asked: dict[str, Any]) -> None:
    """`feeds` is a folder of .npz files, one for each size; `library` may be empty; `said` is written."""
    with Path(asked["said"]).open("w", encoding="utf-8", buffering=1) as file:
        compare(asked, partial(print, file=file))


def compare(asked: dict[str, Any], out: Callable[[str], None]) -> None:
    """Compare at every size; one line of JSON is given to `out` for all that is begun, and all that is wrong."""

    def say(**fact: Any) -> None:
        out(json.dumps(fact))

    sets = [dict(np.load(path)) for path in sorted(Path(asked["feeds"]).glob("*.npz"))]
    exact = saturates()  # then only lean sessions with optimizations have exact products of codes
    plain = open_session(asked["original"], options(optimize=exact, lean=exact, threads=2))
    wanted = [outcome(plain, each) for each in sets]
    for way, libraries in (("library", [asked["library"]] if asked["library"] else []), ("bodies", [])):
        say(way=way, at="load")
        session = open_session(asked["fused"], options(libraries=libraries, lean=exact, threads=2))
        found = []
        for number, each in enumerate(sets):
            say(way=way, at=number)
            found.append(outcome(session, each))
            if why := difference(wanted[number], found[-1], asked["limit"]):
                say(way=way, wrong=number, why=why)
        for number, why in _orders(session, partial(say, way=way), sets, found):
            say(way=way, wrong=number, why=why)


def _orders(
    session: ort.InferenceSession, say: Callable[..., None], sets: Sequence[Feeds], found: Sequence[Outputs]
) -> Iterator[tuple[str, str]]:
    """The same session again, backwards and then by four threads at once: where it says something else, and what."""
    say(at="again")
    for number in reversed(range(len(sets))):
        if why := difference(found[number], outcome(session, sets[number]), AGAIN):
            yield f"again-{number}", why
    say(at="threads")
    with ThreadPoolExecutor(4) as pool:
        numbers = [number for turn in range(3) for number in np.roll(range(len(sets)), turn).tolist()]
        for number, got in zip(numbers, pool.map(lambda n: outcome(session, sets[n]), numbers), strict=True):
            if why := difference(found[number], got, AGAIN):
                yield f"threads-{number}", why


def outcome(session: ort.InferenceSession, feeds: Feeds) -> Outputs:
    """What a model says, or why it fails."""
    try:
        return list(session.run(None, feeds))
    except Exception as problem:  # the runtime has one type of exception for each of its codes
        return str(problem)[:WORDS]


def difference(wanted: Outputs, found: Outputs, limit: float) -> str:
    """What is wrong with outputs; empty if nothing is."""
    if isinstance(wanted, str) or isinstance(found, str):
        if not isinstance(wanted, str):
            return f"refused: {found}"
        return "" if isinstance(found, str) else f"not refused: {wanted}"
    worst = max((distance(a, b) for a, b in zip(wanted, found, strict=True)), key=lambda each: each.error)
    return "" if worst.error <= limit else worst.reason or f"{worst.error:.1e}"


if __name__ == "__main__":
    process.serve(main)
