"""Race the twins, or any two kernels of one signature, in turns on one thread pool, and check what they compute.

    python -m benchmarks.twins.run [CASE ...] [--threads 1 2] [--seconds 4] [--json FILE]
    python -m benchmarks.twins.run CASE --against other.cpp --symbol other_kernel

Times are minima over turns A B A B spread over the seconds given, since a shared machine only adds to them. The peak is
a kernel of the same race (limits.cpp), so that both are measured at the same clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.twins.cases import CASES, Array, Case
from tests.kernels.pool_host import LoadedKernel, Pool, aligned, compile_library

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "twins"
FLAGS = ("-mprefer-vector-width=512",)
STREAM_BYTES = 320 << 20  # weights cycle over this much, far more than any cache a core has for itself
_BATCH_SECONDS = 0.05
_PAUSE_SECONDS = 0.01  # lets other work on the machine pass between batches
PEAK_FLOPS = 2.0 * 8 * 20000 * 12 * 16  # of limit_multiply_add; see limits.cpp
_NO_FLAGS: tuple[str, ...] = ()


def library(source: Path, flags: Sequence[str] = _NO_FLAGS) -> Path:
    """The compiled twin, or another source beside whose own headers the twins' are found."""
    return compile_library([source], CACHE, (*FLAGS, f"-iquote{HERE}", *flags))


def race(pool: Pool, kernels: Sequence[LoadedKernel], sets: Sequence[Sequence[Array]], seconds: float) -> Array:
    """Seconds [kernel, turn] of turns over about `seconds`, in short batches; the first turn of each batch is left out.

    A batch cycles over all input sets, so with several of them every run finds its weights evicted.
    """
    started = time.perf_counter()
    once = pool.race(kernels, sets, 1).sum()
    rounds = max(len(sets) + 1, min(1000, int(_BATCH_SECONDS / once)), 4)
    batches: list[Array] = []
    while not batches or time.perf_counter() - started < seconds:
        batches.append(pool.race(kernels, sets, rounds)[:, 1:])
        time.sleep(_PAUSE_SECONDS)
    return np.concatenate(batches, axis=1)


def error(outputs: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest |output - expected| over the expected RMS; infinite where a NaN or a shape differs."""
    worst = 0.0
    for y, e in zip(outputs, expected, strict=True):
        if y.shape != e.shape:
            return float("inf")
        rms = float(np.sqrt((e.astype(np.float64) ** 2).mean())) or 1.0
        difference = float(np.abs(y.astype(np.float64) - e).max()) / rms
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def compare(
    source_a: str,
    symbol_a: str,
    source_b: str,
    symbol_b: str,
    inputs: Sequence[Array],
    output_shapes: Sequence[Sequence[int]],
    threads: int = 2,
    repeats: float = 2.0,
    *,
    expected: Sequence[Array] | None = None,
    stream: int | None = None,
    flags: Sequence[str] = _NO_FLAGS,
) -> dict[str, Any]:
    """Race two kernels given as C++ text, both taking `inputs`, for about `repeats` seconds of turns.

    `stream` is the index of an input that cycles over copies worth STREAM_BYTES. Returns min and median in milliseconds
    of both, `ratio` = min of a / min of b (above 1: b is faster), the error of each against `expected` (or of b against
    a), and whether the shapes are `output_shapes`.
    """
    arrays = [aligned(a) for a in inputs]
    with tempfile.TemporaryDirectory() as folder, Pool(threads) as pool:
        kernels = []
        for letter, text, symbol in (("a", source_a, symbol_a), ("b", source_b, symbol_b)):
            path = Path(folder) / f"kernel_{letter}.cpp"
            path.write_text(text)
            kernels.append(pool.load(library(path, flags), symbol))
        outputs = [kernel.run(*arrays) for kernel in kernels]
        seconds = race(pool, kernels, input_sets(arrays, stream), repeats)
    wanted = [tuple(s) for s in output_shapes]
    best, middle = seconds.min(axis=1) * 1e3, np.median(seconds, axis=1) * 1e3
    return {
        "threads": threads,
        "a": {"min_ms": float(best[0]), "median_ms": float(middle[0])},
        "b": {"min_ms": float(best[1]), "median_ms": float(middle[1])},
        "ratio": float(best[0] / best[1]),
        "turns": int(seconds.shape[1]),
        "error_a": error(outputs[0], expected) if expected is not None else 0.0,
        "error_b": error(outputs[1], expected if expected is not None else outputs[0]),
        "shapes_match": all([y.shape for y in o] == wanted for o in outputs),
    }


def input_sets(arrays: Sequence[Array], stream: int | None) -> list[list[Array]]:
    """The inputs, or as many sets of them, with the streaming one copied, as make STREAM_BYTES of it."""
    if stream is None:
        return [list(arrays)]
    copies = -(-STREAM_BYTES // arrays[stream].nbytes)
    return [[aligned(a) if i == stream else a for i, a in enumerate(arrays)] for _ in range(copies)]


def measure(case: Case, threads: int, seconds: float, stream: bool, flags: Sequence[str] = _NO_FLAGS) -> dict[str, Any]:
    """One twin on one case beside the peak: times, rates, percent of peak, error over its bound."""
    sets = input_sets(case.inputs, case.weight if stream else None)
    with Pool(threads) as pool:
        twin = pool.load(library(HERE / case.source, flags), case.symbol)
        peak = pool.load(library(HERE / "limits.cpp"), "limit_multiply_add")
        worst = error(twin.run(*case.inputs), [case.reference])
        times = race(pool, [twin, peak], sets, seconds)
    best = times.min(axis=1)
    rate, top = case.flops / best[0], PEAK_FLOPS / best[1]
    return {
        "case": case.name, "threads": threads, "weights": "stream" if stream else "warm",
        "min_ms": best[0] * 1e3, "median_ms": float(np.median(times[0])) * 1e3,
        "gflops": rate / 1e9, "peak_gflops": top / 1e9, "percent": 100 * rate / top,
        "gbytes": case.bytes / best[0] / 1e9, "error": worst, "bound": case.bound, "good": worst <= case.bound,
    }  # fmt: skip


def show(row: dict[str, Any]) -> str:
    """One line of the table."""
    verdict = "ok" if row["good"] else f"ABOVE {row['bound']:.0e}"
    return (
        f"{row['case']:<44} {row['threads']}T {row['weights']:<6}"
        f" min {row['min_ms']:8.3f} med {row['median_ms']:8.3f} ms"
        f" {row['gflops']:7.1f} GFLOP/s {row['percent']:5.1f} % of {row['peak_gflops']:.0f}"
        f" {row['gbytes']:6.1f} GB/s  error {row['error']:.1e} {verdict}\n"
    )


def bandwidth(threads: int, megabytes: int, seconds: float) -> dict[str, Any]:
    """Read bandwidth over an array of `megabytes`."""
    data = aligned(np.ones(megabytes << 18, np.float32))
    with Pool(threads) as pool:
        times = race(pool, [pool.load(library(HERE / "limits.cpp"), "limit_read")], [[data]], seconds)
    return {"threads": threads, "megabytes": megabytes, "gbytes": data.nbytes / times.min() / 1e9}


def against(case: Case, path: Path, symbol: str, threads: int, seconds: float, stream: bool) -> dict[str, Any]:
    """The twin of `case` raced with another source file."""
    twin = (HERE / case.source).read_text()
    result = compare(
        twin, case.symbol, path.read_text(), symbol, case.inputs, [case.reference.shape], threads, seconds,
        expected=[case.reference], stream=case.weight if stream else None, flags=(f"-iquote{path.resolve().parent}",),
    )  # fmt: skip
    return {"case": case.name, "weights": "stream" if stream else "warm", **result}


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twins.run", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all of them by default")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="of turns for each line")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    parser.add_argument("--against", type=Path, help="a C++ source to race the twin with")
    parser.add_argument("--symbol", help="the kernel in it")
    parser.add_argument("--warm", action="store_true", help="no streaming weights")
    parser.add_argument("--flag", action="append", default=[], help="a further compiler flag for the twins")
    parsed = parser.parse_args(argv)
    unknown = [c for c in parsed.cases if c not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]}; there are {', '.join(CASES)}")
    if (parsed.against is None) != (parsed.symbol is None):
        parser.error("--against and --symbol go together")
    return parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line per case, thread count and weight temperature; 1 where an error is above its bound."""
    options = _arguments(argv)
    rows: list[dict[str, Any]] = []
    for threads in options.threads if not options.against else ():
        for megabytes in (1, 64, 512):
            rows.append(bandwidth(threads, megabytes, min(options.seconds, 2.0)))
            sys.stdout.write(f"read {megabytes} MB, {threads}T: {rows[-1]['gbytes']:.1f} GB/s\n")
    for name in options.cases or CASES:
        case = CASES[name](np.random.default_rng(0))
        for threads in options.threads:
            for stream in (False, True) if case.weight is not None and not options.warm else (False,):
                if options.against:
                    row = against(case, options.against, options.symbol, threads, options.seconds, stream)
                    sys.stdout.write(json.dumps(row) + "\n")
                else:
                    row = measure(case, threads, options.seconds, stream, options.flag)
                    sys.stdout.write(show(row))
                sys.stdout.flush()
                rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(r.get("good", True) for r in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
