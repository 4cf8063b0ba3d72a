"""Predicted and measured times of kernels on the GPU of this machine: products, attention, and what lies between.

    python -m benchmarks.gpu.products --prepare [--only '^attention']
    python -m benchmarks.gpu.products RESULT.json [--until SECONDS] [--torch SECONDS] [--dry]

The first command needs no device: it schedules and compiles all kernels for an H100 (`jobs/cases.py`) into the file
.cache/gpu-products/jobs.xz, of each product and attention those of several tiles. The second one launches them there,
and what torch does instead, in workers that another one replaces after a fault. It writes RESULT.json again and again,
and prints tables. `--until` is when it ends, whatever is left; `--torch` the seconds of it that are torch's. `--dry`
takes predictions for times, to try it where there is no device.

Kernels run behind each other in CUDA graphs, with all that they read in the second cache; `fresh` times have the matrix
from memory. Predictions are for a graph (1.4 us between kernels), without the factor for safety.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.jobs.times import unpacked

PACK = Path(".cache/gpu-products/jobs.xz")
WRONG = 1e-2  # relative L2 of what a product makes
Row = dict[str, Any]
START_S, ANSWER_S = 60.0, 15.0  # how long a worker may take to begin, and for a job
MOST_FAULTS, FRUITLESS = 12, 4  # and for how many counts that of a process that has answered nothing
OFTEN_S = 5.0  # between two versions of the file
WHOLE = 20.0  # microseconds from which on fractions are left out
PROBLEMS = 12  # that are printed


class Worker:
    """A process that answers each line of JSON by another one; another takes its place when it ends."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.command, self.faults = [sys.executable, "-m", module, *arguments], 0
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answers: queue.Queue[str] = queue.Queue()
        self.fresh = True
        threading.Thread(target=self._read, args=(self.process, self.answers), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put("")

    def ask(self, job: Mapping[str, Any], until: float) -> Row:
        """The answer, or what went wrong."""
        fresh, self.fresh = self.fresh, False
        limit = min(START_S if fresh else ANSWER_S, max(until - time.monotonic(), 0.5))
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            line = self.answers.get(timeout=limit)
            found: Row = json.loads(line) if line else {"problem": "the worker ended", "fatal": True}
        except (OSError, queue.Empty, ValueError) as problem:
            found = {"problem": f"no answer: {type(problem).__name__}", "fatal": True}
        if found.get("fatal"):
            self.faults += FRUITLESS if fresh else 1
            self.close()
            if self.faults < MOST_FAULTS:
                self._start()
        return found

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


class Dry:
    """A worker without a device: predictions are the answers."""

    faults = 0

    def ask(self, job: Mapping[str, Any], until: float) -> Row:
        """As if all were as predicted."""
        if "predicted" not in job:
            return {"times": {"matmul": 5.0, "linear, gelu": 7.0}}
        us = job["predicted"].get("tile", job["predicted"]["cost"])
        return {"us": us * (1 + job["place"] % 3 / 10), "least_us": us, "runs": 1, "resident": [1], "apart": 0.0}

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Measurement:
    """What is measured, in this order, and what was found out: rows are jobs with times, `theirs` torch's times."""

    rows: list[Row]
    theirs: dict[str, Row]
    facts: Row

    def write(self, path: Path) -> None:
        """All of it as a file."""
        whole = {"facts": self.facts, "rows": self.rows, "torch": list(self.theirs.values())}
        path.write_text(json.dumps(whole, indent=0) + "\n", encoding="utf-8")


def measured(result: Path, pack: Path, until: float, of_torch: float, *, dry: bool) -> Measurement:
    """Times of all jobs, as far as there is time; the file has them all along."""
    begin = time.monotonic()
    theirs: Worker | Dry = Dry() if dry else Worker("benchmarks.gpu.jobs.with_torch")  # imports what it needs meanwhile
    ours: Worker | Dry = Dry() if dry else Worker("benchmarks.gpu.jobs.times", str(pack))
    jobs, _ = unpacked(pack)
    m = Measurement([], {}, {"jobs": len(jobs)})
    todo = [job for job in jobs if job["place"] == 0], [job for job in jobs if job["place"]]
    others = list({torch_key(job): job["torch"] for job in jobs if torch_key(job)}.items())
    end = begin + until

    def answered(job: Row) -> None:
        m.rows.append(job | {"measured": ours.ask(job, end)})

    def answered_by_torch(pair: tuple[str, Row]) -> None:
        name, how = pair
        m.theirs[name] = {"key": name, **how, **theirs.ask(how, end)}

    save = partial(m.write, result)
    parts = (  # what was chosen, what torch does, other tiles
        ("chosen", todo[0], answered, ours, end - of_torch),
        ("torch", others, answered_by_torch, theirs, end),
        ("other tiles", todo[1], answered, ours, end),
    )
    for name, work, take, worker, limit in parts:
        start = time.monotonic()
        left = asked(work, take, worker, limit, save)
        m.facts |= {name: {"seconds": round(time.monotonic() - start, 1), "left": left, "faults": worker.faults}}
        save()
    for worker in (ours, theirs):
        worker.close()
    return m


def torch_key(job: Row) -> str:
    """What torch is asked once for equal work; empty where it is not asked."""
    how = dict(job["torch"])
    if not how or how.get("epilogue") == "plain":
        return ""
    return json.dumps(how, sort_keys=True)


def asked(
    work: Sequence[Any], take: Callable[[Any], None], worker: Worker | Dry, until: float, save: Callable[[], None]
) -> int:
    """Take all work until the time is up; how much is left."""
    last = time.monotonic()
    for n, each in enumerate(work):
        now = time.monotonic()
        if now > until or worker.faults >= MOST_FAULTS:
            return len(work) - n
        if now - last > OFTEN_S:
            save()
            last = now
        take(each)
    return 0


# tables ---------------------------------------------------------------------------------------------------------------


def us(row: Row | None, name: str = "us") -> float | None:
    """A measured time."""
    return row["measured"].get(name) if row is not None else None


def said(value: float | None) -> str:
    """Microseconds in few characters."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= WHOLE else f"{value:.1f}"


def predicted(row: Row) -> float:
    """By what decides: the model of tiles, or that of kernels."""
    return float(row["predicted"].get("tile", row["predicted"]["cost"]))


def mean(values: Iterable[float]) -> float:
    """The geometric one."""
    logs = [math.log(v) for v in values if v > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def tables(m: Measurement) -> str:
    """What was predicted, measured, best of all tiles, and what the library takes; then ratios of each kind."""
    by_label: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in m.rows:
        by_label[row["what"], row["label"], row["dtype"]].append(row)
    lines = [json.dumps(m.facts), *_products(m, by_label), *_attentions(m, by_label), *_between(m, by_label)]
    return "\n".join([*lines, *_summary(m, by_label), *_problems(m)]) + "\n"


Labels = Mapping[tuple[str, str, str], list[Row]]


def _their_times(m: Measurement, rows: Sequence[Row]) -> Row:
    """Of torch, for the same work."""
    how = dict(rows[0]["torch"])
    if how.get("epilogue") == "plain":
        how["epilogue"] = "gelu"
    found: Row = m.theirs.get(json.dumps(how, sort_keys=True), {}).get("times", {})
    return found


def _by_name(by_label: Labels, what: str) -> dict[str, dict[str, list[Row]]]:
    """Rows of a kind by their labels, then by types."""
    found: dict[str, dict[str, list[Row]]] = defaultdict(dict)
    for (kind, label, dtype), rows in by_label.items():
        if kind == what:
            found[label][dtype] = rows
    return found


def _products(m: Measurement, by_label: Labels) -> Iterator[str]:
    yield "rows x depth x columns, bias, GELU: predicted measured best-tile plain; torch: mm, mm+b+gelu; matrix from"
    yield "memory: ours, mm | the same in float32, mm also by TF32"
    found = _by_name(by_label, "product")
    for label, types in found.items():
        if "plain" in label:
            continue
        plain = found.get(label.replace("gelu", "plain"), {})
        cells = [_of_type(m, rows, plain.get(dtype, []), dtype) for dtype, rows in types.items()]
        yield f"{label.replace(' gelu', '')} {'|'.join(cells)}"


def _of_type(m: Measurement, rows: Sequence[Row], plain: Sequence[Row], dtype: str) -> str:
    chosen = next((r for r in rows if r["place"] == 0), None)
    theirs = _their_times(m, rows)
    best = _best(rows)
    names = ["matmul", "linear, gelu"] if "norm" not in rows[0]["label"] else ["layernorm, linear, gelu"]
    names += ["matmul tf32"] if dtype == "float32" else []
    before = predicted(chosen) if chosen is not None else None
    ours = " ".join(map(said, (before, us(chosen), best, us(plain[0]) if plain else None)))
    fresh = f"{said(us(chosen, 'fresh_us'))} {said(theirs.get('matmul fresh'))}"
    return f"{ours};{' '.join(said(theirs.get(n)) for n in names)};{fresh}"


def _best(rows: Sequence[Row]) -> float | None:
    """The least time of all tiles."""
    return min((t for r in rows if (t := us(r)) is not None), default=None)


def _attentions(m: Measurement, by_label: Labels) -> Iterator[str]:
    yield "attention: predicted measured best-tile sdpa, in float16 and in float32"
    for label, types in _by_name(by_label, "attention").items():
        cells = [
            " ".join(map(said, (predicted(rows[0]), us(rows[0]), _best(rows), _their_times(m, rows).get("sdpa"))))
            for rows in types.values()
        ]
        yield f"{label}: {' | '.join(cells)}"


def _between(m: Measurement, by_label: Labels) -> Iterator[str]:
    yield "between, each size: predicted/measured/torch, in float16 | in float32"
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (what, label, dtype), (row, *_) in by_label.items():
        if what in ("between", "boundary"):
            theirs = next(iter(_their_times(m, [row]).values()), None) if row["torch"] else None
            numbers = "/".join(map(said, (predicted(row), us(row), theirs)))
            found[label.rsplit(" ", 1)[0] if what == "between" else label][dtype].append(numbers)
    yield from (f"{name}: {' | '.join(' '.join(each) for each in types.values())}" for name, types in found.items())


def _summary(m: Measurement, by_label: Labels) -> Iterator[str]:
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    lost: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (what, _, dtype), rows in by_label.items():
        times = [(t, r) for r in rows if (t := us(r)) is not None]
        ratios[short(dtype), what] += [t / predicted(r) for t, r in times if r["place"] == 0]
        ratios[short(dtype), f"{what}, other tiles"] += [t / predicted(r) for t, r in times if r["place"]]
        first = next((t for t, r in times if r["place"] == 0), None)
        if first is not None and len(times) > 1:
            lost[short(dtype), what].append(first / min(t for t, _ in times))
    for (dtype, what), each in ratios.items():
        if each:
            spread = f"{min(each):.2f} to {max(each):.2f}, {len(each)}"
            yield f"{dtype} {what}: measured / predicted {mean(each):.2f} ({spread})"
    for (dtype, what), each in lost.items():
        yield f"{dtype} {what}: chosen / best tile {mean(each):.3f} (most {max(each):.2f}, {len(each)})"
    for dtype in sorted({r["dtype"] for r in m.rows if r["what"] == "product"}):
        mine = [r["measured"] for r in m.rows if r["dtype"] == dtype]
        wrong, apart = (max((each[n] for each in mine if n in each), default=0.0) for n in ("error", "apart"))
        yield f"{short(dtype)} products: largest error {wrong:.2g}, largest distance between tiles {apart:.2g}"


def _problems(m: Measurement) -> Iterator[str]:
    found = [
        f"{r['label']} {r['dtype']} {r['tile']}: {r['measured']['problem']}"
        for r in m.rows
        if "problem" in r["measured"]
    ]
    found += [
        f"wrong: {r['label']} {r['dtype']} {r['tile']}: error {r['measured'].get('error')}, {r['measured']['apart']}"
        for r in m.rows
        if max(r["measured"].get("error", 0.0), r["measured"].get("apart", 0.0)) > WRONG
    ]
    found += [f"torch {name[:80]}: {t['problem']}" for name, t in m.theirs.items() if "problem" in t]
    yield from (line[:160] for line in found[:PROBLEMS])
    if len(found) > PROBLEMS:
        yield f"... and {len(found) - PROBLEMS} more problems"


def short(dtype: str) -> str:
    """The name of a type in few characters."""
    return dtype.replace("float", "f")


def main() -> int:
    """Prepare, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, nargs="?")
    parser.add_argument("--prepare", action="store_true", help="make everything ready, without a device")
    parser.add_argument("--pack", type=Path, default=PACK, help="the file with all that was made ready")
    parser.add_argument("--only", default="", help="what kinds and labels match that are made ready")
    parser.add_argument("--threads", type=int, default=1, help="that compile")
    parser.add_argument("--until", type=float, default=60.0, help="seconds in all")
    parser.add_argument("--torch", type=float, default=25.0, help="seconds of these that are left to torch")
    parser.add_argument("--dry", action="store_true", help="predictions in place of times")
    given = parser.parse_args()
    if given.prepare:
        from benchmarks.gpu.jobs.prepare import prepared  # noqa: PLC0415  # what a device's machine need not have

        count, problems = prepared(given.pack, threads=given.threads, only=given.only)
        sys.stdout.write("\n".join([f"{count} jobs, {given.pack.stat().st_size / 1e6:.1f} MB", *problems]) + "\n")
    if given.result is not None:
        found = measured(given.result, given.pack, given.until, given.torch, dry=given.dry)
        sys.stdout.write(tables(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
