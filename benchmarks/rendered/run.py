"""Race rendered kernels against the hand-written ones, in one process on one thread pool, and check what both compute.

    python -m benchmarks.rendered.run [CASE ...] [--threads 1 2] [--seconds 3] [--json FILE]

Turns are short batches (A...A B...B A...A), since the two take their inputs in different orders; the first run of a
batch, which finds the other's data in the caches, is left out. `warm` repeats on one set of inputs; `stream` cycles
over copies of the weights worth 320 MB, so that every run finds them evicted, as in a large network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rendered.kernels import Rendered, rendered
from benchmarks.rendered.models import TWINS
from benchmarks.twins.cases import CASES, Array, Case
from benchmarks.twins.run import HERE as TWIN_SOURCES
from benchmarks.twins.run import PEAK_FLOPS, error, input_sets, library
from onnxfuse.build import EXPORTED
from tests.kernels.pool_host import LoadedKernel, Pool

WORTH = 0.9  # the least part of a hand-written kernel's speed that a rendered one is meant to have
STEADY = 0.02  # how far two minima of the same kernel may be apart before it is measured on
PATIENCE = 4
_BATCH_SECONDS = 0.02
_MOST_RUNS = 50
_LEAST_TURNS = 3

Side = tuple[LoadedKernel, Sequence[Sequence[Array]]]  # a kernel and its sets of inputs


def race(
    pool: Pool, sides: Sequence[Side], seconds: float, steady: Callable[[list[list[Array]]], bool] = lambda times: True
) -> list[Array]:
    """Seconds of every run, by side, over about `seconds` of turns; up to PATIENCE times as long until it is `steady`.

    Each turn goes on with the set of inputs after the last one's.
    """
    counts = [_runs(float(pool.race([kernel], sets[:1], 2).min())) for kernel, sets in sides]
    times: list[list[Array]] = [[] for _ in sides]
    start, turn = time.perf_counter(), 0
    while (
        turn < _LEAST_TURNS
        or (spent := time.perf_counter() - start) < seconds
        or (spent < PATIENCE * seconds and not steady(times))
    ):
        for (kernel, sets), count, found in zip(sides, counts, times, strict=True):
            chosen = [sets[(turn * count + run) % len(sets)] for run in range(min(count, len(sets)))]
            found.append(pool.race([kernel], chosen, count)[0, 1:])
        turn += 1
    return [np.concatenate(each) for each in times]


def _same(times: list[list[Array]]) -> bool:
    """Whether the first side and the third, which are one kernel, have the same minimum."""
    first, third = (min(float(t.min()) for t in times[side]) for side in (0, 2))
    return abs(first / third - 1.0) <= STEADY


def _runs(once: float) -> int:
    """How many runs of `once` seconds make a turn."""
    return max(4, min(_MOST_RUNS, int(_BATCH_SECONDS / once)))


def measure(case: Case, made: Rendered, threads: int, seconds: float, stream: bool) -> dict[str, Any]:
    """One row: times of both in milliseconds, `ratio` = twin / rendered, the errors of both.

    `spread` is how far the rendered kernel's minimum is from its own in turns of the same race.
    """
    with Pool(threads) as pool:
        ours = pool.load(made.library, EXPORTED)
        twin = pool.load(library(TWIN_SOURCES / case.source), case.symbol)
        peak = pool.load(library(TWIN_SOURCES / "limits.cpp"), "limit_multiply_add")
        errors = [
            error([kernel.run(*inputs)[0].reshape(case.reference.shape)], [case.reference])
            for kernel, inputs in ((ours, made.inputs), (twin, case.inputs))
        ]
        sides: list[Side] = [
            (ours, input_sets(made.inputs, made.weight if stream else None)),
            (twin, input_sets(case.inputs, case.weight if stream else None)),
            (ours, input_sets(made.inputs, made.weight if stream else None)),
            (peak, [[]]),
        ]
        times = race(pool, sides, seconds, _same)
    best, middle = [float(t.min()) for t in times], [float(np.median(t)) for t in times]
    return {
        "case": case.name, "threads": threads, "weights": "stream" if stream else "warm", "runs": len(times[0]),
        "rendered": {"min_ms": best[0] * 1e3, "median_ms": middle[0] * 1e3},
        "twin": {"min_ms": best[1] * 1e3, "median_ms": middle[1] * 1e3},
        "ratio": best[1] / best[0], "ratio_of_medians": middle[1] / middle[0],
        "spread": abs(best[0] / best[2] - 1.0),
        "gflops": case.flops / best[0] / 1e9, "percent_of_peak": 100 * case.flops / best[0] / (PEAK_FLOPS / best[3]),
        "error": errors[0], "twin_error": errors[1], "bound": case.bound, "good": max(errors) <= case.bound,
    }  # fmt: skip


def rows(
    names: Sequence[str], threads: Sequence[int], seconds: float, *, warm: bool = False
) -> Iterator[dict[str, Any]]:
    """A row per case, thread count and weight temperature; `warm` leaves the streaming ones out."""
    for name in names or CASES:
        case = CASES[name](np.random.default_rng(0))
        made = rendered(name, TWINS[name](case))
        for count in threads:
            for stream in (False, True) if case.weight is not None and not warm else (False,):
                yield {"name": name} | measure(case, made, count, seconds, stream)


def show(row: dict[str, Any]) -> str:
    """One line of the table."""
    ours, twin = row["rendered"], row["twin"]
    verdict = ("" if row["ratio"] >= WORTH else f"  below {WORTH}") + ("" if row["good"] else "  WRONG")
    return (
        f"{row['case']:<42} {row['threads']}T {row['weights']:<6} rendered {ours['min_ms']:7.3f}"
        f" ({ours['median_ms']:7.3f})  twin {twin['min_ms']:7.3f} ({twin['median_ms']:7.3f}) ms"
        f"  {row['ratio']:.2f}x ({row['ratio_of_medians']:.2f}x)  A/A {row['spread']:.3f}"
        f"  {row['percent_of_peak']:3.0f} % of peak{verdict}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per row, minima first, medians in brackets; 1 where an error is above its bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rendered.run", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="of turns for each line")
    parser.add_argument("--warm", action="store_true", help="no streaming weights")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    asked = parser.parse_args(argv)
    unknown = [name for name in asked.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")
    found = []
    for row in rows(asked.cases, asked.threads, asked.seconds, warm=asked.warm):
        sys.stdout.write(show(row) + "\n")
        sys.stdout.flush()
        found.append(row)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["good"] for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
